package main

import (
	"context"
	"fmt"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

const besideHead = `| members | bucket | calls to another bucket on the | writes without a move: p50 / p99 | during | reads without a move: p50 / p99 | during | copied |
|---|---|---|---|---|---|---|---|
`

// besides measures what calls to other buckets of the source and of the destination notice of
// moves, and prints two rows.
func besides(ctx context.Context, opts options, members, mib int) error {
	b, err := open(ctx, opts, members, mib)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.sendBucket(ctx, atTarget, "b"); err != nil {
		return err
	}
	if err := b.warm(ctx); err != nil {
		return err
	}
	var loads [2]*load
	for i, other := range []shard.BucketID{atSource, atTarget} {
		rows, err := fill(ctx, b.router, other, 1, opts.rowBytes)
		if err != nil {
			return err
		}
		loads[i] = startLoad(b.router, other, rows, opts)
		defer loads[i].end()
	}
	// Only from a to b counts: it is what the rows' names say.
	var quiet, during [2][]figures
	var took []time.Duration
	for i := 0; len(took) < opts.runs && i < 4*opts.runs; i++ {
		before := time.Now()
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		was := look()
		if err := b.observed(len(took) == opts.runs-1, func() error { return b.send(ctx, "b") }); err != nil {
			return err
		}
		end := time.Now()
		if _, others := look().since(was); others <= opts.calm {
			took = append(took, end.Sub(was.at))
			for j, l := range loads {
				quiet[j] = append(quiet[j], l.between(before, was.at))
				during[j] = append(during[j], l.between(was.at, end))
			}
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
		if err := b.send(ctx, "a"); err != nil {
			return err
		}
		if err := b.settle(ctx); err != nil {
			return err
		}
	}
	if len(took) == 0 {
		fmt.Printf("| %d | %d MiB | the machine was never calm |\n", members, mib)
		return nil
	}
	for j, name := range []string{"source", "destination"} {
		of := func(all []figures, by func(figures) time.Duration) time.Duration { return round(median(all, by)) }
		fmt.Printf("| %d | %d MiB | %s | %v / %v | %v / %v | %v / %v | %v / %v | %.0f MiB/s |\n", members, mib, name,
			of(quiet[j], func(f figures) time.Duration { return f.write50 }), of(quiet[j], func(f figures) time.Duration { return f.write99 }),
			of(during[j], func(f figures) time.Duration { return f.write50 }), of(during[j], func(f figures) time.Duration { return f.write99 }),
			of(quiet[j], func(f figures) time.Duration { return f.read50 }), of(quiet[j], func(f figures) time.Duration { return f.read99 }),
			of(during[j], func(f figures) time.Duration { return f.read50 }), of(during[j], func(f figures) time.Duration { return f.read99 }),
			float64(mib)/median(took, func(d time.Duration) time.Duration { return d }).Seconds())
	}
	return nil
}
