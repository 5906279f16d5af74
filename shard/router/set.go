package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// replicaSet is a replica set and what is known of it.
type replicaSet struct {
	name string
	// whole is the storage of a replica set that has its one member in this process.
	whole storagerpc.Storage
	// master is who is thought to be master; nil when nobody is known to be.
	master  atomic.Pointer[member]
	members atomic.Pointer[[]*member]
	// news rings when the master or a member's condition has changed; seq counts it.
	news bell
	seq  atomic.Uint64
	// any rings too, with those of the other sets; see Router.Changed.
	any *bell

	mu    sync.Mutex
	term  uint64 // of the master
	facts uint64 // what the master says last

	all   *balance.Balancer
	tiers atomic.Pointer[[]*balance.Balancer] // nearer ones first
}

func newBalancer(name string) *balance.Balancer {
	b, err := balance.New(balance.Config{
		Name: name, Accrual: balance.DefaultFailureAccrual(), FailFast: &balance.FailFast{},
		OnAdd:    func(n *balance.Node) { memberOf(n).addNode(n) },
		OnRemove: func(n *balance.Node) { memberOf(n).removeNode(n) },
	})
	if err != nil {
		panic(err) // the configuration is ours
	}
	return b
}

func memberOf(n *balance.Node) *member {
	m, ok := n.Value().(*member)
	if !ok {
		panic(fmt.Sprintf("router: a node has the value %T", n.Value()))
	}
	return m
}

func newSet(name string, any *bell) *replicaSet {
	s := &replicaSet{name: name, any: any, all: newBalancer(name)}
	s.members.Store(new([]*member))
	s.tiers.Store(new([]*balance.Balancer))
	return s
}

// setMembers replaces the members. distance says how far each one's zone is.
func (s *replicaSet) setMembers(members []*member, distance func(*member) int) {
	s.members.Store(&members)
	endpoint := func(m *member) balance.Endpoint {
		return balance.Endpoint{Address: m.ID + "@" + m.Address, Value: m}
	}
	var all []balance.Endpoint
	near := map[int][]balance.Endpoint{}
	for _, m := range members {
		all = append(all, endpoint(m))
		d := distance(m)
		near[d] = append(near[d], endpoint(m))
	}
	update := func(b *balance.Balancer, e []balance.Endpoint) {
		if err := b.Update(e); err != nil {
			panic(fmt.Sprintf("router: the members of %s: %v", s.name, err)) // their ids are unique
		}
	}
	update(s.all, all)
	var distances []int
	for d := range near {
		distances = append(distances, d)
	}
	slices.SortFunc(distances, cmp.Compare)
	old := *s.tiers.Load()
	tiers := make([]*balance.Balancer, len(distances))
	for i, d := range distances {
		tiers[i] = newBalancer(fmt.Sprintf("%s/%d", s.name, d))
		update(tiers[i], near[d])
	}
	s.tiers.Store(&tiers)
	for _, b := range old {
		update(b, nil)
		b.Close()
	}
	for _, m := range members {
		m.showNodes()
	}
	s.mu.Lock()
	was := s.master.Load()
	if was != nil && !slices.Contains(members, was) {
		was = s.member(was.ID)
	}
	s.master.Store(s.orOnly(was))
	s.mu.Unlock()
	s.changed()
}

func (s *replicaSet) close() {
	for _, b := range *s.tiers.Load() {
		b.Close()
	}
	s.all.Close()
}

// changed wakes those who wait for the set.
func (s *replicaSet) changed() {
	s.seq.Add(1)
	s.news.ring()
	s.any.ring()
}

// factsAre notes what the master says of the facts of the set.
func (s *replicaSet) factsAre(sum uint64) {
	s.mu.Lock()
	news := s.facts != sum
	s.facts = sum
	s.mu.Unlock()
	if news {
		s.any.ring()
	}
}

// member returns a member by its id, or nil.
func (s *replicaSet) member(id string) *member {
	for _, m := range *s.members.Load() {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// heard notes what a member says about who is master.
func (s *replicaSet) heard(m *member, resp *v1.DiscoverResponse) {
	news := m.setUp(true, nil)
	s.mu.Lock()
	was := s.master.Load()
	next := was
	switch master, term := resp.GetMaster(), resp.GetTerm(); {
	case master == m.ID:
		if term >= s.term {
			next, s.term = m, term
		}
	case master != "" && term > s.term:
		if known := s.member(master); known != nil {
			next, s.term = known, term
		}
	case was == m && term >= s.term:
		next = s.member(master) // nil when it knows none
	}
	next = s.orOnly(next)
	if next != was {
		s.master.Store(next)
	}
	s.mu.Unlock()
	if news || next != was {
		s.changed()
	}
}

// hint notes that m said it is not master and who is, and reports whether that was not known
// yet: then it is worth to try at once.
func (s *replicaSet) hint(m *member, master string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.master.Load(); now != m {
		return now != nil // found meanwhile
	}
	next := s.member(master)
	if next == m {
		next = nil // it does not know what it says
	}
	s.master.Store(s.orOnly(next))
	return next != nil
}

// orOnly is m or, when that is nil, the only member, if there is one: who else.
func (s *replicaSet) orOnly(m *member) *member {
	if members := *s.members.Load(); m == nil && len(members) == 1 {
		return members[0]
	}
	return m
}

// lost notes that a member's discovery stream has broken.
func (s *replicaSet) lost(m *member, why error) {
	if m.setUp(false, why) {
		s.changed()
	}
}

// noMaster is the error when there is no master to ask.
func (s *replicaSet) noMaster(b shard.BucketID) error {
	var last error
	for _, m := range *s.members.Load() {
		up, why := m.isUp()
		if up {
			return &shard.Error{Code: shard.MissingMaster, Bucket: b, ReplicaSet: s.name,
				Reason: "its members answer, but none of them is master; more than half of them must be alive and reach each other"}
		}
		if why != nil {
			last = why
		}
	}
	return &shard.Error{Code: shard.UnreachableReplicaSet, Bucket: b, ReplicaSet: s.name, Reason: "look at its nodes and the network", Err: last}
}

// unreachableMaster is the error when the master could not be asked. Nothing was done.
func (s *replicaSet) unreachableMaster(b shard.BucketID, m *member, err error) error {
	return &shard.Error{Code: shard.UnreachableMaster, Bucket: b, ReplicaSet: s.name, Master: m.ID, Reason: "nothing was done", Err: err}
}

// pick chooses a member for a read among those that have not been tried; nil when there is none
// left. The result must be Done.
func (s *replicaSet) pick(mode Mode, tried []*balance.Node) (balance.Pick, bool) {
	if mode == CallBRO || mode == CallBRE {
		return s.pickFrom(s.all, mode, tried, false)
	}
	// First the healthy ones, nearer ones first; then whoever there is.
	for _, any := range [...]bool{false, true} {
		for _, b := range *s.tiers.Load() {
			if p, ok := s.pickFrom(b, mode, tried, !any); ok {
				return p, true
			}
		}
	}
	return balance.Pick{}, false
}

func (s *replicaSet) pickFrom(b *balance.Balancer, mode Mode, tried []*balance.Node, healthy bool) (balance.Pick, bool) {
	if mode != CallBRO {
		if m := s.master.Load(); m != nil {
			tried = m.appendNodes(tried)
		}
	}
	p, err := b.PickAvoiding(tried)
	if err != nil {
		return p, false
	}
	if n := p.Node(); slices.Contains(tried, n) || healthy && n.Status() != balance.Open {
		p.Done(balance.Ignored)
		return p, false
	}
	return p, true
}

// appendNodes appends the member's nodes, of all balancers, to nodes, without changing what
// it shares with others.
func (m *member) appendNodes(nodes []*balance.Node) []*balance.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(slices.Clip(nodes), m.nodes...)
}

// verdict is what a call says about the health of the member that got it.
func verdict(ctx context.Context, err error) balance.Outcome {
	switch gone, _ := unreachable(err); {
	case err == nil:
		return balance.Success
	case ctx.Err() != nil:
		return balance.Ignored
	case gone:
		return balance.Unreachable
	}
	var e *shard.Error
	if errors.As(err, &e) {
		switch e.Code {
		case shard.Overloaded, shard.StorageIsDisabled, shard.StoreClosed:
			return balance.Refused
		case shard.StoreFailed:
			return balance.Failure
		}
	}
	return balance.Success
}
