package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	writers      = 8
	callDeadline = 5 * time.Second
	// late is how much later than its deadline a call may end before it counts as lost.
	late = 500 * time.Millisecond
)

// load writes all the time, and knows when it was last answered.
type load struct {
	r    *router.Router
	stop atomic.Bool
	wg   sync.WaitGroup

	calls, failed, lost atomic.Int64
	slowest             atomic.Int64

	mu    sync.Mutex
	at    time.Time     // of a killing
	dead  time.Time     // when the process had ended
	first time.Duration // from the killing to the first success of a write that began after dead
	found chan struct{}
	err   error
}

func (l *load) start() {
	for range writers {
		l.wg.Go(func() {
			for !l.stop.Load() {
				l.write()
			}
		})
	}
}

func (l *load) write() {
	b, key := pick()
	ctx, cancel := context.WithTimeout(context.Background(), callDeadline)
	defer cancel()
	begin := time.Now()
	_, err := l.r.CallIdempotent(ctx, b, storage.KVPut, storage.KVPutArgs(uint32(b), key, make([]byte, valueSize)))
	end := time.Now()
	took := end.Sub(begin)
	l.calls.Add(1)
	for was := l.slowest.Load(); int64(took) > was && !l.slowest.CompareAndSwap(was, int64(took)); was = l.slowest.Load() {
	}
	if took > callDeadline+late {
		l.lost.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed.Add(1)
		l.err = err
		return
	}
	if l.found != nil && begin.After(l.dead) {
		l.first = end.Sub(l.at)
		close(l.found)
		l.found = nil
	}
}

// killed notes that the master was killed at that time and is dead, and waits for the first
// write after it.
func (l *load) killed(at time.Time) (time.Duration, error) {
	found := make(chan struct{})
	l.mu.Lock()
	l.at, l.dead, l.found = at, time.Now(), found
	l.mu.Unlock()
	select {
	case <-found:
	case <-time.After(patience):
		return 0, errors.Join(errors.New("nothing could be written any more"), l.err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, nil
}

// failover kills the master of a replica set of three again and again.
func failover(dir string, times int) error {
	s, err := startSet(filepath.Join(dir, "failover"), 3, "")
	if err != nil {
		return err
	}
	defer s.close()
	l := &load{r: s.router}
	l.start()
	defer func() {
		l.stop.Store(true)
		l.wg.Wait()
	}()
	fmt.Printf("\nkill -9 of the master of three while %d callers put, each call with %v: from the killing to the first success of a write that began after it\n", writers, callDeadline)
	var took []time.Duration
	for range times {
		time.Sleep(time.Second + rand.N(500*time.Millisecond)) // at any moment of the load
		m, err := s.master()
		if err != nil {
			return err
		}
		at := time.Now()
		m.kill()
		d, err := l.killed(at)
		if err != nil {
			return err
		}
		took = append(took, d)
		fmt.Printf("  %s: %v\n", m.id, d.Round(time.Millisecond))
		if err := m.start(); err != nil {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
	l.stop.Store(true)
	l.wg.Wait()
	slices.Sort(took)
	fmt.Printf("median of %d: %v, slowest %v\n", times, took[(times-1)/2].Round(time.Millisecond), took[times-1].Round(time.Millisecond))
	fmt.Printf("%d calls, %d failed, %d lost beyond their deadline, the slowest took %v\n",
		l.calls.Load(), l.failed.Load(), l.lost.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond))
	if l.failed.Load() > 0 {
		return fmt.Errorf("calls failed, the last with: %w", l.err)
	}
	return nil
}
