// Command rebalbench measures how long it takes until an added replica set has its share of the
// buckets, and what those who use the store notice of it: replica sets in this process, on disk with
// fsync, that reach each other by gRPC over loopback. Its tables are those of docs/benchmarks.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"time"

	"github.com/switchyard-dev/switchyard/shard/rebalancer"
)

type options struct {
	dir      string
	members  int
	buckets  int
	rows     int // in each bucket
	rowBytes int
	load     bool
	share    float64 // of the capacity
	callers  int
	// steady is how long the load runs before anything moves and after, and the capacity is looked for.
	steady  time.Duration
	runs    int
	profile string
	limits  rebalancer.Limits
	logger  *slog.Logger
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "where the data is kept meanwhile (default: the system's folder for temporary files)")
	flag.IntVar(&o.members, "members", 1, "members of each replica set")
	flag.IntVar(&o.buckets, "buckets", 3000, "buckets of the cluster, half of which are moved")
	flag.IntVar(&o.rows, "rows", 0, "rows in each bucket")
	flag.IntVar(&o.rowBytes, "row", 1024, "bytes of a row's value")
	flag.BoolVar(&o.load, "load", false, "write meanwhile")
	flag.Float64Var(&o.share, "share", 0.5, "share of the capacity that is written with -load")
	flag.IntVar(&o.callers, "callers", 64, "callers at once that the capacity is measured with")
	flag.DurationVar(&o.steady, "steady", 5*time.Second, "how long the capacity is measured, and the load runs before and after the moves")
	flag.IntVar(&o.runs, "runs", 5, "how often, each time with a new cluster")
	flag.IntVar(&o.limits.MaxSending, "max-sending", 0, "buckets that a replica set sends at once (default: the rebalancer's)")
	flag.IntVar(&o.limits.MaxReceiving, "max-receiving", 0, "buckets that a replica set receives at once (default: the rebalancer's)")
	flag.Float64Var(&o.limits.BusyShare, "busy-share", 0, "share of the time that moves may take while calls are served (default: the rebalancer's)")
	flag.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the last run's moves to this file")
	verbose := flag.Bool("v", false, "say what everybody logs")
	flag.Parse()
	o.logger = slog.New(slog.DiscardHandler)
	if *verbose {
		o.logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "rebalbench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.members < 1 || o.buckets < 2 || o.rows < 0 || o.rowBytes < 0 || o.runs < 1 || o.callers < 1 || !(o.share > 0) || o.share > 1 || o.steady <= 0 {
		return fmt.Errorf("members, callers and runs must be at least 1, buckets at least 2, the share above 0 and at most 1, the time above 0")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	fmt.Printf("%d buckets of %d x %d bytes, sets of %d: a has all, b is added\n\n", o.buckets, o.rows, o.rowBytes, o.members)
	var all []result
	for i := range o.runs {
		r, err := once(ctx, o, i == o.runs-1)
		if err != nil {
			return err
		}
		if i == 0 {
			fmt.Print(r.head())
		}
		fmt.Print(r.row(fmt.Sprint(i + 1)))
		all = append(all, r)
	}
	fmt.Print(median(all).row("median"))
	return nil
}

// profiled runs fn, and writes what the processor did meanwhile if that is wanted.
func profiled(file string, fn func() error) error {
	if file == "" {
		return fn()
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	err = fn()
	pprof.StopCPUProfile()
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
