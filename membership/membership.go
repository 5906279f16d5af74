package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed is returned once a Membership is closed.
var ErrClosed = errors.New("membership: closed")

// longestTimer bounds how long the wait for a node's start or stop trusts the clock.
const longestTimer = time.Minute

// Membership is this node's place in the cluster. All methods may be called from any
// goroutine.
type Membership struct {
	log    *slog.Logger
	view   atomic.Pointer[View]
	joined chan struct{} // closed when this node knows the cluster
	gossip *gossip       // nil with a fixed list

	mu     sync.Mutex
	self   Node
	alive  map[string]Node
	facts  facts
	subs   map[*Subscription]struct{}
	timer  *time.Timer // for the view's edge; nil for none
	closed bool
	// doubling has each bucket_count that a node's store was seen doubling. It stays, because
	// nodes hear of the end at different times; the store itself refuses who is late.
	doubling map[uint32]struct{}
	isIn     bool // joined is closed
}

// Single is a cluster of one node.
func Single(self Node) (*Membership, error) { return Static(self, nil) }

// Static is a cluster with a fixed list of nodes, which may name self again. Facts stay
// on this node.
func Static(self Node, others []Node) (*Membership, error) {
	m := newMembership(self, slog.Default())
	for _, n := range others {
		m.seeDoubling(n)
	}
	for _, n := range append([]Node{self}, others...) {
		if err := n.check(); err != nil {
			return nil, err
		}
		if err := m.refuses(n); err != nil {
			return nil, err
		}
		if old, ok := m.alive[n.Name]; ok && old != n {
			return nil, fmt.Errorf("membership: two nodes of the list are called %q", n.Name)
		}
		m.alive[n.Name] = n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enter()
	m.refresh()
	return m, nil
}

func newMembership(self Node, log *slog.Logger) *Membership {
	m := &Membership{
		log: log, joined: make(chan struct{}), self: self,
		alive: map[string]Node{}, doubling: map[uint32]struct{}{}, facts: facts{}, subs: map[*Subscription]struct{}{},
	}
	m.view.Store(&View{})
	m.seeDoubling(self)
	return m
}

// Self returns what this node tells of itself.
func (m *Membership) Self() Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.self
}

// View returns what is known now. It is a load of a pointer.
func (m *Membership) View() *View { return m.view.Load() }

// Joined is closed once this node knows the cluster: it has reached another node, or
// there is none to ask. Until then it sees itself alone, and should not act on that.
func (m *Membership) Joined() <-chan struct{} { return m.joined }

// enter closes joined; under mu.
func (m *Membership) enter() {
	if !m.isIn {
		m.isIn = true
		close(m.joined)
	}
}

// Update changes what this node tells of itself: everything but its name and cluster. It
// returns when the others are being told, or ctx is over.
func (m *Membership) Update(ctx context.Context, change func(*Node)) error {
	m.mu.Lock()
	n := m.self
	change(&n)
	err := n.check()
	switch {
	case err != nil:
	case n.Name != m.self.Name || n.ClusterID != m.self.ClusterID:
		err = errors.New("membership: a node's name and cluster can't change while it runs")
	case m.closed:
		err = ErrClosed
	default:
		err = m.refuses(n)
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	m.self = n
	m.seeDoubling(n)
	if m.gossip == nil {
		if _, ok := m.alive[n.Name]; ok {
			m.alive[n.Name] = n
			m.refresh()
		}
	}
	m.mu.Unlock()
	if m.gossip == nil {
		return nil
	}
	return m.gossip.tell(ctx)
}

// Drain tells the others that this node does not act from a time on, in whole seconds,
// and waits until then.
func (m *Membership) Drain(ctx context.Context, at time.Time) error {
	stop := at.Unix()
	if at.Nanosecond() > 0 {
		stop++
	}
	if err := m.Update(ctx, func(n *Node) { n.Stop = max(stop, 1) }); err != nil {
		return err
	}
	timer := time.NewTimer(time.Until(time.Unix(stop, 0)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("membership: waiting to be drained: %w", ctx.Err())
	}
}

// Leave says goodbye: the others take this node out at once, and do not look for it. The
// node itself still answers; Close ends that. A second call does nothing.
func (m *Membership) Leave(ctx context.Context) error {
	if m.gossip != nil {
		return m.gossip.leave(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.alive, m.self.Name)
	m.refresh()
	return nil
}

// Close ends everything, without goodbye. Subscriptions hear nothing more.
func (m *Membership) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.mu.Unlock()
	if m.gossip != nil {
		return m.gossip.close()
	}
	return nil
}

// refuses says why a node can't be of this cluster, nil if it can; under mu, except where
// m is not shared yet.
func (m *Membership) refuses(n Node) error {
	if n.ClusterID != m.self.ClusterID {
		return &RefusedError{Node: n.Name, Cause: WrongCluster, text: fmt.Sprintf(
			"node %q is of cluster %q, and %q is of cluster %q", n.Name, n.ClusterID, m.self.Name, m.self.ClusterID)}
	}
	count, who := m.self.BucketCount, m.self.Name
	if n.Name == m.self.Name {
		count = 0 // it changes itself
	}
	if count == 0 {
		for _, other := range m.alive {
			if other.BucketCount != 0 && other.Name != n.Name && (count == 0 || other.Name < who) {
				count, who = other.BucketCount, other.Name
			}
		}
	}
	if count != 0 && n.BucketCount != 0 && n.BucketCount != count && !m.doubles(n.BucketCount, count) {
		return &RefusedError{Node: n.Name, Cause: WrongBucketCount, text: fmt.Sprintf(
			"node %q has a bucket_count of %d, and %q one of %d; in a cluster that exists it can only be doubled", n.Name, n.BucketCount, who, count)}
	}
	return nil
}

// seeDoubling notes that a node's store doubles its bucket_count; under mu, except where m is
// not shared yet.
func (m *Membership) seeDoubling(n Node) {
	if n.Doubling != 0 && n.ClusterID == m.self.ClusterID && len(m.doubling) < maxDoublings {
		m.doubling[n.Doubling] = struct{}{}
	}
}

// maxDoublings is more often than a bucket_count can be doubled.
const maxDoublings = 32

// doubles says whether one bucket_count is being doubled to the other; under mu.
func (m *Membership) doubles(a, b uint32) bool {
	a, b = min(a, b), max(a, b)
	_, ok := m.doubling[a]
	return ok && uint64(b) == 2*uint64(a)
}

// refresh makes the view anew and tells those whom it concerns; under mu.
func (m *Membership) refresh() {
	if m.closed {
		return
	}
	nodes := make([]Node, 0, len(m.alive))
	for _, n := range m.alive {
		nodes = append(nodes, n)
	}
	now := time.Now()
	old, v := m.view.Load(), newView(nodes, now)
	m.view.Store(v)
	for s := range m.subs {
		if s.concerns(old, v) {
			s.ring()
		}
	}
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	if v.edge != 0 {
		wait := max(time.Unix(v.edge, 0).Sub(now), time.Millisecond)
		m.timer = time.AfterFunc(min(wait, longestTimer), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.refresh()
		})
	}
}

// set takes over what a node tells of itself; remove takes it out.
func (m *Membership) set(n Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alive[n.Name] = n
	if n.Name != m.self.Name {
		m.enter()
	}
	m.refresh()
}

func (m *Membership) remove(name string) (n Node, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, known = m.alive[name]
	delete(m.alive, name)
	m.refresh()
	return n, known
}

// Publish spreads a fact that this node knows. It is no error if a newer one is known.
func (m *Membership) Publish(key string, value []byte, version uint64) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	f := Fact{Key: key, Value: slices.Clone(value), Version: version, Node: m.self.Name}
	m.mu.Unlock()
	return m.learn(f)
}

// learn takes facts in and passes on those that are news. It returns the first error.
func (m *Membership) learn(list ...Fact) (first error) {
	var news []Fact
	m.mu.Lock()
	for _, f := range list {
		fresh, err := m.facts.merge(f)
		if fresh {
			news = append(news, f)
		}
		if first == nil {
			first = err
		}
	}
	if len(news) > 0 {
		for s := range m.subs {
			if s.facts {
				s.ring()
			}
		}
	}
	m.mu.Unlock()
	if m.gossip != nil {
		for _, f := range news {
			m.gossip.spread(f)
		}
	}
	return first
}

// Fact returns the newest fact of a key.
func (m *Membership) Fact(key string) (Fact, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.facts[key]
	return f, ok
}

// Facts returns all facts in the order of their keys.
func (m *Membership) Facts() []Fact {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts.all()
}
