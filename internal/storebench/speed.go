package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	callers   = 64
	keys      = 10_000
	valueSize = 256
)

// call is one kind of call that is measured.
type call func(ctx context.Context, r *router.Router) error

func put(ctx context.Context, r *router.Router) error {
	b, key := pick()
	_, err := r.Call(ctx, b, router.CallRW, storage.KVPut, storage.KVPutArgs(uint32(b), key, make([]byte, valueSize)))
	return err
}

func get(ctx context.Context, r *router.Router) error {
	b, key := pick()
	_, err := r.Call(ctx, b, router.CallRO, storage.KVGet, storage.KVGetArgs(key))
	return err
}

func pick() (shard.BucketID, []byte) {
	i := rand.IntN(keys)
	return shard.BucketID(i%buckets + 1), binary.BigEndian.AppendUint32(nil, uint32(i))
}

// outcome is what one measurement gave.
type outcome struct {
	rate     float64 // calls a second
	p50, p99 time.Duration
}

// measure makes calls from so many callers, each one after the other, for some time.
func measure(r *router.Router, callers int, d time.Duration, do call) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+patience)
	defer cancel()
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	begin := time.Now()
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for at := time.Now(); at.Sub(begin) < d; {
				if errs[c] = do(ctx, r); errs[c] != nil {
					return
				}
				now := time.Now()
				took[c] = append(took[c], now.Sub(at))
				at = now
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return outcome{}, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return outcome{}, errors.New("no call was done in time")
	}
	return outcome{rate: float64(len(all)) / elapsed.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100]}, nil
}

// speed measures replica sets of one and of three.
func speed(dir string, s settings) error {
	fmt.Printf("\n| members | calls of kv, values of %d bytes | callers | calls/s, median (best) | p50 | p99 |\n|---|---|---|---|---|---|\n", valueSize)
	for _, size := range []int{1, 3} {
		if err := speedOf(filepath.Join(dir, fmt.Sprint("speed-", size)), size, s); err != nil {
			return fmt.Errorf("a replica set of %d: %w", size, err)
		}
	}
	return nil
}

func speedOf(dir string, size int, s settings) error {
	if s.only != "" && !strings.HasPrefix(s.only, fmt.Sprint(size)) {
		return nil
	}
	if s.profile != "" {
		stop, err := startProfile(filepath.Join(s.profile, fmt.Sprintf("router-of-%d.cpu", size)))
		if err != nil {
			return err
		}
		defer stop()
	}
	g, err := startSet(dir, size, s.profile)
	if err != nil {
		return err
	}
	defer g.close()
	if _, err := measure(g.router, callers, time.Second, put); err != nil { // fills it
		return err
	}
	for _, m := range []struct {
		name    string
		callers int
		do      call
	}{{"put", callers, put}, {"get", callers, get}, {"put", 1, put}, {"get", 1, get}} {
		if s.only != "" && s.only != fmt.Sprintf("%d %s %d", size, m.name, m.callers) {
			continue
		}
		var all []outcome
		for range s.rounds {
			o, err := measure(g.router, m.callers, s.time, m.do)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			all = append(all, o)
		}
		slices.SortFunc(all, func(a, b outcome) int { return int(a.rate - b.rate) })
		mid := all[(len(all)-1)/2]
		fmt.Printf("| %d | %s | %d | %.0f (%.0f) | %v | %v |\n", size, m.name, m.callers, mid.rate, all[len(all)-1].rate,
			mid.p50.Round(10*time.Microsecond), mid.p99.Round(10*time.Microsecond))
	}
	return nil
}
