package storage

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// moving knows the moves that this member looks after.
type moving struct {
	mu      sync.Mutex
	moves   map[shard.BucketID]*move
	cancels map[int]context.CancelFunc
	next    int
	pace    pacer
}

func (m *moving) add(moves []*move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.moves == nil {
		m.moves = map[shard.BucketID]*move{}
	}
	for _, one := range moves {
		m.moves[one.bucket] = one
	}
}

func (m *moving) remove(moves []*move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range moves {
		if m.moves[one.bucket] == one {
			delete(m.moves, one.bucket)
		}
	}
}

// track keeps a cancel function until the returned function is called.
func (m *moving) track(cancel context.CancelFunc) (untrack func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancels == nil {
		m.cancels = map[int]context.CancelFunc{}
	}
	n := m.next
	m.next++
	m.cancels[n] = cancel
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.cancels, n)
	}
}

func (m *moving) cancelAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.cancels {
		c()
	}
}

// Moves are the moves that this member looks after now.
func (s *Storage) Moves() []*v1.BucketMove {
	s.moving.mu.Lock()
	defer s.moving.mu.Unlock()
	out := make([]*v1.BucketMove, 0, len(s.moving.moves))
	for b, m := range s.moving.moves {
		out = append(out, &v1.BucketMove{
			Bucket: uint32(b), Destination: m.row.Peer, Transfer: m.row.Transfer, Phase: m.phase,
			Error: m.trouble, Age: durationpb.New(time.Since(m.started)),
		})
	}
	return out
}

// CancelSends calls off the moves of buckets that are not SENT yet. Buckets that do not move
// are none of its business.
func (s *Storage) CancelSends(ctx context.Context, buckets []shard.BucketID) error {
	st := step{kind: shard.EventAbort}
	for _, b := range buckets {
		if err := s.checkBucket(b); err != nil {
			return err
		}
		if row := s.table.row(b); row.Moving() {
			st.items = append(st.items, stepItem{bucket: b, transfer: row.Transfer})
		}
	}
	out, err := s.propose(ctx, st)
	if err != nil {
		return err
	}
	for _, o := range out {
		if o.err != nil {
			return o.err
		}
	}
	return nil
}
