package storage

import (
	"context"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// maxRefTime bounds a reference, however late its deadline is. maxRefs bounds their number.
const (
	maxRefTime = 5 * time.Minute
	maxRefs    = 10_000
)

// refs are references of calls over all buckets, which hold moves back. A move that has
// begun goes on, and a reference waits for it; while one waits no move begins, so that
// neither can keep the other out for ever: references end with their deadlines.
type refs struct {
	mu      sync.Mutex
	held    map[string]time.Time
	waiting int
	moves   int
	idle    chan struct{} // closed when the last move ends
}

func (r *refs) expire(now time.Time) {
	for id, deadline := range r.held {
		if now.After(deadline) {
			delete(r.held, id)
		}
	}
}

// beginMove counts a move until end is called, or is refused.
func (r *refs) beginMove() (end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(time.Now())
	if n := len(r.held) + r.waiting; n > 0 {
		return nil, &shard.Error{Code: shard.StorageIsReferenced, Reason: "calls over all buckets are going on: try again"}
	}
	if r.moves == 0 {
		r.idle = make(chan struct{})
	}
	r.moves++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.moves--; r.moves == 0 {
			close(r.idle)
		}
	}, nil
}

// Ref takes a reference, or prolongs it, until the deadline, which counts for five minutes
// at most: no move to or from this replica set begins. It waits until those that have
// begun are over. STORAGE_REF_ADD when that takes too long or there are too many.
func (s *Storage) Ref(ctx context.Context, id string, deadline time.Time) error {
	r := &s.refs
	if latest := time.Now().Add(maxRefTime); deadline.After(latest) {
		deadline = latest
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = map[string]time.Time{}
	}
	r.expire(time.Now())
	if _, ok := r.held[id]; !ok && len(r.held)+r.waiting >= maxRefs {
		return &shard.Error{Code: shard.StorageRefAdd, ReplicaSet: s.opts.ReplicaSet, Reason: "there are too many"}
	}
	r.waiting++
	defer func() { r.waiting-- }()
	for r.moves > 0 {
		idle := r.idle
		r.mu.Unlock()
		select {
		case <-idle:
			r.mu.Lock()
		case <-ctx.Done():
			r.mu.Lock()
			return &shard.Error{Code: shard.StorageRefAdd, ReplicaSet: s.opts.ReplicaSet, Reason: "buckets are still moving", Err: ctx.Err()}
		}
	}
	if err := ctx.Err(); err != nil {
		return &shard.Error{Code: shard.StorageRefAdd, ReplicaSet: s.opts.ReplicaSet, Err: err}
	}
	r.held[id] = deadline
	return nil
}

// CheckRef returns nil while the reference holds, else STORAGE_REF_USE.
func (s *Storage) CheckRef(id string) error {
	s.refs.mu.Lock()
	defer s.refs.mu.Unlock()
	return s.findRef(id, shard.StorageRefUse)
}

// Unref gives a reference back; STORAGE_REF_DEL when there is none.
func (s *Storage) Unref(_ context.Context, id string) error {
	s.refs.mu.Lock()
	defer s.refs.mu.Unlock()
	err := s.findRef(id, shard.StorageRefDelete)
	delete(s.refs.held, id)
	return err
}

// findRef returns nil while a reference holds. The lock of refs is held.
func (s *Storage) findRef(id string, code shard.Code) error {
	s.refs.expire(time.Now())
	if _, ok := s.refs.held[id]; ok {
		return nil
	}
	return &shard.Error{Code: code, ReplicaSet: s.opts.ReplicaSet, Reason: "there is no reference " + id + ", or it is over"}
}
