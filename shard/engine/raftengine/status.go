package raftengine

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Status implements engine.Engine.
func (e *Engine) Status() engine.Status {
	s := engine.Status{
		State: engine.Replica, Applied: e.fsm.applied.Load(), Logged: e.raft.LastIndex(), Committed: e.raft.CommitIndex(),
		SnapshotAt: e.snaps.newestIndex(), LogBytes: e.logged.Load(), Member: e.id(), Members: e.memberList(),
	}
	l := e.leadership()
	s.Master, s.Term = l.Master, l.Term
	switch {
	case l.Here:
		s.State = engine.Master
	case len(s.Members) == 0:
		s.State = engine.Starting
		s.Warning = "this member is not part of a group yet: it was neither bootstrapped nor added by a master"
	case !e.Voice():
		s.Warning = "this member started without data and has not caught up: it takes no part in elections"
	}
	s.InFlight, s.InFlightBytes = e.queue.inFlight()
	if d, what := e.hanging(); d > e.opts.HangTimeout {
		s.Warning = fmt.Sprintf("the disk hangs: writing to %s has taken %v so far", what, d.Round(time.Second))
	} else if e.wal != nil {
		if low := e.wal.Status().LowSpace; low != nil {
			s.Warning = "the disk is full: the log goes on until its current file is full: " + low.Error()
		}
	}
	if e.closing.Load() {
		s.State = engine.Closed
	}
	if f := e.failed.Load(); f != nil {
		s.State, s.Err = engine.Failed, f
	}
	return s
}

// memberList returns the members, with what the master knows of them.
func (e *Engine) memberList() []engine.Member {
	servers := e.servers()
	m := e.lead.master.Load()
	list := make([]engine.Member, len(servers))
	for i, s := range servers {
		list[i] = engine.Member{ID: string(s.ID), Address: string(s.Address), Voter: s.Suffrage == raft.Voter}
		if m == nil || string(s.ID) == e.id() || e.opts.Transport == nil {
			continue
		}
		match, contact := e.opts.Transport.Progress(string(s.ID), m.term)
		list[i].Acknowledged, list[i].Silent = match, -1
		if !contact.IsZero() {
			list[i].Silent = max(time.Since(contact), 0)
		}
	}
	return list
}
