package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/bench/internal/report"
	"github.com/switchyard-dev/switchyard/bench/internal/scenario"
	"github.com/switchyard-dev/switchyard/bench/internal/slowsync"
	"github.com/switchyard-dev/switchyard/bench/internal/system"
)

const startTimeout = 60 * time.Second

// campaign measures one system after the other and gathers the results.
type campaign struct {
	flags  *flags
	file   report.File
	failed int // scenarios
}

func (s *campaign) begin(ctx context.Context) error {
	s.file = report.File{Started: time.Now(), Options: s.flags.options}
	var err error
	if s.file.Machine, err = report.DescribeMachine(s.flags.dir); err != nil {
		return err
	}
	if s.file.Disk, err = report.MeasureDisk(s.flags.dir); err != nil {
		return fmt.Errorf("measure the disk: %w", err)
	}
	if s.flags.slow <= 0 {
		return nil
	}
	dir, err := os.MkdirTemp(s.flags.dir, "bench-disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	command, state, err := supervisor(dir)
	if err != nil {
		return err
	}
	state.SetDelay(s.flags.slow)
	slowed, err := report.MeasureSupervised(ctx, append(command, os.Args[0], "disk", s.flags.dir)...)
	if err != nil {
		return fmt.Errorf("measure the slowed disk: %w", err)
	}
	s.file.SlowedDisk, s.file.SlowSync = &slowed, s.flags.slow.String()
	return nil
}

// supervisor returns the command that slows the syncs of the one that follows it,
// and the state that steers it.
func supervisor(dir string) ([]string, *slowsync.State, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "slowsync.state")
	state, err := slowsync.OpenState(path)
	if err != nil {
		return nil, nil, err
	}
	return []string{self, slowsync.SuperviseArg, path}, state, nil
}

// run runs the scenarios on one system. A scenario that fails is reported in the
// results; only what keeps everything from running is an error.
func (s *campaign) run(ctx context.Context, name, mode string, round int) error {
	sys, err := system.Get(name)
	if err != nil {
		return err
	}
	durability, slow, err := parseMode(mode)
	if err != nil {
		return err
	}
	run := report.Run{System: name, Settings: sys.Settings(durability), Mode: mode, Round: round, LoadBefore: report.LoadAverage()}
	fmt.Fprintf(os.Stderr, "== %s, %s, round %d\n", name, mode, round)
	var live *liveServer
	defer func() {
		if live != nil {
			live.stop()
		}
	}()
	for _, sc := range strings.Split(s.flags.scenarios, ",") {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if live == nil {
			if live, err = s.start(ctx, sys, durability, slow); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			run.Version = live.server.Version()
		}
		result := scenario.Run(ctx, live.server, sc, s.flags.options, live.sync(s.flags.slow))
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "  "+line(result))
		if result.Error != "" {
			s.failed++
		}
		run.Results = append(run.Results, result)
		// Fresh data for each scenario where a start is cheap, and after trouble.
		if freshEachTime(sys) || result.Error != "" {
			live.stop()
			live = nil
		}
	}
	s.file.Runs = append(s.file.Runs, run)
	return nil
}

func freshEachTime(sys system.System) bool {
	slow, ok := sys.(interface{ SlowStart() bool })
	return !ok || !slow.SlowStart()
}

func parseMode(mode string) (system.Durability, bool, error) {
	base, slow := strings.CutSuffix(mode, "-slow")
	switch d := system.Durability(base); d {
	case system.Fsync, system.Relaxed:
		return d, slow, nil
	}
	return "", false, fmt.Errorf("mode %q; there are: fsync, fsync-slow, relaxed", mode)
}

// liveServer is a running server with its folder.
type liveServer struct {
	server system.Server
	dir    string
	state  *slowsync.State
}

func (s *campaign) start(ctx context.Context, sys system.System, d system.Durability, slow bool) (*liveServer, error) {
	dir, err := os.MkdirTemp(s.flags.dir, "bench-"+sys.Name()+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // servers that run as another user
		return nil, err
	}
	l := &liveServer{dir: dir}
	env := system.Env{Dir: filepath.Join(dir, "data"), Durability: d, StartTimeout: startTimeout}
	if err := os.Mkdir(env.Dir, 0o755); err != nil {
		return nil, err
	}
	if slow {
		if env.Supervise, l.state, err = supervisor(dir); err != nil {
			return nil, err
		}
		if err := os.Chmod(filepath.Join(dir, "slowsync.state"), 0o666); err != nil {
			return nil, err
		}
	}
	if l.server, err = sys.Start(ctx, env); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return l, nil
}

func (l *liveServer) sync(delay time.Duration) scenario.Sync {
	if l.state == nil {
		return scenario.Sync{}
	}
	return scenario.Sync{
		Slow: func(on bool) {
			if on {
				l.state.SetDelay(delay)
			} else {
				l.state.SetDelay(0)
			}
		},
		Count: l.state.Syncs,
	}
}

func (l *liveServer) stop() {
	if err := l.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "  stop:", err)
	}
	if err := os.RemoveAll(l.dir); err != nil {
		fmt.Fprintln(os.Stderr, "  remove:", err)
	}
}

func line(r scenario.Result) string {
	b := fmt.Sprintf("%-11s", r.Scenario)
	if r.Error != "" {
		return b + "FAILED: " + r.Error
	}
	if r.P50 > 0 {
		b += fmt.Sprintf(" p50 %8.0f µs  p99 %8.0f µs ", r.P50, r.P99)
	}
	if r.Rate > 0 {
		b += fmt.Sprintf(" %9.0f/s", r.Rate)
	}
	if r.AddRate > 0 {
		b += fmt.Sprintf("  (meanwhile added %.0f/s, completed %.0f/s)", r.AddRate, r.CompletedWhileAdding)
	}
	b += fmt.Sprintf("  %d tasks in %.1f s", r.Tasks, r.Seconds)
	if r.Syncs > 0 {
		b += fmt.Sprintf(", %d syncs", r.Syncs)
	}
	if r.Duplicates > 0 {
		b += fmt.Sprintf(", %d handled again", r.Duplicates)
	}
	if r.Note != "" {
		b += ", " + r.Note
	}
	return b
}

// finish writes the results and prints the tables.
func (s *campaign) finish(out string) error {
	s.file.Finished = time.Now()
	if out == "" {
		b, err := json.MarshalIndent(&s.file, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(b))
		fmt.Println()
	} else if err := s.file.Write(out); err != nil {
		return err
	}
	s.file.Table(os.Stdout)
	if s.failed > 0 {
		return fmt.Errorf("%d scenarios failed", s.failed)
	}
	return nil
}
