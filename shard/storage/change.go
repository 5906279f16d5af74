package storage

import (
	"context"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// change steps a list of buckets, all or none.
func (s *Storage) change(ctx context.Context, kind shard.EventKind, buckets []shard.BucketID, transfer uint64) error {
	st := step{kind: kind, together: true}
	for _, b := range buckets {
		if err := s.checkBucket(b); err != nil {
			return err
		}
		st.items = append(st.items, stepItem{bucket: b, transfer: transfer})
	}
	if len(st.items) > maxList {
		return &shard.Error{Code: shard.InvalidArguments, ReplicaSet: s.opts.ReplicaSet, Reason: "too many buckets at once"}
	}
	_, err := s.propose(ctx, st)
	return err
}

// Pin makes ACTIVE buckets PINNED, all of them or none.
func (s *Storage) Pin(ctx context.Context, buckets []shard.BucketID) error {
	return s.change(ctx, shard.EventPin, buckets, 0)
}

// Unpin makes PINNED buckets ACTIVE, all of them or none.
func (s *Storage) Unpin(ctx context.Context, buckets []shard.BucketID) error {
	return s.change(ctx, shard.EventUnpin, buckets, 0)
}

// SetReadOnly makes ACTIVE buckets READONLY, or READONLY ones ACTIVE, all of them or none.
func (s *Storage) SetReadOnly(ctx context.Context, buckets []shard.BucketID, on bool) error {
	if on {
		return s.change(ctx, shard.EventReadOnly, buckets, 0)
	}
	return s.change(ctx, shard.EventReadWrite, buckets, 0)
}

// ForceCreate makes buckets ACTIVE here, for repair. If another replica set owns one, there are
// two of it from then on; if nobody does, what is not here is lost for good.
func (s *Storage) ForceCreate(ctx context.Context, buckets []shard.BucketID) error {
	s.opts.Logger.Warn("buckets are created by force: whatever other replica sets have of them is not theirs any more, and what is not here is lost",
		"replica_set", s.opts.ReplicaSet, "buckets", buckets)
	return s.change(ctx, shard.EventForceCreate, buckets, s.highestTransfer(ctx, buckets))
}

// highestTransfer asks all replica sets for the highest transfer id of the buckets. One that does
// not answer is left out.
func (s *Storage) highestTransfer(ctx context.Context, buckets []shard.BucketID) (highest uint64) {
	if s.opts.Link == nil {
		return 0
	}
	items := make([]stepItem, len(buckets))
	for i, b := range buckets {
		items[i].bucket = b
	}
	for _, set := range s.opts.Link.ReplicaSets() {
		if set == s.opts.ReplicaSet {
			continue
		}
		resp, err := s.deliverItems(ctx, v1.TransferKind_TRANSFER_KIND_ASK, set, items)
		if err != nil {
			s.opts.Logger.Warn("a replica set was not asked about buckets that are created by force", "replica_set", set, "err", err)
			continue
		}
		for _, r := range resp.GetReplies() {
			highest = max(highest, r.GetTransfer())
		}
	}
	return highest
}

// ForceDrop deletes buckets here, for repair. If no other replica set owns one, its rows are lost.
func (s *Storage) ForceDrop(ctx context.Context, buckets []shard.BucketID) error {
	s.opts.Logger.Warn("buckets are dropped by force: rows that no other replica set has are lost", "replica_set", s.opts.ReplicaSet, "buckets", buckets)
	if err := s.change(ctx, shard.EventForceDrop, buckets, 0); err != nil {
		return err
	}
	s.wake()
	return nil
}

// ListBuckets calls fn with every bucket that is here in some state.
func (s *Storage) ListBuckets(_ context.Context, fn func(*v1.ListBucketsResponse_Bucket) error) error {
	return s.listBuckets(s.opts.BucketCount, fn)
}

func (s *Storage) listBuckets(count uint32, fn func(*v1.ListBucketsResponse_Bucket) error) error {
	for b := shard.BucketID(1); uint32(b) <= count && s.table.has(b); b++ {
		row := s.table.row(b)
		if row.State == shard.Absent {
			continue
		}
		if err := fn(&v1.ListBucketsResponse_Bucket{Bucket: uint32(b), State: uint32(row.State), Peer: row.Peer, Transfer: row.Transfer, Bytes: s.bucketSize(b)}); err != nil {
			return err
		}
	}
	return nil
}

// CheckBuckets counts and sums up the rows of buckets, nil for all that are here, and calls fn with
// each. The sums of the same rows are the same on every replica. It returns the last command whose
// rows it has certainly seen.
func (s *Storage) CheckBuckets(ctx context.Context, buckets []shard.BucketID, fn func(*v1.CheckBucketsResponse_Bucket) error) (applied uint64, err error) {
	applied = s.Status().Applied
	if buckets == nil {
		for b := shard.BucketID(1); s.table.has(b); b++ {
			if s.table.load(b).state() != shard.Absent {
				buckets = append(buckets, b)
			}
		}
	}
	for _, b := range buckets {
		if err := s.checkBucket(b); err != nil {
			return applied, err
		}
		row := s.table.row(b)
		out := &v1.CheckBucketsResponse_Bucket{Bucket: uint32(b), State: uint32(row.State), Peer: row.Peer, Transfer: row.Transfer}
		err := s.eng.View(ctx, func(r engine.Reader) error {
			x := readBucket(r, b)
			return x.scan("", "", func(key, value []byte) bool {
				out.Rows++
				out.Bytes += uint64(len(key) + len(value))
				out.Sum += rowHash(key, value)
				return ctx.Err() == nil
			})
		})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return applied, err
		}
		if err := fn(out); err != nil {
			return applied, err
		}
	}
	return applied, nil
}
