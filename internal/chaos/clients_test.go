package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	// Clients work on this many keys at a time, and on others after epochTime, so that no
	// key's history is too hard to check.
	hotKeys   = 5
	epochTime = 2 * time.Second
	// pause between two operations of a client.
	clientPause = 4 * time.Millisecond
)

// load is a number of clients at work.
type load struct {
	c      *cluster
	h      *history
	mode   router.Mode // of reads
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func startLoad(c *cluster, h *history, seed uint64, clients int) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{c: c, h: h, mode: router.CallMR, cancel: cancel}
	for i := range clients {
		l.wg.Go(func() { l.client(ctx, i, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	return l
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

func bucketOf(key string) shard.BucketID {
	return shard.BucketOf(shard.MPCRC32Bytes([]byte(key)), buckets)
}

// client does one operation after the other until ctx ends.
func (l *load) client(ctx context.Context, id int, rnd *rand.Rand) {
	seen := map[string]string{} // what this client saw last of a key
	for n := 0; ctx.Err() == nil; n++ {
		epoch := int(time.Since(l.h.start) / epochTime)
		op := operation{Client: id, Key: fmt.Sprintf("%d/%d", epoch, rnd.IntN(hotKeys)), Value: fmt.Sprintf("%d.%d", id, n)}
		switch d := rnd.IntN(20); {
		case d < 6:
			op.Func, op.Value = storage.KVGet, ""
		case d < 10:
			op.Func = storage.KVPut
		case d < 11:
			op.Func, op.Value = storage.KVDelete, ""
		case d < 16:
			op.Func, op.Expected = storage.KVCAS, seen[op.Key]
		default:
			// A key of its own: many acknowledged writes that must be there in the end.
			op.Func, op.Key = storage.KVPut, fmt.Sprintf("own/%d/%d", id, n)
		}
		switch {
		case rnd.IntN(4) > 0:
		case op.Func == storage.KVGet && l.mode == router.CallMR:
			op.Via = viaView
		case op.Func != storage.KVGet:
			op.Via = viaAsync
		}
		if len(seen) > 4*hotKeys {
			clear(seen)
		}
		try, cancel := context.WithTimeout(context.Background(), time.Duration(300+rnd.IntN(3000))*time.Millisecond)
		op = l.run(try, l.c.router(rnd), op)
		cancel()
		switch {
		case op.Unknown:
			delete(seen, op.Key)
		case op.Err != "":
		case op.Func == storage.KVPut, op.Func == storage.KVCAS && op.Done:
			seen[op.Key] = op.Value
		case op.Func == storage.KVDelete:
			delete(seen, op.Key)
		default:
			seen[op.Key] = op.Found
		}
		t := time.NewTimer(clientPause/2 + time.Duration(rnd.Int64N(int64(clientPause))))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// run carries out an operation and notes it.
func (l *load) run(ctx context.Context, r *router.Router, op operation) operation {
	op.Call = l.h.now()
	err := l.call(ctx, r, &op)
	op.End = l.h.now()
	if err == nil {
		l.h.add(op)
		return op
	}
	op.Err = err.Error()
	switch {
	case op.Func == storage.KVGet:
		l.h.refuse()
	case ambiguous(err):
		op.Unknown = true
		l.h.add(op)
	default:
		// It says that nothing was done. If that is not so, what it wrote is seen.
		l.h.refuse()
	}
	return op
}

// ambiguous says whether a write that ended with err may have taken effect. All other errors
// promise that it has not and will not.
func ambiguous(err error) bool {
	var e *shard.Error
	if !errors.As(err, &e) {
		return true
	}
	return e.Code == shard.OutcomeUnknown || e.Code == shard.StoreFailed || e.Code == shard.StoreClosed
}

// Ways to carry out an operation other than Router.Call.
const (
	viaView  = "view"  // a read by Router.View
	viaAsync = "async" // a write by Router.CallRWAsync
)

func (l *load) call(ctx context.Context, r *router.Router, op *operation) (err error) {
	b, key := bucketOf(op.Key), []byte(op.Key)
	hash := shard.MPCRC32Bytes(key)
	write := func(args []byte) ([]byte, error) {
		if op.Via == viaAsync {
			return async(ctx, r, b, op.Func, args)
		}
		return r.Call(ctx, b, router.CallRW, op.Func, args)
	}
	var result, found []byte
	switch op.Func {
	case storage.KVGet:
		if op.Via == viaView {
			return r.View(ctx, b, router.CallMR, func(v *storage.View) error {
				found, _, err := v.Get(storage.SpaceKV, key)
				op.Found = string(found)
				return err
			})
		}
		if result, err = r.Call(ctx, b, l.mode, op.Func, storage.KVGetArgs(key)); err == nil {
			found, _, err = storage.KVGetResult(result)
		}
	case storage.KVPut:
		_, err = write(storage.KVPutArgs(hash, key, []byte(op.Value)))
	case storage.KVDelete:
		if result, err = write(storage.KVDeleteArgs(key)); err == nil {
			op.Done, err = storage.KVDeleteResult(result)
		}
	case storage.KVCAS:
		var expected []byte
		if op.Expected != "" {
			expected = []byte(op.Expected)
		}
		if result, err = write(storage.KVCASArgs(hash, key, expected, []byte(op.Value))); err == nil {
			op.Done, found, err = storage.KVCASResult(result)
		}
	}
	op.Found = string(found)
	return err
}

// async writes without waiting, and then waits.
func async(ctx context.Context, r *router.Router, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	type outcome struct {
		result []byte
		err    error
	}
	done := make(chan outcome, 1)
	r.CallRWAsync(b, fn, args, func(result []byte, err error) { done <- outcome{result, err} })
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readAll reads every key of the history once more, for the end of it: all rows of a bucket
// at one moment.
func (h *history) readAll(ctx context.Context, r *router.Router) error {
	h.mu.Lock()
	keys := map[shard.BucketID]map[string]bool{}
	for _, op := range h.ops {
		b := bucketOf(op.Key)
		if keys[b] == nil {
			keys[b] = map[string]bool{}
		}
		keys[b][op.Key] = true
	}
	h.mu.Unlock()
	for b, in := range keys {
		called := h.now()
		var rows map[string]string
		err := r.View(ctx, b, router.CallMR, func(v *storage.View) error {
			rows = map[string]string{}
			return v.Scan(storage.SpaceKV, nil, nil, false, func(key, value []byte) bool {
				if in[string(key)] {
					rows[string(key)] = string(value)
				}
				return true
			})
		})
		if err != nil {
			return fmt.Errorf("the last read of bucket %d: %w", b, err)
		}
		ended := h.now()
		for key := range in {
			h.add(operation{Client: 1000 + int(b), Key: key, Func: storage.KVGet, Found: rows[key], Call: called, End: ended})
		}
	}
	return nil
}

// fill puts rows into some buckets, so that moves take a while.
func fill(ctx context.Context, r *router.Router, bytes int) error {
	value := make([]byte, 8<<10)
	for b := shard.BucketID(1); b <= buckets; b++ {
		n := 2
		if b%10 == 0 {
			n = bytes / len(value)
		}
		for i := range n {
			if _, err := r.CallIdempotent(ctx, b, storage.KVPut, storage.KVPutArgs(0, fmt.Appendf(nil, "fill/%d", i), value)); err != nil {
				return err
			}
		}
	}
	return nil
}
