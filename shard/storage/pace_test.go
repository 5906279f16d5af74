package storage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// quick is a small write that takes no time.
func quick(context.Context) error { return nil }

func TestPacer_allWhoCopyShareARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		began := time.Now()
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				defer p.begin(quick)()
				for range 16 {
					p.wait(t.Context(), chunkBytes, defaultCopyRate)
					p.arrived(time.Now(), time.Millisecond)
				}
			})
		}
		group.Wait()
		want := 63 * chunkBytes * time.Second / defaultCopyRate
		if took := time.Since(began); took < want-64*time.Microsecond || took > want+64*time.Microsecond {
			t.Errorf("64 messages took %v, want %v", took, want)
		}
	})
}

func TestPacer_slowsDownWhileWritesAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		var mu sync.Mutex
		takes := time.Millisecond
		writesTake := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); takes = d }
		defer p.begin(func(context.Context) error {
			mu.Lock()
			d := takes
			mu.Unlock()
			time.Sleep(d)
			return nil
		})()
		// copied returns how many messages go in a second.
		copied := func() (n int) {
			for end := time.Now().Add(time.Second); time.Now().Before(end); n++ {
				p.wait(t.Context(), chunkBytes, defaultCopyRate)
				p.arrived(time.Now(), 3*time.Millisecond)
			}
			return n
		}
		fast := copied()
		writesTake(50 * time.Millisecond)
		slow := copied()
		writesTake(time.Millisecond)
		copied()
		again := copied()
		least := int(time.Second / maxPause)
		if fast < defaultCopyRate/chunkBytes*9/10 || slow > 3*least || slow < least || again < fast*9/10 {
			t.Errorf("in a second %d messages go, %d while writes are slow, and %d afterwards; the least is %d", fast, slow, again, least)
		}
	})
}

func TestPacer_seesAWriteThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		end := p.begin(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		defer end()
		p.wait(t.Context(), probeAfter, defaultCopyRate)
		time.Sleep(slowWrite - time.Millisecond)
		if p.writesAreSlow(time.Now()) {
			t.Error("a write counts as slow too early")
		}
		time.Sleep(2 * time.Millisecond)
		if !p.writesAreSlow(time.Now()) {
			t.Error("a write that does not end does not count as slow")
		}
		end()
		// It is forgotten for those who copy later.
		defer p.begin(quick)()
		if p.writesAreSlow(time.Now()) {
			t.Error("a write of earlier copying counts as slow")
		}
	})
}

// lineUp lets chunks in one goroutine each, in the given order, and returns the order in which
// they were let in.
func lineUp(t *testing.T, as *arrivals, seqs ...uint64) (let []uint64, errs []error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, seq := range seqs {
		group.Go(func() {
			err := as.enter(t.Context(), 5, 9, seq, func() shard.Row { return shard.Row{State: shard.Receiving, Transfer: 9} }, func() {
				mu.Lock()
				defer mu.Unlock()
				let = append(let, seq)
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
		synctest.Wait()
	}
	group.Wait()
	return let, errs
}

func TestArrivals_chunksGoInByTheirNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var as arrivals
		let, errs := lineUp(t, &as, 2, 3, 1, 0)
		if len(errs) != 0 || len(let) != 4 {
			t.Fatalf("let in: %v, %v", let, errs)
		}
		for i, seq := range let {
			if seq != uint64(i) {
				t.Fatalf("let in: %v", let)
			}
		}
		// One that comes again is let in at once, and the log refuses it.
		if let, errs := lineUp(t, &as, 1); len(errs) != 0 || len(let) != 1 {
			t.Errorf("again: %v %v", let, errs)
		}
		// One that did not reach the log is waited for.
		as.failed(5, 9, 2)
		if let, errs := lineUp(t, &as, 3, 2); len(errs) != 0 || len(let) != 2 || let[0] != 2 {
			t.Errorf("after 2 was lost: %v %v", let, errs)
		}
	})
}

func TestArrivals_aChunkDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var as arrivals
		let, errs := lineUp(t, &as, 0, 2)
		if len(let) != 1 || len(errs) != 1 || !errors.Is(errs[0], shard.Overloaded) || !passing(errs[0]) {
			t.Errorf("let in %v, %v", let, errs)
		}
		// Those who wait for a bucket that is not received any more look again.
		done := make(chan error, 1)
		go func() {
			done <- as.enter(t.Context(), 5, 9, 7, func() shard.Row { return shard.Row{Transfer: 10} }, func() {})
		}()
		synctest.Wait()
		as.forget(func(shard.BucketID) bool { return false })
		if err := <-done; !errors.Is(err, shard.Overloaded) {
			t.Errorf("the end of a transfer: %v", err)
		}
	})
}
