package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// bucket is the one that moves. The others have rows too when calls beside the move are
// measured: one stays on the source, the other on the destination.
const (
	bucket   = shard.BucketID(7)
	atSource = shard.BucketID(3)
	atTarget = shard.BucketID(12)
)

// callTime bounds one call; a call that does not end in it has failed.
const callTime = 30 * time.Second

func rowKey(i int) []byte { return fmt.Appendf(nil, "row %09d", i) }

// fill writes rows of the bucket until they take so many MiB.
func fill(ctx context.Context, r *router.Router, b shard.BucketID, mib, rowBytes int) (rows int, err error) {
	for {
		if _, err := r.Route(b); err == nil {
			break
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		time.Sleep(5 * time.Millisecond)
	}
	rows = max(1, (mib<<20)/rowBytes)
	window := make(chan struct{}, 512)
	var failed atomic.Pointer[error]
	var group sync.WaitGroup
	for i := range rows {
		window <- struct{}{}
		group.Add(1)
		r.CallRWAsync(b, storage.KVPut, storage.KVPutArgs(1, rowKey(i), noise(rowBytes)), func(_ []byte, err error) {
			if err != nil {
				failed.Store(&err)
			}
			<-window
			group.Done()
		})
		if failed.Load() != nil {
			break
		}
	}
	group.Wait()
	if e := failed.Load(); e != nil {
		return 0, fmt.Errorf("filling the bucket: %w", *e)
	}
	return rows, nil
}

// noise is a value that does not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// sample is one call that has ended.
type sample struct {
	began, ended time.Time
	err          error
}

// load writes and reads the bucket at a steady rate, no matter how long calls take.
type load struct {
	r     *router.Router
	rows  int
	value []byte
	stop  chan struct{}
	group sync.WaitGroup

	mu            sync.Mutex
	writes, reads []sample
}

func startLoad(r *router.Router, b shard.BucketID, rows int, opts options) *load {
	l := &load{r: r, rows: rows, value: noise(opts.rowBytes), stop: make(chan struct{})}
	mode, perSecond := router.CallMR, opts.rate
	if opts.anyReplica {
		mode = router.CallRO
	}
	l.group.Go(func() {
		l.every(perSecond, func(ctx context.Context) error {
			// Again after a lost connection: it writes the same value.
			_, err := r.CallIdempotent(ctx, b, storage.KVPut, storage.KVPutArgs(1, rowKey(rand.IntN(l.rows)), l.value))
			return err
		}, &l.writes)
	})
	l.group.Go(func() {
		l.every(perSecond, func(ctx context.Context) error {
			result, err := r.Call(ctx, b, mode, storage.KVGet, storage.KVGetArgs(rowKey(rand.IntN(l.rows))))
			if err != nil {
				return err
			}
			if _, ok, err := storage.KVGetResult(result); err != nil || !ok {
				return errors.Join(err, errors.New("a row is missing"))
			}
			return nil
		}, &l.reads)
	})
	return l
}

// every starts a call at each tick.
func (l *load) every(perSecond int, call func(context.Context) error, into *[]sample) {
	t := time.NewTicker(time.Second / time.Duration(perSecond))
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
		}
		l.group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callTime)
			defer cancel()
			began := time.Now()
			err := call(ctx)
			ended := time.Now()
			l.mu.Lock()
			defer l.mu.Unlock()
			*into = append(*into, sample{began, ended, err})
		})
	}
}

// end stops the load and waits for its calls.
func (l *load) end() {
	close(l.stop)
	l.group.Wait()
}

// figures is what happened between two moments.
type figures struct {
	writes, reads           int
	failedWrites, failedRds int
	firstError              error
	// gap is the longest span without a write that ended well, stall the longest read.
	gap, stall         time.Duration
	write50, write99   time.Duration
	read50, read99     time.Duration
	gapBegan, gapEnded time.Time
}

// between looks at the calls that were under way between two moments.
func (l *load) between(from, to time.Time) (f figures) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := []time.Time{from}
	var took []time.Duration
	for _, s := range l.writes {
		if s.ended.Before(from) || s.began.After(to) {
			continue
		}
		f.writes++
		if s.err != nil {
			f.failedWrites++
			f.firstError = errors.Join(f.firstError, s.err)
			continue
		}
		ends = append(ends, s.ended)
		took = append(took, s.ended.Sub(s.began))
	}
	slices.SortFunc(ends, time.Time.Compare)
	for i := 1; i < len(ends); i++ {
		if gap := ends[i].Sub(ends[i-1]); gap > f.gap {
			f.gap, f.gapBegan, f.gapEnded = gap, ends[i-1], ends[i]
		}
	}
	f.write50, f.write99, _ = quantiles(took)
	took = took[:0]
	for _, s := range l.reads {
		if s.ended.Before(from) || s.began.After(to) {
			continue
		}
		f.reads++
		if s.err != nil {
			f.failedRds++
			f.firstError = errors.Join(f.firstError, s.err)
			continue
		}
		took = append(took, s.ended.Sub(s.began))
	}
	f.read50, f.read99, f.stall = quantiles(took)
	return f
}

func quantiles(took []time.Duration) (p50, p99, most time.Duration) {
	if len(took) == 0 {
		return 0, 0, 0
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
}

// firstWriteAfter is when a write ended well that began after a moment.
func (l *load) firstWriteAfter(at time.Time) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var first time.Time
	for _, s := range l.writes {
		if s.err == nil && s.began.After(at) && (first.IsZero() || s.ended.Before(first)) {
			first = s.ended
		}
	}
	return first, !first.IsZero()
}

// counting is a storage that counts the tries that it refuses.
type counting struct {
	*storage.Storage
	n *refusals
}

// refusals counts refused tries by their call.
type refusals struct {
	mu    sync.Mutex
	calls map[string]int
}

func (n *refusals) serve(s *storage.Storage) storagerpc.Storage { return counting{s, n} }

func (n *refusals) saw(args []byte, err error) {
	if errors.Is(err, shard.TransferIsInProgress) || errors.Is(err, shard.WrongBucket) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.calls[string(args[:min(len(args), 32)])]++
	}
}

// take returns how many calls were refused at least once, how many tries that were in all, and the
// most of one, and begins anew.
func (n *refusals) take() (calls, tries, most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.calls {
		tries += k
		most = max(most, k)
	}
	calls = len(n.calls)
	n.calls = map[string]int{}
	return calls, tries, most
}

// WriteAsync counts.
func (c counting) WriteAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	c.Storage.WriteAsync(b, fn, args, func(result []byte, err error) {
		c.n.saw(args, err)
		done(result, err)
	})
}

// Write counts.
func (c counting) Write(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	result, err := c.Storage.Write(ctx, b, fn, args)
	c.n.saw(args, err)
	return result, err
}
