// Command movebench measures what moves of a bucket cost those who use it meanwhile, and
// what happens when members die in the middle of one: replica sets in this process, on
// disk with fsync, that reach each other by gRPC over loopback. Its tables are those of
// docs/benchmarks.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

type options struct {
	dir      string
	rate     int
	rowBytes int
	runs     int
	warm     bool
	calm     float64
	copyRate int64
	// anyReplica lets replicas answer reads when the master does not.
	anyReplica bool
	// trace and profile are files for what the runtime says of the last move.
	trace, profile string
	logger         *slog.Logger
}

func main() {
	mib := flag.String("mib", "1,100,1024", "sizes of the bucket")
	members := flag.String("members", "1,3", "members of each of the two replica sets")
	trouble := flag.Bool("trouble", false, "kill members in the middle of moves instead; -mib has one size then")
	beside := flag.Bool("beside", false, "measure calls to other buckets of the two replica sets during moves instead")
	verbose := flag.Bool("v", false, "say what everybody logs")
	var opts options
	flag.StringVar(&opts.trace, "trace", "", "write an execution trace of the last move to this file")
	flag.StringVar(&opts.profile, "cpuprofile", "", "write a CPU profile of the last move to this file")
	flag.StringVar(&opts.dir, "dir", "", "where the data is kept meanwhile (default: the system's folder for temporary files)")
	flag.IntVar(&opts.rate, "rate", 500, "writes, and reads, per second to the bucket")
	flag.IntVar(&opts.rowBytes, "row", 1024, "bytes of a row's value")
	flag.Int64Var(&opts.copyRate, "copy", 0, "MiB/s that are copied at most (default: that of a storage)")
	flag.IntVar(&opts.runs, "runs", 5, "moves of each size")
	flag.BoolVar(&opts.warm, "warm", true, "move the bucket there and back first: on new nodes the files of the log still grow")
	flag.Float64Var(&opts.calm, "calm", 100, "moves during which other processes use more processors than this do not count; up to four times as many are made")
	flag.Parse()
	opts.logger = slog.New(slog.DiscardHandler)
	if *verbose {
		opts.logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if err := run(opts, *mib, *members, *trouble, *beside); err != nil {
		fmt.Fprintln(os.Stderr, "movebench:", err)
		os.Exit(1)
	}
}

func run(opts options, mib, members string, trouble, beside bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	sizesMiB, err := numbers(mib)
	if err != nil {
		return err
	}
	membersOf, err := numbers(members)
	if err != nil {
		return err
	}
	if opts.rate < 1 || opts.rowBytes < 1 || opts.runs < 1 {
		return fmt.Errorf("the rate, the bytes of a row and the number of runs must be at least 1")
	}
	// Members are processes of their own elsewhere, each with the whole machine's processors.
	runtime.GOMAXPROCS(runtime.NumCPU() * 2 * slices.Max(membersOf))
	if trouble {
		return troubles(ctx, opts, membersOf, sizesMiB[0])
	}
	measure := sizes
	if beside {
		measure = besides
		fmt.Print(besideHead)
	} else {
		fmt.Print(sizesHead)
	}
	for _, n := range membersOf {
		for _, size := range sizesMiB {
			if err := measure(ctx, opts, n, size); err != nil {
				return err
			}
		}
	}
	return nil
}

func numbers(list string) (out []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a list of numbers", list)
		}
		out = append(out, n)
	}
	return out, nil
}
