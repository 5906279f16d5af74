package raftengine

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/hashicorp/go-hclog"
)

// hlog hands hashicorp/raft's log lines to slog. Its Info lines tell the steps of an
// election and are of use to a developer only; so they become Debug.
type hlog struct {
	l    *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hlog)(nil)

func (h *hlog) Log(level hclog.Level, msg string, args ...any) {
	switch {
	case level >= hclog.Error:
		h.Error(msg, args...)
	case level == hclog.Warn:
		h.Warn(msg, args...)
	default:
		h.Debug(msg, args...)
	}
}
func (h *hlog) Trace(string, ...any)          {}
func (h *hlog) Debug(msg string, args ...any) { h.l.Debug("raft: "+msg, args...) }
func (h *hlog) Info(msg string, args ...any)  { h.l.Debug("raft: "+msg, args...) }

func (h *hlog) Warn(msg string, args ...any) {
	if h.ordinary(msg) {
		h.l.Debug("raft: "+msg, args...)
		return
	}
	h.l.Warn("raft: "+msg, args...)
}

func (h *hlog) Error(msg string, args ...any) {
	if h.ordinary(msg) {
		h.l.Debug("raft: "+msg, args...)
		return
	}
	h.l.Error("raft: "+msg, args...)
}

// ordinary tells whether a line is about what Raft is there for: members that do not
// answer, elections, logs that are brought in line. Raft says it again with every attempt;
// the engine says by itself, once, what an operator should know.
func (h *hlog) ordinary(msg string) bool {
	switch msg {
	case "heartbeat timeout reached, starting election", "Election timeout reached, restarting election",
		"no known peers, aborting election", "not part of stable configuration, aborting election",
		"heartbeat timeout reached, not part of a stable configuration or a non-voter, not triggering a leader election",
		"failed to heartbeat to", "failed to appendEntries to", "failed to pipeline appendEntries", "failed to start pipeline replication to",
		"failed to make requestVote RPC", "failed to contact", "failed to contact quorum of nodes, stepping down",
		"rejecting vote request since we have a leader", "rejecting pre-vote request since we have a leader",
		"rejecting vote request since our last index is greater", "rejecting pre-vote request since our last index is greater",
		"rejecting vote request since our last term is greater", "rejecting pre-vote request since our last term is greater",
		"rejecting vote request since node is not in configuration", "rejecting pre-vote request since node is not in configuration",
		"rejecting vote request since node is not a voter", "rejecting pre-vote request since node is not a voter",
		"duplicate requestVote from", "appendEntries rejected, sending older logs", "clearing log suffix",
		"failed to get previous log", "previous log term mis-match", "failed to get log", "peer has newer term, stopping replication",
		"skipping application of old log", "failed to send snapshot to", "failed to install snapshot", "installSnapshot rejected to",
		"new leader elected, stepping down":
		return true
	}
	return false
}

func (h *hlog) IsTrace() bool         { return false }
func (h *hlog) IsDebug() bool         { return true }
func (h *hlog) IsInfo() bool          { return true }
func (h *hlog) IsWarn() bool          { return true }
func (h *hlog) IsError() bool         { return true }
func (h *hlog) ImpliedArgs() []any    { return h.args }
func (h *hlog) Name() string          { return h.name }
func (h *hlog) SetLevel(hclog.Level)  {}
func (h *hlog) GetLevel() hclog.Level { return hclog.Debug }
func (h *hlog) With(a ...any) hclog.Logger {
	return &hlog{l: h.l.With(a...), name: h.name, args: append(append([]any(nil), h.args...), a...)}
}
func (h *hlog) Named(name string) hclog.Logger {
	return &hlog{l: h.l, name: h.name + "." + name, args: h.args}
}
func (h *hlog) ResetNamed(name string) hclog.Logger { return &hlog{l: h.l, name: name, args: h.args} }
func (h *hlog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(h.l.Handler(), slog.LevelDebug)
}
func (h *hlog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }

// pebbleLog hands Pebble's log lines to slog, and its fatal errors to the engine.
type pebbleLog struct{ e *Engine }

func (p pebbleLog) Infof(format string, args ...any) {
	p.e.opts.Logger.Debug("pebble: " + fmt.Sprintf(format, args...))
}
func (p pebbleLog) Errorf(format string, args ...any) {
	p.e.opts.Logger.Error("pebble: " + fmt.Sprintf(format, args...))
}

// fatalGrace is how long OnFatal has to end the process after an error that a library
// cannot return from.
const fatalGrace = 10 * time.Second

// Fatalf must not return: Pebble's state is undefined behind it.
func (p pebbleLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf("rows: "+format, args...)
	p.e.fail(err)
	time.Sleep(fatalGrace)
	panic(err)
}
