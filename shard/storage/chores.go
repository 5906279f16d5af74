package storage

import (
	"context"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Times of chores.
const (
	choreEvery = 500 * time.Millisecond
	// heardTime is how long a RECEIVING bucket waits for its source before it is asked.
	heardTime = 3 * time.Second
	// collectAfter is how long a SENT bucket keeps its rows, forgetAfter how long it is
	// remembered where it went.
	collectAfter = 500 * time.Millisecond
	forgetAfter  = time.Minute
	// choreTime bounds one message of a chore.
	choreTime = 3 * time.Second
)

// chores is what a master remembers of rows that no transfer looks after. It is only in
// memory: a new master begins anew, which costs time alone.
type chores struct {
	wake chan struct{}
	// arrivals are of RECEIVING buckets.
	arrivals arrivals

	mu sync.Mutex
	// heardAt is when something came for a RECEIVING bucket.
	heardAt map[shard.BucketID]time.Time
	// tookAt is when the destination said that it has a SENT bucket.
	tookAt map[shard.BucketID]tookNote
	// goneAt is when a bucket was first seen ABSENT with a destination.
	goneAt map[shard.BucketID]time.Time
	warned time.Time
}

type tookNote struct {
	transfer uint64
	at       time.Time
}

func (c *chores) init() {
	c.wake = make(chan struct{}, 1)
	c.heardAt, c.tookAt, c.goneAt = map[shard.BucketID]time.Time{}, map[shard.BucketID]tookNote{}, map[shard.BucketID]time.Time{}
}

func (c *chores) heard(items []stepItem) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range items {
		c.heardAt[it.bucket] = now
	}
}

func (c *chores) took(b shard.BucketID, transfer uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tookAt[b].transfer != transfer {
		c.tookAt[b] = tookNote{transfer, time.Now()}
	}
}

// wake makes the chores run now.
func (s *Storage) wake() {
	select {
	case s.chores.wake <- struct{}{}:
	default:
	}
}

// runChores is a goroutine: it looks at the rows of moves while this member is master.
func (s *Storage) runChores(ctx context.Context) {
	t := time.NewTicker(choreEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.chores.wake:
		}
		if s.Status().State == engine.Master {
			s.lookAfterRows(ctx)
		}
	}
}

// choreKey is what rows have in common that can be treated together.
type choreKey struct {
	chore shard.Chore
	peer  string
}

// lookAfterRows does what a master owes to the rows of moves.
func (s *Storage) lookAfterRows(ctx context.Context) {
	lists := map[choreKey][]stepItem{}
	now := time.Now()
	rows := s.table.special()
	s.chores.mu.Lock()
	for b, row := range rows {
		live := false
		switch {
		case row.State == shard.Receiving:
			live = now.Sub(s.chores.heardAt[b]) < heardTime
		case row.Moving():
			live = s.captures.works(b, row.Transfer)
		}
		chore := row.Chore(live)
		switch chore {
		case shard.ChoreNone:
			continue
		case shard.ChoreForget:
			if s.chores.goneAt[b].IsZero() {
				s.chores.goneAt[b] = now
			}
			if now.Sub(s.chores.goneAt[b]) < forgetAfter {
				continue
			}
			delete(s.chores.goneAt, b)
		}
		key := choreKey{chore, row.Peer}
		if chore == shard.ChoreDelete || chore == shard.ChoreForget {
			key.peer = ""
		}
		if len(lists[key]) < maxList {
			lists[key] = append(lists[key], stepItem{bucket: b, transfer: row.Transfer})
		}
	}
	for b := range s.chores.heardAt {
		if rows[b].State != shard.Receiving {
			delete(s.chores.heardAt, b)
		}
	}
	for b, n := range s.chores.tookAt {
		if rows[b].State != shard.Sent || rows[b].Transfer != n.transfer {
			delete(s.chores.tookAt, b)
		}
	}
	s.chores.mu.Unlock()
	s.chores.arrivals.forget(func(b shard.BucketID) bool { return s.table.load(b).state() == shard.Receiving })
	// Each peer has its own goroutine: one that does not answer holds up no other.
	var group sync.WaitGroup
	for key, items := range lists {
		group.Go(func() {
			if err := s.chore(ctx, key, items); err != nil && ctx.Err() == nil {
				s.warn(key, len(items), err)
			}
		})
	}
	group.Wait()
}

// warn reports trouble with chores, at most every ten seconds.
func (s *Storage) warn(key choreKey, n int, err error) {
	s.chores.mu.Lock()
	defer s.chores.mu.Unlock()
	if now := time.Now(); now.Sub(s.chores.warned) > 10*time.Second {
		s.chores.warned = now
		s.opts.Logger.Warn("moves wait for another replica set", "replica_set", s.opts.ReplicaSet, "peer", key.peer, "what", key.chore.String(), "buckets", n, "err", err)
	}
}

func (s *Storage) chore(ctx context.Context, key choreKey, items []stepItem) error {
	ctx, cancel := context.WithTimeout(ctx, 2*choreTime)
	defer cancel()
	switch key.chore {
	case shard.ChoreAbort:
		if _, err := s.propose(ctx, step{kind: shard.EventAbort, items: items}); err != nil {
			return err
		}
		// If this gets lost the destination asks.
		_, err := s.deliverItems(ctx, v1.TransferKind_TRANSFER_KIND_DROP, key.peer, items)
		return err
	case shard.ChoreCommit:
		return s.choreCommit(ctx, key.peer, items)
	case shard.ChoreAsk:
		return s.choreAsk(ctx, key.peer, items)
	case shard.ChoreDelete:
		_, err := s.propose(ctx, step{kind: shard.EventDeleted, items: items})
		return err
	case shard.ChoreForget:
		_, err := s.propose(ctx, step{kind: shard.EventForget, items: items})
		return err
	}
	return nil
}

func (s *Storage) deliverItems(ctx context.Context, kind v1.TransferKind, to string, items []stepItem) (*v1.TransferResponse, error) {
	if s.opts.Link == nil {
		return nil, &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: to, Reason: "this storage has no way to other replica sets"}
	}
	req := s.message(kind, to)
	for _, it := range items {
		req.Items = append(req.Items, &v1.TransferRequest_Item{Bucket: uint32(it.bucket), Transfer: it.transfer})
	}
	return s.deliver(ctx, req, choreTime, nil)
}

// choreCommit tells a destination that buckets are its own, until it answers; and collects
// them once they are old enough.
func (s *Storage) choreCommit(ctx context.Context, peer string, items []stepItem) error {
	var tell, collect []stepItem
	s.chores.mu.Lock()
	for _, it := range items {
		switch n := s.chores.tookAt[it.bucket]; {
		case n.transfer != it.transfer:
			tell = append(tell, it)
		case time.Since(n.at) >= collectAfter:
			collect = append(collect, it)
		}
	}
	s.chores.mu.Unlock()
	if len(collect) > 0 {
		if _, err := s.propose(ctx, step{kind: shard.EventCollect, items: collect}); err != nil {
			return err
		}
		s.wake()
	}
	if len(tell) == 0 {
		return nil
	}
	resp, err := s.deliverItems(ctx, v1.TransferKind_TRANSFER_KIND_COMMIT, peer, tell)
	if err != nil {
		return err
	}
	for i, it := range tell {
		r := resp.GetReplies()[i]
		if r.GetError() != nil {
			err = replyError(it.bucket, peer, r)
			continue
		}
		ev, do, bad := s.table.row(it.bucket).OnReply(it.bucket, it.transfer, reply(r))
		if bad != nil {
			err = bad
		} else if do && ev.Kind == shard.EventCollect {
			s.chores.took(it.bucket, it.transfer)
		}
	}
	return err
}

// choreAsk asks what became of transfers whose source has fallen silent.
func (s *Storage) choreAsk(ctx context.Context, source string, items []stepItem) error {
	resp, err := s.deliverItems(ctx, v1.TransferKind_TRANSFER_KIND_ASK, source, items)
	if err != nil {
		return err
	}
	var unknown []stepItem
	events := map[shard.EventKind][]stepItem{}
	for i, it := range items {
		v := shard.Verdict(resp.GetReplies()[i].GetVerdict())
		if ev, do := shard.OnVerdict(it.bucket, it.transfer, v); do {
			events[ev.Kind] = append(events[ev.Kind], it)
		} else if v == shard.VerdictUnknown {
			unknown = append(unknown, it)
		}
	}
	if len(unknown) > 0 {
		for _, other := range s.opts.Link.ReplicaSets() {
			if other == source || other == s.opts.ReplicaSet {
				continue
			}
			resp, askErr := s.deliverItems(ctx, v1.TransferKind_TRANSFER_KIND_ASK, other, unknown)
			if askErr != nil {
				err = askErr
				continue
			}
			for i, it := range unknown {
				if shard.Verdict(resp.GetReplies()[i].GetVerdict()) == shard.VerdictOver {
					events[shard.EventDrop] = append(events[shard.EventDrop], it)
				}
			}
		}
		s.opts.Logger.Error("buckets are RECEIVING and their source has not heard of it: look at it before anything is deleted", "replica_set", s.opts.ReplicaSet, "source", source, "buckets", len(unknown))
	}
	for kind, list := range events {
		if _, err := s.propose(ctx, step{kind: kind, items: list}); err != nil {
			return err
		}
	}
	return err
}
