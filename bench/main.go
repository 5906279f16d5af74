// Command bench runs the same work on Switchyard and on other task queues, and
// prints what each of them managed. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/switchyard-dev/switchyard/bench/internal/report"
	"github.com/switchyard-dev/switchyard/bench/internal/scenario"
	"github.com/switchyard-dev/switchyard/bench/internal/slowsync"
	"github.com/switchyard-dev/switchyard/bench/internal/system"
)

const usage = `usage: bench COMMAND [FLAGS]

  run SYSTEM     run the scenarios on one system
  all            run them on all systems, in turns
  table FILE     print the tables of a result file, or write them --into another
  disk [DIR]     measure fdatasync: p50 and p99 in microseconds

systems:   %s
scenarios: %s

bench run -h and bench all -h list the flags.
`

func main() {
	if slowsync.Main(os.Args) {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The load makes much short-lived garbage; the same for all systems.
	debug.SetGCPercent(400)
	err := command(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprintf(os.Stderr, usage, strings.Join(system.Names(), ", "), strings.Join(scenario.Names(), ", "))
		return errors.New("no command")
	}
	switch args[0] {
	case "run":
		return runOne(ctx, args[1:])
	case "all":
		return runAll(ctx, args[1:])
	case "table":
		return table(args[1:])
	case "disk":
		dir := dataDir()
		if len(args) > 1 {
			dir = args[1]
		}
		d, err := report.MeasureDisk(dir)
		if err == nil {
			fmt.Println(d.P50, d.P99)
		}
		return err
	case "help", "-h", "--help":
		fmt.Printf(usage, strings.Join(system.Names(), ", "), strings.Join(scenario.Names(), ", "))
		return nil
	}
	return fmt.Errorf("no command %q", args[0])
}

func table(args []string) error {
	f := flag.NewFlagSet("bench table FILE", flag.ContinueOnError)
	into := f.String("into", "", "replace what stands between the marks in this `file` instead of printing")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("table takes one file of results")
	}
	results, err := report.Read(f.Arg(0))
	if err != nil {
		return err
	}
	if *into == "" {
		results.Table(os.Stdout)
		return nil
	}
	return results.WriteInto(*into)
}

// dataDir is where servers keep their data: on a disk, unlike /tmp at times.
func dataDir() string {
	if dir := os.Getenv("BENCH_DIR"); dir != "" {
		return dir
	}
	return "/var/tmp"
}

// flags are those that run and all share.
type flags struct {
	*flag.FlagSet
	options   scenario.Options
	dir       string
	slow      time.Duration
	scenarios string
	out       string
}

func newFlags(name string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet("bench "+name, flag.ContinueOnError), options: scenario.Defaults()}
	o := &f.options
	f.DurationVar(&o.Duration, "duration", o.Duration, "length of each timed scenario")
	f.DurationVar(&o.LatencyDuration, "latency-duration", o.LatencyDuration, "length of the latency scenario")
	f.IntVar(&o.LatencyRate, "latency-rate", o.LatencyRate, "adds per second of the latency scenario")
	f.IntVar(&o.Adders, "adders", o.Adders, "concurrent adders")
	f.IntVar(&o.Workers, "workers", o.Workers, "workers")
	f.IntVar(&o.Batch, "batch", o.Batch, "tasks of a batch")
	f.IntVar(&o.Drain, "drain", o.Drain, "tasks of the drain")
	f.DurationVar(&o.DrainLimit, "drain-limit", o.DrainLimit, "cut the drain short after this")
	f.DurationVar(&o.WarmUp, "warm-up", o.WarmUp, "warm-up before each scenario")
	f.StringVar(&f.dir, "dir", dataDir(), "folder on the disk to measure; data goes into temporary folders there")
	f.StringVar(&f.scenarios, "scenarios", strings.Join(scenario.Names(), ","), "which scenarios")
	f.StringVar(&f.out, "out", "", "write the results to this file as JSON (run: standard output when empty)")
	return f
}

// parse accepts flags on both sides of the other arguments.
func (f *flags) parse(args []string) ([]string, error) {
	var rest []string
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			break
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
	for _, n := range []int{f.options.Adders, f.options.Workers, f.options.Batch, f.options.Drain, f.options.LatencyRate} {
		if n < 1 {
			return nil, errors.New("counts must be at least 1")
		}
	}
	return rest, nil
}

func runOne(ctx context.Context, args []string) error {
	f := newFlags("run SYSTEM")
	sync := f.String("sync", "fsync", "fsync: acknowledge after the sync; relaxed: the system's usual interval")
	f.DurationVar(&f.slow, "slow-sync", 0, "make each sync of the server slower by this")
	rest, err := f.parse(args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return fmt.Errorf("run takes one system: %s", strings.Join(system.Names(), ", "))
	}
	mode := *sync
	if f.slow > 0 {
		mode += "-slow"
	}
	s := &campaign{flags: f}
	if err := s.begin(ctx); err != nil {
		return err
	}
	if err := s.run(ctx, rest[0], mode, 1); err != nil {
		return err
	}
	return s.finish(f.out)
}

func runAll(ctx context.Context, args []string) error {
	f := newFlags("all")
	rounds := f.Int("rounds", 1, "rounds; each starts with another system, tables show medians")
	modes := f.String("modes", "fsync,fsync-slow,relaxed", "which modes")
	systems := f.String("systems", strings.Join(system.Names(), ","), "which systems")
	f.DurationVar(&f.slow, "slow-sync", time.Millisecond, "how much slower a sync is in the mode fsync-slow")
	rest, err := f.parse(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("unexpected %q", rest[0])
	}
	if f.out == "" {
		return errors.New("all needs --out FILE")
	}
	s := &campaign{flags: f}
	if err := s.begin(ctx); err != nil {
		return err
	}
	names := strings.Split(*systems, ",")
	for round := range *rounds {
		for _, mode := range strings.Split(*modes, ",") {
			for i := range names {
				if err := s.run(ctx, names[(i+round)%len(names)], mode, round+1); err != nil {
					return err
				}
				if err := s.file.Write(f.out); err != nil {
					return err
				}
			}
		}
	}
	return s.finish(f.out)
}
