package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// bench is one cluster with a filled bucket under load.
type bench struct {
	opts    options
	members int
	cluster *localsets.Cluster
	router  *router.Router
	load    *load
	refused *refusals
	dir     string
}

// open makes a cluster, fills the bucket and starts the load.
func open(ctx context.Context, opts options, members, mib int) (b *bench, err error) {
	b = &bench{opts: opts, members: members, refused: &refusals{calls: map[string]int{}}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp(opts.dir, "movebench-"); err != nil {
		return b, err
	}
	b.cluster, err = localsets.Start(ctx, localsets.Options{
		Dir: b.dir, Members: members, Engine: raftengine.Options{Logger: opts.logger}, Logger: opts.logger, Serve: b.refused.serve,
	})
	if err != nil {
		return b, err
	}
	if b.router, err = b.cluster.Router(); err != nil {
		return b, err
	}
	rows, err := fill(ctx, b.router, mib, opts.rowBytes)
	if err != nil {
		return b, err
	}
	b.load = startLoad(b.router, rows, opts.rowBytes, opts.rate)
	return b, sleep(ctx, time.Second) // connections, caches
}

func (b *bench) close() {
	if b.load != nil {
		b.load.end()
	}
	if b.router != nil {
		b.router.Close()
	}
	if b.cluster != nil {
		b.cluster.Close()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// send moves the bucket.
func (b *bench) send(ctx context.Context, to string) error {
	failed, err := b.router.SendBuckets(ctx, []shard.BucketID{bucket}, to)
	if err != nil {
		return err
	}
	return failed[bucket]
}

// settle waits until nothing is left of a move: one set has the bucket, and the other has no row of
// it, as far as those that answer know.
func (b *bench) settle(ctx context.Context) error {
	for {
		owners, rest := 0, 0
		for _, set := range []string{"a", "b"} {
			m, err := b.cluster.Master(ctx, set)
			if err != nil {
				return err
			}
			switch row := m.Storage.BucketRow(bucket); {
			case row.Owns() && !row.Moving():
				owners++
			case row.State != shard.Absent:
				rest++
			}
		}
		if owners == 1 && rest == 0 {
			return nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d sets own the bucket, %d have something of it: %w", owners, rest, err)
		}
	}
}

// moved is what one move has shown.
type moved struct {
	figures
	took                time.Duration
	waited, tries, most int
	quiet               figures // as long before it, without a move
}

// sizes measures moves of one size and prints a row.
func sizes(ctx context.Context, opts options, members, mib int) error {
	b, err := open(ctx, opts, members, mib)
	if err != nil {
		return err
	}
	defer b.close()
	var runs []moved
	for i := range opts.runs {
		// As long without a move, for comparison; the last one's length is a good guess.
		before := time.Now()
		quiet := time.Second
		if i > 0 {
			quiet = max(quiet, runs[i-1].took)
		}
		if err := sleep(ctx, quiet); err != nil {
			return err
		}
		b.refused.take()
		from := time.Now()
		m := moved{quiet: b.load.between(before, from)}
		if err := b.send(ctx, []string{"b", "a"}[i%2]); err != nil {
			return fmt.Errorf("the move of %d MiB: %w", mib, err)
		}
		m.took = time.Since(from)
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
		m.figures = b.load.between(from, time.Now())
		m.waited, m.tries, m.most = b.refused.take()
		runs = append(runs, m)
		fmt.Fprintf(os.Stderr, "  members %d, %d MiB, run %d: took %v (%.0f MiB/s), no write for %v at %v of it, slowest read %v, failed %d, waited %d calls with %d tries (most %d); before: %v, %v\n",
			members, mib, i+1, round(m.took), float64(mib)/m.took.Seconds(), round(m.gap), round(m.gapBegan.Sub(from)), round(m.stall), m.failedWrites+m.failedRds,
			m.waited, m.tries, m.most, round(m.quiet.gap), round(m.quiet.stall))
		if m.firstError != nil {
			fmt.Fprintf(os.Stderr, "    first failures: %v\n", m.firstError)
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	fails, perCall := 0, 0.0
	for _, m := range runs {
		fails += m.failedWrites + m.failedRds
		if m.waited > 0 {
			perCall = max(perCall, float64(m.tries+m.waited)/float64(m.waited))
		}
	}
	fmt.Printf("| %d | %d MiB | %v (%v) | %v (%v) | %v | %v | %.0f MiB/s | %.1f | %d |\n", members, mib,
		round(median(runs, func(m moved) time.Duration { return m.gap })), round(slices.MaxFunc(runs, func(a, b moved) int { return cmp.Compare(a.gap, b.gap) }).gap),
		round(median(runs, func(m moved) time.Duration { return m.stall })), round(slices.MaxFunc(runs, func(a, b moved) int { return cmp.Compare(a.stall, b.stall) }).stall),
		round(median(runs, func(m moved) time.Duration { return m.quiet.gap })),
		round(median(runs, func(m moved) time.Duration { return m.quiet.stall })),
		float64(mib)/median(runs, func(m moved) time.Duration { return m.took }).Seconds(), perCall, fails)
	return nil
}

const sizesHead = `| members | bucket | longest without a write: median (worst) | slowest read: median (worst) | the same without a move: write | read | copied | tries per waiting call | failed calls |
|---|---|---|---|---|---|---|---|---|
`

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

func median[T any](of []T, by func(T) time.Duration) time.Duration {
	all := make([]time.Duration, len(of))
	for i, x := range of {
		all[i] = by(x)
	}
	slices.Sort(all)
	return all[len(all)/2]
}
