package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
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
		Storage: func(o *storage.Options) { o.CopyRate = opts.copyRate << 20 },
	})
	if err != nil {
		return b, err
	}
	if b.router, err = b.cluster.Router(); err != nil {
		return b, err
	}
	rows, err := fill(ctx, b.router, bucket, mib, opts.rowBytes)
	if err != nil {
		return b, err
	}
	fmt.Fprintf(os.Stderr, "  members %d, %d MiB: filled\n", members, mib)
	b.load = startLoad(b.router, bucket, rows, opts)
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
func (b *bench) send(ctx context.Context, to string) error { return b.sendBucket(ctx, bucket, to) }

func (b *bench) sendBucket(ctx context.Context, which shard.BucketID, to string) error {
	failed, err := b.router.SendBuckets(ctx, []shard.BucketID{which}, to)
	if err != nil {
		return err
	}
	return failed[which]
}

// warm moves the bucket there and back, if that is wanted.
func (b *bench) warm(ctx context.Context) error {
	if !b.opts.warm {
		return nil
	}
	for _, to := range []string{"b", "a"} {
		if err := b.send(ctx, to); err != nil {
			return fmt.Errorf("the first moves: %w", err)
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// observed runs fn, the last time with what the options want to know of it.
func (b *bench) observed(last bool, fn func() error) (err error) {
	if !last {
		return fn()
	}
	for _, o := range []struct {
		name  string
		start func(io.Writer) error
		stop  func()
	}{{b.opts.trace, trace.Start, trace.Stop}, {b.opts.profile, pprof.StartCPUProfile, pprof.StopCPUProfile}} {
		if o.name == "" {
			continue
		}
		f, err := os.Create(o.name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := o.start(f); err != nil {
			return err
		}
		defer o.stop()
	}
	return fn()
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
	own, others         float64 // processors used meanwhile
	quiet               figures // as long before it, without a move
}

// sizes measures moves of one size and prints a row.
func sizes(ctx context.Context, opts options, members, mib int) error {
	b, err := open(ctx, opts, members, mib)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.warm(ctx); err != nil {
		return err
	}
	var runs []moved
	for i := 0; len(runs) < opts.runs && i < 4*opts.runs; i++ {
		// As long without a move, for comparison; the last one's length is a good guess.
		before := time.Now()
		quiet := time.Second
		if len(runs) > 0 {
			quiet = max(quiet, min(runs[len(runs)-1].took, 5*time.Second))
		}
		if err := sleep(ctx, quiet); err != nil {
			return err
		}
		b.refused.take()
		was := look()
		from := was.at
		m := moved{quiet: b.load.between(before, from)}
		if err := b.observed(len(runs) == opts.runs-1, func() error { return b.send(ctx, []string{"b", "a"}[i%2]) }); err != nil {
			return fmt.Errorf("the move of %d MiB: %w", mib, err)
		}
		m.took = time.Since(from)
		m.own, m.others = look().since(was)
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
		m.figures = b.load.between(from, time.Now())
		m.waited, m.tries, m.most = b.refused.take()
		if m.others <= opts.calm {
			runs = append(runs, m)
		}
		fmt.Fprintf(os.Stderr, "  members %d, %d MiB, run %d: took %v (%.0f MiB/s), no write for %v at %v of it, slowest read %v, failed %d, waited %d calls with %d tries (most %d); before: %v, %v; processors used: %.2f, by others %.2f\n",
			members, mib, i+1, round(m.took), float64(mib)/m.took.Seconds(), round(m.gap), round(m.gapBegan.Sub(from)), round(m.stall), m.failedWrites+m.failedRds,
			m.waited, m.tries, m.most, round(m.quiet.gap), round(m.quiet.stall), m.own, m.others)
		if m.firstError != nil {
			fmt.Fprintf(os.Stderr, "    first failures: %v\n", m.firstError)
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	if len(runs) == 0 {
		fmt.Printf("| %d | %d MiB | the machine was never calm |\n", members, mib)
		return nil
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
