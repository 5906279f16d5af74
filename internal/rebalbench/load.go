package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	// written is the size of the values of the load, and tick how often its calls are let go.
	written = 256
	tick    = time.Millisecond
	// mostCalls bounds the calls under way: a store that is that far behind has lost.
	mostCalls = 20_000
)

// fill writes the rows that are moved.
func (c *cluster) fill(ctx context.Context) error {
	if c.o.rows == 0 {
		return nil
	}
	value := make([]byte, c.o.rowBytes)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	var next atomic.Int64
	errs := make([]error, c.o.callers)
	var wg sync.WaitGroup
	for w := range c.o.callers {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(c.o.buckets)*int64(c.o.rows) {
					return
				}
				bucket := shard.BucketID(n%int64(c.o.buckets) + 1)
				if err := c.put(ctx, bucket, n/int64(c.o.buckets), value); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) put(ctx context.Context, b shard.BucketID, row int64, value []byte) error {
	var key [12]byte
	binary.BigEndian.PutUint32(key[:], uint32(b))
	binary.BigEndian.PutUint64(key[4:], uint64(row))
	_, err := c.router.Call(ctx, b, router.CallRW, storage.KVPut, storage.KVPutArgs(shard.MPCRC32Bytes(key[:]), key[:], value))
	return err
}

// write writes one of the rows that the load writes again and again, somewhere.
func (c *cluster) write(ctx context.Context, value []byte) error {
	return c.put(ctx, shard.BucketID(rand.IntN(c.o.buckets)+1), int64(1_000_000+rand.IntN(4)), value)
}

// capacity measures how many writes a second there can be.
func (c *cluster) capacity(ctx context.Context) (float64, error) {
	var done atomic.Int64
	var stop atomic.Bool
	errs := make([]error, c.o.callers)
	var wg sync.WaitGroup
	for w := range c.o.callers {
		wg.Go(func() {
			value := make([]byte, written)
			for !stop.Load() {
				if errs[w] = c.write(ctx, value); errs[w] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	err := sleep(ctx, time.Second)
	before, began := done.Load(), time.Now()
	if err == nil {
		err = sleep(ctx, c.o.steady)
	}
	rate := float64(done.Load()-before) / time.Since(began).Seconds()
	stop.Store(true)
	wg.Wait()
	for _, e := range errs {
		if err == nil {
			err = e
		}
	}
	return rate, err
}

// load lets calls go at a fixed rate, whether or not earlier ones have ended.
type load struct {
	c      *cluster
	stop   context.CancelFunc
	wg     sync.WaitGroup
	flying atomic.Int64

	mu    sync.Mutex
	began time.Time
	got   window
}

// window is what calls did for a time.
type window struct {
	took         time.Duration
	times        []time.Duration
	failed, lost int // lost: not let go because too many were under way
}

func (c *cluster) load(ctx context.Context, rate float64) *load {
	l := &load{c: c, began: time.Now()}
	ctx, l.stop = context.WithCancel(ctx)
	l.wg.Go(func() {
		start := time.Now()
		sent := 0
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			for due := int(time.Since(start).Seconds() * rate); sent < due; sent++ {
				if l.flying.Load() >= mostCalls {
					l.add(0, nil, true)
					continue
				}
				l.flying.Add(1)
				at := start.Add(time.Duration(float64(sent) / rate * float64(time.Second)))
				l.wg.Go(func() {
					// Calls under way at the end are waited for.
					err := c.write(context.WithoutCancel(ctx), make([]byte, written))
					l.flying.Add(-1)
					l.add(time.Since(at), err, false)
				})
			}
		}
	})
	return l
}

func (l *load) add(took time.Duration, err error, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case lost:
		l.got.lost++
	case err != nil:
		l.got.failed++
	default:
		l.got.times = append(l.got.times, took)
	}
}

// take returns what was since the last take.
func (l *load) take() window {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.got
	w.took = time.Since(l.began)
	l.began, l.got = time.Now(), window{times: make([]time.Duration, 0, cap(w.times))}
	slices.Sort(w.times)
	return w
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// rate is how many calls a second succeeded.
func (w window) rate() float64 { return float64(len(w.times)) / w.took.Seconds() }

// quantile is the time that the share p of the calls did not exceed.
func (w window) quantile(p float64) time.Duration {
	if len(w.times) == 0 {
		return 0
	}
	return w.times[min(len(w.times)-1, int(p*float64(len(w.times))))]
}
