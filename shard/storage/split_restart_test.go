package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

// openCount opens a folder with a bucket_count, and small steps.
func openCount(t *testing.T, dir string, count uint32) (*Storage, error) {
	t.Helper()
	s, err := Open(testContext(t), Options{
		Registry: NewRegistry(), BucketCount: count, ReplicaSet: "a", SplitRows: visitRows + 4,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Dir: dir, Machine: m, BucketCount: count, Durability: raftengine.Interval})
		},
	})
	if err == nil {
		t.Cleanup(func() { _ = s.Close(context.Background()) })
	}
	return s, err
}

// TestSplit_goesOnAfterRestarts doubles bucket_count twice, with restarts in between at which
// nothing was flushed, and tries the wrong number at each point.
func TestSplit_goesOnAfterRestarts(t *testing.T) {
	const first, rows = 3, 300
	ctx, dir := testContext(t), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	reopen := func(count uint32) *Storage {
		t.Helper()
		s, err := openCount(t, dir, count)
		must(err)
		return s
	}
	crash := func(s *Storage) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = s.Close(ended) // it has no time, which is an error
	}
	refused := func(count uint32, says string) {
		t.Helper()
		if s, err := openCount(t, dir, count); err == nil {
			crash(s)
			t.Fatalf("it opens with bucket_count %d", count)
		} else if !errors.Is(err, shard.InvalidConfig) || !strings.Contains(err.Error(), says) {
			t.Fatalf("bucket_count %d: %v; want %q", count, err, says)
		}
	}
	row := func(i int) (key []byte, hash uint32) {
		key = fmt.Appendf(nil, "row%03d", i)
		return key, shard.MPCRC32Bytes(key)
	}
	check := func(s *Storage, count uint32) {
		t.Helper()
		as, err := s.As(count)
		must(err)
		found := 0
		for b := shard.BucketID(1); uint32(b) <= count; b++ {
			out, err := as.Read(ctx, b, KVScan, KVScanArgs(nil, nil, false, MaxKVScan))
			must(err)
			list, _, err := KVScanResult(out)
			must(err)
			for _, r := range list {
				if shard.BucketOf(shard.MPCRC32Bytes(r.Key), count) != b {
					t.Fatalf("%s is in bucket %d of %d", r.Key, b, count)
				}
			}
			found += len(list)
		}
		if found != rows {
			t.Fatalf("%d rows with %d buckets, want %d", found, count, rows)
		}
	}

	s := reopen(first)
	must(s.Bootstrap(ctx))
	for i := range rows {
		key, hash := row(i)
		_, err := s.Write(ctx, shard.BucketOf(hash, first), KVPut, KVPutArgs(hash, key, []byte("v")))
		must(err)
	}
	crash(s)
	for _, count := range []uint32{first, 2 * first} {
		refused(2*count, "begin the doubling first")
		refused(4*count, "")
		s = reopen(count)
		must(errors.Join(s.HoldMoves(ctx, count), s.BeginSplit(ctx, count)))
		restarts := 0
		for n := 0; ; n++ {
			p := s.SplitProgress()
			if p.Phase != "splitting" || p.BucketCount != count || p.Buckets != int(count) {
				t.Fatalf("%+v", p)
			}
			if p.Done == p.Buckets {
				break
			}
			if restarts < 6 {
				restarts++
				check(s, count)
				check(s, 2*count)
				crash(s)
				s = reopen(count << (n % 2)) // the one or the other
				continue
			}
			select {
			case <-s.Changed():
			case <-ctx.Done():
				t.Fatal(ctx.Err())
			case <-time.After(5 * time.Millisecond):
			}
		}
		check(s, count)
		check(s, 2*count)
		crash(s)
		refused(4*count, "")
		s = reopen(2 * count)
		must(s.FinishSplit(ctx, count, false))
		check(s, 2*count)
		if _, err := s.As(count); !errors.Is(err, shard.InvalidConfig) {
			t.Errorf("as %d buckets: %v", count, err)
		}
		crash(s)
		refused(count, "it was doubled; set the new one")
	}
	s = reopen(4 * first)
	check(s, 4*first)
	if err := s.HoldMoves(ctx, 4*first); err != nil {
		t.Error(err)
	}
	must(s.ReleaseMoves(ctx, 4*first))
}
