package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/server"
)

func defaultAddress() string { return server.DefaultListen }

func newDevCommand(a *app) *cobra.Command {
	var listen, data, addressFile, logLevel string
	var memory, pprof bool
	var durability string
	var syncInterval time.Duration
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a server on this machine, without a configuration file",
		Long: `Run a server with all roles in one process. It listens on the loopback address
and keeps its data in ./switchyard-data, so the same command finds them again.

The environment variables of "switchyard server" apply too (SWITCHYARD_DATA_DIR,
SWITCHYARD_LOG_LEVEL, …); flags win over them. Ctrl-C stops the server: calls in
progress end, tasks that no worker has received go back. A second Ctrl-C stops
it at once.`,
		Example: `  switchyard dev
  switchyard dev --data /var/tmp/queue --listen 127.0.0.1:9000
  switchyard dev --memory --listen 127.0.0.1:0 --address-file addr.txt`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("address") {
				return usageOf(c, errors.New("--address is where a client finds a server; --listen says where this one listens"))
			}
			cfg, err := server.LoadConfig("", devEnviron())
			if err != nil {
				return usageOf(c, err)
			}
			given := c.Flags().Changed
			if given("listen") {
				cfg.Listen = listen
			}
			if given("data") {
				cfg.DataDir = data
			}
			if given("memory") {
				cfg.Memory = memory
			}
			if given("pprof") {
				cfg.Pprof = pprof
			}
			if given("durability") {
				cfg.Durability = durability
			}
			if given("sync-interval") {
				cfg.SyncInterval = syncInterval
			}
			if given("log-level") {
				cfg.Log.Level = logLevel
			}
			if err := cfg.Validate(); err != nil {
				return usageOf(c, err)
			}
			return a.serve(c.Context(), cfg, addressFile, a.devBanner)
		},
	}
	def := server.DefaultConfig()
	f := c.Flags()
	f.StringVar(&listen, "listen", def.Listen, "`HOST:PORT` to listen on; port 0 takes a free one")
	f.StringVar(&data, "data", def.DataDir, "`FOLDER` for the data; made when missing")
	f.BoolVar(&memory, "memory", false, "keep everything in memory: gone when the server stops")
	f.Var(newChoice(&durability, server.DurabilityFsync, server.DurabilityInterval), "durability", "when a write is acknowledged: fsync (it is on the disk) or interval (the log is synced every --sync-interval)")
	f.DurationVar(&syncInterval, "sync-interval", def.SyncInterval, "time between two syncs with --durability interval")
	f.BoolVar(&pprof, "pprof", false, "serve /debug/pprof")
	f.StringVar(&logLevel, "log-level", "warn", "debug, info, warn or error")
	f.StringVar(&addressFile, "address-file", "", "write the address to this `FILE` when the server answers (for scripts)")
	return c
}

// devEnviron is the environment with dev's own defaults in front.
func devEnviron() []string {
	return append([]string{"SWITCHYARD_LOG_LEVEL=warn"}, os.Environ()...)
}

func newServerCommand(a *app) *cobra.Command {
	var config, addressFile string
	c := &cobra.Command{
		Use:   "server",
		Short: "Run a server with a configuration file",
		Long: `Run a server. Every setting has a default; the configuration file overrides it,
and an environment variable overrides the file: SWITCHYARD_ and the setting's
name in capitals, dots as underscores (log.level is SWITCHYARD_LOG_LEVEL).
docs/configuration.md lists all settings.`,
		Example: `  switchyard server --config /etc/switchyard.yaml
  SWITCHYARD_DATA_DIR=/var/lib/switchyard switchyard server`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := server.LoadConfig(config, os.Environ())
			if err != nil {
				return &exitError{code: exitUsage, err: err}
			}
			return a.serve(c.Context(), cfg, addressFile, nil)
		},
	}
	c.Flags().StringVar(&config, "config", "", "configuration `FILE` (YAML)")
	c.Flags().StringVar(&addressFile, "address-file", "", "write the address to this `FILE` when the server answers (for scripts)")
	return c
}

// readyInterval is how often a starting server is asked whether it is ready.
const readyInterval = 2 * time.Millisecond

// serve runs a server until it is interrupted. banner, if any, is called when
// the server takes calls.
func (a *app) serve(parent context.Context, cfg server.Config, addressFile string, banner func(server.Config, string)) error {
	ctx, now, stop := interrupts(parent)
	defer stop()
	started, done := make(chan *server.Server, 1), make(chan error, 1)
	go func() {
		s, err := server.New(cfg, newLogger(cfg.Log, a)) // may take a while: it recovers the data
		if err != nil {
			done <- startProblem(cfg, err)
			return
		}
		started <- s
		done <- s.Run(ctx)
	}()

	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	var s *server.Server
	for {
		select {
		case err := <-done:
			return err
		case <-now.Done():
			return &exitError{code: exitInterrupted, err: errors.New("stopped at once")}
		case s = <-started:
		case <-tick.C:
		}
		if s == nil || s.Ready() != nil {
			continue
		}
		tick.Stop()
		addr := s.Addr()
		s = nil // it is announced once
		if addressFile != "" {
			if err := writeWhole(addressFile, addr+"\n"); err != nil {
				stop()
				return errors.Join(err, <-done)
			}
			defer os.Remove(addressFile)
		}
		if banner != nil {
			banner(cfg, addr)
		}
	}
}

// startProblem says what can be done about a server that does not start.
func startProblem(cfg server.Config, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w; does a server run there already? choose another address with --listen or the setting listen", err)
	case reason.Of(err) == reason.StorageFailed && !cfg.Memory:
		err = fmt.Errorf("%w; look closer with: switchyard check %s", err, cfg.DataDir)
	}
	return &exitError{code: exitFailed, err: err}
}

func newLogger(cfg server.LogConfig, a *app) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo // Validate has refused what is not a level
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, opts))
	}
	return slog.New(slog.NewTextHandler(a.stderr, opts))
}

// writeWhole writes a file so that a reader sees nothing or all of it.
func writeWhole(name, text string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".switchyard-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func (a *app) devBanner(cfg server.Config, addr string) {
	data := "in memory only: gone when the server stops"
	if !cfg.Memory {
		data = cfg.DataDir
		if cfg.Durability == server.DurabilityInterval {
			data += fmt.Sprintf("  (log synced every %v)", cfg.SyncInterval)
		} else {
			data += "  (synced before every answer)"
		}
	}
	elsewhere := ""
	if addr != server.DefaultListen {
		elsewhere = " --address " + addr
	}
	fmt.Fprintf(a.stdout, `Switchyard is running.

  Address  %s  (gRPC and HTTP)
  Data     %s
  Metrics  http://%s/metrics

Try in another terminal:

  switchyard%s add hello world
  switchyard%s work hello -- cat
  switchyard%s queue list

Ctrl-C stops it.
`, addr, data, addr, elsewhere, elsewhere, elsewhere)
}
