package raftengine

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
)

// catchUp is how a member that began without data finds out that it has everything it
// may ever have acknowledged. It knows not whether it is new or has lost a disk. What it
// acknowledged before, and what then counted as written by a majority, is at most what the
// first message of a master says is committed, if that master has committed something of
// its own term. When all of that is applied here, the member may vote.
type catchUp struct {
	mu           sync.Mutex
	term, target uint64
}

// Heard implements raftrpc.Host.
func (e *Engine) Heard(term, commitIndex uint64) {
	if e.Voice() || commitIndex == 0 {
		return
	}
	e.catchUp.mu.Lock()
	defer e.catchUp.mu.Unlock()
	if term > e.catchUp.term {
		e.catchUp.term, e.catchUp.target = term, commitIndex
	}
}

// Voice implements raftrpc.Host.
func (e *Engine) Voice() bool { return !e.meta.Load().Mute }

// checkVoice gives this member its voice when it has caught up.
func (e *Engine) checkVoice() {
	if e.Voice() || e.failure() != nil {
		return
	}
	e.catchUp.mu.Lock()
	term, target := e.catchUp.term, e.catchUp.target
	e.catchUp.mu.Unlock()
	if term == 0 || e.fsm.appliedTerm.Load() < term || e.fsm.applied.Load() < target {
		return
	}
	if err := e.speak(); err != nil {
		e.fail(err)
		return
	}
	e.opts.Logger.Info("this member has caught up and takes part in elections from now on", "applied", e.fsm.applied.Load())
}

// speak lets this member take part in elections, for good.
func (e *Engine) speak() error {
	return e.updateMeta(func(m *meta) { m.Mute, m.Started = false, true })
}

// Adopt implements raftrpc.Host.
func (e *Engine) Adopt(clusterID string) error { return e.SetClusterID(clusterID) }

// SetClusterID records which cluster this member is part of, when that is not known yet.
// It fails with InvalidConfig when another cluster is recorded.
func (e *Engine) SetClusterID(id string) error {
	if id == "" || len(id) > 255 {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the id of a cluster has 1 to 255 bytes"}
	}
	known := ""
	err := e.updateMeta(func(m *meta) {
		if m.ClusterID == "" {
			m.ClusterID = id
		}
		known = m.ClusterID
	})
	if err != nil {
		e.fail(err)
		return e.failure()
	}
	if known != id {
		return badFolder(e.dir, "it belongs to cluster %s, not to %s", known, id)
	}
	return nil
}

// Keepalive implements raftrpc.Host.
func (e *Engine) Keepalive(term uint64) bool {
	r := e.raftUp.Load()
	if r == nil || r.State() != raft.Follower || r.CurrentTerm() != term {
		return false
	}
	_, id := r.LeaderWithID()
	return id != ""
}

// Installing implements raftrpc.Host: a snapshot of this member's own must not be taken
// meanwhile, because Raft would then believe that its newest one is the older of the two.
func (e *Engine) Installing(ctx context.Context) (done func(), err error) {
	select {
	case e.snapping <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.stop:
		return nil, errClosed()
	}
	if err := e.failure(); err != nil {
		<-e.snapping
		return nil, err
	}
	e.snaps.setInstalling(true)
	return func() {
		e.snaps.setInstalling(false)
		<-e.snapping
	}, nil
}
