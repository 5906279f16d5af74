package raftengine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// change holds off other changes of the members while one is at work.
func (e *Engine) change(ctx context.Context) (done func(), err error) {
	if e.opts.Transport == nil {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "this node runs by itself; give it a cluster configuration to make it a member of a group"}
	}
	select {
	case e.members <- struct{}{}:
		return func() { <-e.members }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.stop:
		return nil, errClosed()
	}
}

// asMaster runs one change of the members on the master.
func (e *Engine) asMaster(ctx context.Context, do func(*mastership) error) error {
	done, err := e.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := e.failure(); err != nil {
		return err
	}
	m := e.lead.master.Load()
	if m == nil {
		return e.notMaster()
	}
	return do(m)
}

// await waits for a future of Raft, whose errors it turns into those of the store.
func (e *Engine) await(ctx context.Context, f raft.Future) error {
	outcome := make(chan error, 1)
	go func() { outcome <- f.Error() }()
	var err error
	select {
	case err = <-outcome:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch {
	case err == nil:
		return nil
	case e.failure() != nil:
		return e.failure()
	case errors.Is(err, raft.ErrNotLeader):
		return e.notMaster()
	case errors.Is(err, raft.ErrLeadershipLost):
		return &shard.Error{Code: shard.OutcomeUnknown, Reason: "mastership was lost before the other members knew of the change", Master: e.knownMaster()}
	case errors.Is(err, raft.ErrRaftShutdown):
		return errClosed()
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return &shard.Error{Code: shard.Overloaded, Reason: "another change of the members is under way", Err: err}
	}
	return &shard.Error{Code: shard.InvalidConfig, Err: err}
}

// enqueue is how long a change may wait for the one before it.
func enqueue(ctx context.Context) time.Duration {
	const most = 30 * time.Second
	if at, ok := ctx.Deadline(); ok {
		return max(min(time.Until(at), most), time.Millisecond)
	}
	return most
}

func (e *Engine) servers() []raft.Server { return e.raft.GetConfiguration().Configuration().Servers }

// Bootstrap implements engine.Group.
func (e *Engine) Bootstrap(ctx context.Context, members []engine.Member) error {
	self := -1
	ids := make(map[string]bool, len(members))
	for i, m := range members {
		if m.ID == "" || m.Address == "" || ids[m.ID] {
			return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("member %q at %q: ids and addresses must be given and different", m.ID, m.Address)}
		}
		ids[m.ID] = true
		if m.ID == e.id() {
			self = i
		}
	}
	switch {
	case self < 0:
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("this member, %s, is not among the members of the new group", e.id())}
	case !members[self].Voter:
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the first member of a group must have a vote"}
	case len(members) > engine.MaxMembers:
		return tooMany()
	}
	done, err := e.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, s := range e.servers() {
		if !ids[string(s.ID)] {
			return &shard.Error{Code: shard.NonEmpty, Reason: fmt.Sprintf("the group has a member %s already", s.ID)}
		}
	}
	if !e.bootstrapped() {
		if err := e.bootstrapSelf(ctx, members[self]); err != nil {
			return err
		}
	}
	m, err := e.awaitMastership(ctx)
	if err != nil {
		return err
	}
	for i, member := range members {
		if i == self {
			continue
		}
		if err := e.addMember(ctx, m, member); err != nil {
			return fmt.Errorf("the group exists; member %s at %s was not added: %w", member.ID, member.Address, err)
		}
	}
	return nil
}

// bootstrapSelf makes this member a group of one.
func (e *Engine) bootstrapSelf(ctx context.Context, self engine.Member) error {
	if e.ClusterID() == "" {
		if err := e.SetClusterID(uuid.NewString()); err != nil {
			return err
		}
	}
	// It is the first of its group, so there is nothing that it may have forgotten.
	if err := e.updateMeta(func(m *meta) { m.Mute = false }); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	err := e.raft.BootstrapCluster(groupOfOne(self.ID, raft.ServerAddress(self.Address))).Error()
	if errors.Is(err, raft.ErrCantBootstrap) {
		return &shard.Error{Code: shard.NonEmpty, Reason: "this member was part of a group before, or is being added to one"}
	}
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.speak(); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	e.publishSoon()
	return e.electNow()
}

func (e *Engine) publishSoon() { e.lead.poke() }

// awaitMastership waits until this member is the master.
func (e *Engine) awaitMastership(ctx context.Context) (*mastership, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if m := e.lead.master.Load(); m != nil {
			return m, nil
		}
		if err := e.failure(); err != nil {
			return nil, err
		}
		if e.knownMaster() != "" {
			return nil, e.notMaster()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.stop:
			return nil, errClosed()
		}
	}
}

func tooMany() error {
	return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("a group has at most %d members", engine.MaxMembers)}
}

// AddMember implements engine.Group.
func (e *Engine) AddMember(ctx context.Context, m engine.Member) error {
	if m.ID == "" || m.Address == "" || len(m.ID) > 255 || len(m.Address) > 255 {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the id and the address of a member have 1 to 255 bytes"}
	}
	return e.asMaster(ctx, func(at *mastership) error { return e.addMember(ctx, at, m) })
}

func (e *Engine) addMember(ctx context.Context, at *mastership, m engine.Member) error {
	id, address := raft.ServerID(m.ID), raft.ServerAddress(m.Address)
	servers := e.servers()
	var now *raft.Server
	for i := range servers {
		if servers[i].ID == id {
			now = &servers[i]
		} else if servers[i].Address == address {
			return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("member %s has the address %s already", servers[i].ID, address)}
		}
	}
	if now == nil && len(servers) >= engine.MaxMembers {
		return tooMany()
	}
	votes := now != nil && now.Suffrage == raft.Voter
	switch {
	case now != nil && now.Address == address && votes == m.Voter:
		return nil
	case votes && !m.Voter:
		if string(id) == e.id() {
			return &shard.Error{Code: shard.InvalidConfig, Reason: "the master cannot give up its own vote; hand over first"}
		}
		if err := e.await(ctx, e.raft.DemoteVoter(id, 0, enqueue(ctx))); err != nil || now.Address == address {
			return err
		}
		return e.await(ctx, e.raft.AddNonvoter(id, address, 0, enqueue(ctx)))
	case votes:
		return e.await(ctx, e.raft.AddVoter(id, address, 0, enqueue(ctx))) // another address
	}
	if now == nil || now.Address != address {
		if err := e.await(ctx, e.raft.AddNonvoter(id, address, 0, enqueue(ctx))); err != nil {
			return err
		}
	}
	if !m.Voter {
		return nil
	}
	if err := e.awaitProgress(ctx, at, m.ID, e.raft.LastIndex()); err != nil {
		return err
	}
	return e.await(ctx, e.raft.AddVoter(id, address, 0, enqueue(ctx)))
}

// awaitProgress waits until a member has the log up to index, and says that it takes part in
// elections: a vote of one that does not would only count against the group.
func (e *Engine) awaitProgress(ctx context.Context, at *mastership, id string, index uint64) error {
	from := e.opts.Transport.Stamp()
	for {
		changed := e.opts.Transport.Changed()
		match, contact := e.opts.Transport.Progress(id, at.term)
		voice := e.opts.Transport.Confirmed(id, at.term) > from
		if match >= index && voice {
			return nil
		}
		select {
		case <-changed:
		case <-at.lost:
			return e.notMaster()
		case <-e.stop:
			return errClosed()
		case <-ctx.Done():
			if contact.IsZero() {
				return &shard.Error{Code: shard.UnreachableReplica, Reason: fmt.Sprintf("member %s did not answer", id), Err: ctx.Err()}
			}
			if match >= index {
				return &shard.Error{Code: shard.OutOfSync, Reason: fmt.Sprintf("member %s has the log, and does not take part in elections yet", id), Err: ctx.Err()}
			}
			return &shard.Error{Code: shard.OutOfSync, Reason: fmt.Sprintf("member %s has the log up to %d of %d", id, match, index), Err: ctx.Err()}
		}
	}
}

// RemoveMember implements engine.Group.
func (e *Engine) RemoveMember(ctx context.Context, id string) error {
	return e.asMaster(ctx, func(m *mastership) error {
		found, otherVoters := false, 0
		for _, s := range e.servers() {
			if string(s.ID) == id {
				found = true
			} else if s.Suffrage == raft.Voter {
				otherVoters++
			}
		}
		if !found {
			return nil
		}
		if otherVoters == 0 {
			return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("member %s is the last one with a vote", id)}
		}
		if id == e.id() {
			// So nobody has to notice first that there is no master.
			err := e.handOver(ctx, m, "")
			if err == nil || e.lead.master.Load() != m {
				return e.notMaster()
			}
			if ctx.Err() != nil {
				return err
			}
			e.opts.Logger.Warn("the master removes itself, because no other member takes over", "error", err)
		}
		return e.await(ctx, e.raft.RemoveServer(raft.ServerID(id), 0, enqueue(ctx)))
	})
}

// Bounds of a hand-over: how often it is tried, and how long it waits for what is under
// way.
const (
	handOverTries = 3
	settleTimeout = 5 * time.Second
)

// HandOver implements engine.Group.
func (e *Engine) HandOver(ctx context.Context, id string) error {
	return e.asMaster(ctx, func(m *mastership) error { return e.handOver(ctx, m, id) })
}

func (e *Engine) handOver(ctx context.Context, m *mastership, id string) error {
	if id == e.id() {
		return nil
	}
	target, err := e.successor(ctx, m, id)
	if err != nil || target == nil {
		return err
	}
	// Raft refuses commands during a hand-over; so it is given none.
	settled := e.queue.pause()
	defer e.queue.resume()
	wait, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	select {
	case <-settled:
	case <-m.lost:
		return nil
	case <-wait.Done():
		return &shard.Error{Code: shard.OutOfSync, Reason: "what was under way to the other members did not end in time", Err: wait.Err()}
	}
	for range handOverTries {
		if err = e.await(ctx, e.raft.LeadershipTransferToServer(target.ID, target.Address)); err == nil {
			return e.awaitSuccessor(ctx, m)
		}
		if ctx.Err() != nil || e.lead.master.Load() != m {
			break
		}
	}
	if e.lead.master.Load() != m {
		return e.awaitSuccessor(ctx, m)
	}
	return &shard.Error{Code: shard.UnreachableReplica, Reason: "the other member did not take over", Err: err}
}

// successor waits until the member id, or any when id is empty, answers and takes part in
// elections, and returns the one that has most of the log. It returns nothing when this
// member is not the master any more.
func (e *Engine) successor(ctx context.Context, m *mastership, id string) (*raft.Server, error) {
	t := e.opts.Transport
	from := t.Stamp()
	patience := time.NewTimer(settleTimeout)
	defer patience.Stop()
	for {
		changed := t.Changed()
		var best *raft.Server
		var most uint64
		voters := 0
		for _, s := range e.servers() {
			if s.Suffrage != raft.Voter || string(s.ID) == e.id() || id != "" && string(s.ID) != id {
				continue
			}
			voters++
			match, _ := t.Progress(string(s.ID), m.term)
			if t.Confirmed(string(s.ID), m.term) > from && (best == nil || match > most) {
				best, most = &s, match
			}
		}
		switch {
		case voters == 0 && id != "":
			return nil, &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("there is no other member %s with a vote", id)}
		case voters == 0:
			return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "there is no other member with a vote"}
		case best != nil:
			return best, nil
		}
		select {
		case <-changed:
		case <-m.lost:
			return nil, nil
		case <-patience.C:
			return nil, &shard.Error{Code: shard.UnreachableReplica, Reason: "no other member answers that may become the master"}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.stop:
			return nil, errClosed()
		}
	}
}

// awaitSuccessor waits until this member knows the new master. It is enough that it is not
// the master any more.
func (e *Engine) awaitSuccessor(ctx context.Context, m *mastership) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	patience := time.NewTimer(2 * e.opts.ElectionTimeout)
	defer patience.Stop()
	for e.lead.master.Load() == m || e.knownMaster() == "" {
		select {
		case <-tick.C:
		case <-patience.C:
			if e.lead.master.Load() == m {
				return &shard.Error{Code: shard.UnreachableReplica, Reason: "the other member did not take over"}
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-e.stop:
			return errClosed()
		}
	}
	return nil
}

// rename makes the one member of a group of one known by the id and address of its
// transport: the folder was made by a node that ran by itself.
func (e *Engine) rename(at position) error {
	members, _, err := loadConfig(e.rows.Load().db)
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	last, err := e.log.LastIndex()
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	term := at.term
	for i := at.index + 1; i <= last; i++ {
		var l raft.Log
		if err := e.log.GetLog(i, &l); err != nil {
			return &shard.Error{Code: shard.StoreFailed, Err: err}
		}
		if l.Type == raft.LogConfiguration {
			members = raft.DecodeConfiguration(l.Data)
		}
		term = l.Term
	}
	id, old := raft.ServerID(e.opts.Transport.ID()), e.meta.Load().MemberID
	if len(members.Servers) != 1 || string(members.Servers[0].ID) != old && members.Servers[0].ID != id {
		return badFolder(e.dir, "it belongs to member %s of its group, not to %s", old, id)
	}
	if members.Servers[0].ID != id {
		entry := raft.Log{Index: last + 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(groupOfOne(string(id), e.opts.Transport.LocalAddr())), AppendedAt: e.opts.Now()}
		if err := errors.Join(e.log.StoreLog(&entry), e.log.Sync()); err != nil {
			return &shard.Error{Code: shard.StoreFailed, Err: err}
		}
		e.opts.Logger.Info("the node that ran by itself becomes a member of a group", "member", id, "was", old)
	}
	if err := e.updateMeta(func(m *meta) { m.MemberID = string(id) }); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	return nil
}
