package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

const (
	// Pauses between tries to listen to a member.
	firstRewatch = 50 * time.Millisecond
	lastRewatch  = 500 * time.Millisecond
	// retireTime is how long calls in flight to a member that is no longer one have to end.
	retireTime = 10 * time.Second
	// sweepTime bounds how long a sweep waits for a replica set.
	sweepTime = 2 * time.Second
	// here is the distance of a member in this process: nothing is nearer.
	here = math.MinInt
)

// follow takes over what the topology says.
func (r *Router) follow(sets []Set) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return nil
	}
	old := r.all()
	var now []*replicaSet
	for _, s := range old {
		if s.whole != nil {
			now = append(now, s)
		}
	}
	if err := checkSets(sets, now); err != nil {
		return err
	}
	for _, t := range sets {
		i := slices.IndexFunc(old, func(s *replicaSet) bool { return s.name == t.Name })
		s := (*replicaSet)(nil)
		if i >= 0 {
			s = old[i]
		} else {
			s = newSet(t.Name, &r.changed)
		}
		now = append(now, s)
		if err := r.followMembers(s, t.Members); err != nil {
			// What has come to be is not forgotten.
			for _, s := range old {
				if !slices.Contains(now, s) {
					now = append(now, s)
				}
			}
			r.sets.Store(&now)
			return err
		}
	}
	r.sets.Store(&now)
	for _, s := range old {
		if !slices.Contains(now, s) {
			r.opts.Logger.Info("the replica set is no longer in the topology", "replicaset", s.name)
			for b := range r.routes {
				r.routes[b].CompareAndSwap(s, nil)
			}
			for _, m := range *s.members.Load() {
				r.drop(m)
			}
			s.close()
		}
	}
	r.changed.ring()
	return nil
}

// checkSets checks that names and ids are unique, also with those that are whole in this process.
func checkSets(sets []Set, whole []*replicaSet) error {
	names := map[string]bool{}
	for _, s := range whole {
		names[s.name] = true
	}
	for _, s := range sets {
		if s.Name == "" || names[s.Name] {
			return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.Name, Reason: "the name stands twice, or is empty"}
		}
		names[s.Name] = true
		ids := map[string]bool{}
		for _, m := range s.Members {
			if m.ID == "" || ids[m.ID] {
				return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.Name, Reason: fmt.Sprintf("the member id %q stands twice, or is empty", m.ID)}
			}
			ids[m.ID] = true
		}
	}
	return nil
}

// followMembers makes a replica set have these members. r.mu must be held.
func (r *Router) followMembers(s *replicaSet, members []Member) error {
	old := *s.members.Load()
	var now []*member
	var fresh []*member
	for _, want := range members {
		i := slices.IndexFunc(old, func(m *member) bool { return m.Member == want })
		if i >= 0 {
			now = append(now, old[i])
			continue
		}
		m, err := r.newMember(s, want)
		if err != nil {
			for _, m := range fresh {
				_ = m.link.close()
			}
			return err
		}
		now = append(now, m)
		fresh = append(fresh, m)
	}
	if len(fresh) == 0 && len(now) == len(old) {
		return nil
	}
	s.setMembers(now, func(m *member) int {
		if m.local != nil {
			return here
		}
		return r.opts.ZoneDistance(r.opts.Zone, m.Zone)
	})
	for _, m := range old {
		if !slices.Contains(now, m) {
			r.drop(m)
		}
	}
	for _, m := range fresh {
		ctx, cancel := context.WithCancel(r.ctx)
		r.watchers[m] = cancel
		r.wg.Add(1)
		go r.watch(ctx, s, m)
	}
	return nil
}

func (r *Router) newMember(s *replicaSet, want Member) (*member, error) {
	if l := r.opts.Local; l != nil && l.Storage().ReplicaSet() == s.name && l.Member() == want.ID {
		return &member{Member: want, link: direct{l}, local: l.Storage()}, nil
	}
	c, err := storagerpc.NewClient(want.Address, storagerpc.ClientOptions{
		ClusterID: r.opts.ClusterID, BucketCount: r.count, ReplicaSet: s.name,
		DialOptions: r.opts.Dial, Secure: r.opts.Secure,
		MaxCalls: r.opts.MaxCalls, MaxBytes: r.opts.MaxBytes,
		ConnectTimeout: r.opts.ConnectTimeout, Silence: r.opts.Silence,
	})
	if err != nil {
		return nil, err
	}
	return &member{Member: want, link: remote{c}}, nil
}

// drop ends what there is for a member. r.mu must be held.
func (r *Router) drop(m *member) {
	if stop := r.watchers[m]; stop != nil {
		stop()
		delete(r.watchers, m)
	}
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		ctx, cancel := context.WithTimeout(r.ctx, retireTime)
		defer cancel()
		_ = m.link.retire(ctx)
	}()
}

// followTopology follows the topology as it changes.
func (r *Router) followTopology(changed <-chan struct{}) {
	defer r.wg.Done()
	for changed != nil {
		select {
		case <-changed:
		case <-r.ctx.Done():
			return
		}
		var sets []Set
		sets, changed = r.opts.Topology.Sets()
		if err := r.follow(sets); err != nil {
			r.opts.Logger.Error("the topology cannot be used", "err", err)
		}
	}
}

// watch listens to a member.
func (r *Router) watch(ctx context.Context, s *replicaSet, m *member) {
	defer r.wg.Done()
	pause := firstRewatch
	for {
		err := m.link.watch(ctx, func(resp *v1.DiscoverResponse) error {
			if err := r.agrees(s, resp); err != nil {
				return err
			}
			pause = firstRewatch
			r.hear(s, m, resp)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		if up, _ := m.isUp(); up {
			r.opts.Logger.Warn("a member of a replica set does not answer", "replicaset", s.name, "member", m.ID, "address", m.Address, "err", err)
		} else if errors.Is(err, shard.InvalidConfig) && pause == firstRewatch {
			r.opts.Logger.Error("a member of a replica set cannot be used", "replicaset", s.name, "member", m.ID, "address", m.Address, "err", err)
		}
		s.lost(m, err)
		if m.local != nil {
			return // the node is stopping
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, lastRewatch)
	}
}

// agrees checks that a member is of this cluster. A server checks it too, but one that is made
// by the same mistake might not.
func (r *Router) agrees(s *replicaSet, resp *v1.DiscoverResponse) error {
	if n := resp.GetBucketCount(); n != r.count {
		return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.name, Reason: "it has another bucket_count than the router", Err: differ(r.count, n)}
	}
	if id := resp.GetClusterId(); id != "" && r.opts.ClusterID != "" && id != r.opts.ClusterID {
		return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.name, Reason: "it is of another cluster than the router", Err: differ(r.opts.ClusterID, id)}
	}
	return nil
}

// hear takes over what a member says: who is master and, from the master, which buckets are
// there.
func (r *Router) hear(s *replicaSet, m *member, resp *v1.DiscoverResponse) {
	s.heard(m, resp)
	if s.master.Load() != m {
		return
	}
	s.factsAre(resp.GetFacts())
	if resp.GetFull() || len(resp.GetRanges()) > 0 {
		r.place(s, resp)
	}
}

// place takes over which buckets a replica set has.
func (r *Router) place(s *replicaSet, resp *v1.DiscoverResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.all(), s) {
		return
	}
	if resp.GetFull() {
		// What is not named is not there.
		b := uint32(1)
		for _, g := range resp.GetRanges() {
			r.placeRange(s, b, min(g.GetFirst()-1, r.count), shard.Absent, "", false)
			b = max(b, g.GetLast()+1)
		}
		r.placeRange(s, b, r.count, shard.Absent, "", false)
	}
	for _, g := range resp.GetRanges() {
		if g.GetFirst() < 1 || g.GetLast() > r.count {
			continue
		}
		r.placeRange(s, g.GetFirst(), g.GetLast(), shard.State(g.GetState()), g.GetPeer(), !resp.GetFull())
	}
}

// placeRange notes the state of neighbouring buckets. changed says that it is new to the replica
// set; else it is news only if it is to the router.
func (r *Router) placeRange(s *replicaSet, first, last uint32, state shard.State, peer string, changed bool) {
	if first > last {
		return
	}
	to := (*replicaSet)(nil)
	owned := state.CanRead()
	switch {
	case owned:
		to = s
	case state != shard.Receiving && peer != "":
		to = r.set(peer)
	}
	for b := first; b <= last; b++ {
		was := r.routes[b].Load()
		next := was
		switch {
		case owned:
			next = s
		case state == shard.Receiving:
			if was == nil {
				next = s // whoever asks there is told to wait
			}
		case was == s:
			next = to
		}
		if next != was {
			r.routes[b].Store(next)
		}
		if next != was || changed {
			r.seqs[b].Add(1)
			r.waits.ring(shard.BucketID(b))
		}
	}
}

// moved notes that a replica set said it has not a bucket, and where it went, if it knows.
func (r *Router) moved(b shard.BucketID, s *replicaSet, destination string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var to *replicaSet
	if destination != s.name {
		to = r.set(destination)
	}
	if r.routes[b].CompareAndSwap(s, to) {
		r.seqs[b].Add(1)
	}
}

// sweep is the asking of all replica sets that callers share.
type sweep struct {
	mu  sync.Mutex
	now *sweeping // nil when there is none
	n   int       // how many there were
}

type sweeping struct {
	done            chan struct{}
	asked, answered int
}

// sweep asks the masters of all replica sets which buckets they have, and returns how many were
// asked and how many answered. Callers that come meanwhile share it.
func (r *Router) sweep(ctx context.Context) (asked, answered int) {
	r.sweeping.mu.Lock()
	w := r.sweeping.now
	if w == nil {
		w = &sweeping{done: make(chan struct{})}
		r.sweeping.now = w
		r.sweeping.n++
		r.mu.Lock()
		if r.ctx.Err() != nil {
			close(w.done)
		} else {
			r.wg.Add(1)
			go r.runSweep(w)
		}
		r.mu.Unlock()
	}
	r.sweeping.mu.Unlock()
	select {
	case <-w.done:
		return w.asked, w.answered
	case <-ctx.Done():
		return 0, 0
	}
}

func (r *Router) runSweep(w *sweeping) {
	defer r.wg.Done()
	ctx, cancel := context.WithTimeout(r.ctx, sweepTime)
	defer cancel()
	sets := r.all()
	answers := make(chan bool, len(sets))
	for _, s := range sets {
		go func() { answers <- r.ask(ctx, s) }()
	}
	w.asked = len(sets)
	for range sets {
		if <-answers {
			w.answered++
		}
	}
	r.sweeping.mu.Lock()
	r.sweeping.now = nil
	r.sweeping.mu.Unlock()
	close(w.done)
}

// ask asks a replica set's members at once for what they know, and reports whether its master
// has answered.
func (r *Router) ask(ctx context.Context, s *replicaSet) bool {
	if s.whole != nil {
		return true // it has been looked into
	}
	members := *s.members.Load()
	answers := make(chan bool, len(members))
	for _, m := range members {
		go func() {
			resp, err := m.link.discover(ctx)
			if err == nil {
				err = r.agrees(s, resp)
			}
			if err != nil {
				answers <- false
				return
			}
			r.hear(s, m, resp)
			answers <- resp.GetFull()
		}()
	}
	for range members {
		if <-answers {
			return true // the others are heard when they answer
		}
	}
	return false
}
