package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/taskcmd"
)

// maxOutputJSON is how much of a command's output goes into its JSON line.
const maxOutputJSON = 1 << 20

// Outcomes of a command.
const (
	outcomeCompleted = "completed"
	outcomeFailed    = "failed"
	outcomeDead      = "dead"
	outcomeStopped   = "stopped"
)

// commandHandler runs the command for each task and counts what came of it.
type commandHandler struct {
	runner    *taskcmd.Runner
	namespace string
	start     time.Time
	json      bool
	stdout    io.Writer
	lineMu    sync.Mutex
	// stats are the worker's: what the server has acknowledged.
	stats func() switchyard.WorkerStats

	running, failed, dead, stopped, left atomic.Int64
}

// onError tells of results that the server did not take.
func (h *commandHandler) onError(w io.Writer) func(switchyard.TaskError) {
	return func(e switchyard.TaskError) { fmt.Fprintf(w, "switchyard: %v\n", e) }
}

// HandleTask implements switchyard.Handler.
func (h *commandHandler) HandleTask(ctx context.Context, job *switchyard.Job) error {
	h.running.Add(1)
	defer h.running.Add(-1)
	stdout := h.stdout
	var output cappedBuffer
	if h.json {
		stdout = &output
	}
	start := time.Now()
	err := h.runner.Run(ctx, taskcmd.Task{
		ID: job.ID, Kind: job.Kind, Queue: job.Queue, Namespace: h.namespace,
		Attempt: job.Attempt, MaxAttempts: job.MaxAttempts, Headers: job.Headers, Payload: job.Payload,
	}, stdout)

	var failure *taskcmd.Failure
	outcome := outcomeCompleted
	switch {
	case err == nil:
	case !errors.As(err, &failure): // it was ended
		outcome = outcomeStopped
		h.stopped.Add(1)
		err = switchyard.ErrRelease
	case failure.Permanent:
		outcome = outcomeDead
		h.failed.Add(1)
		h.dead.Add(1)
		err = switchyard.NotRetryable(err)
	case job.Attempt >= job.MaxAttempts:
		outcome = outcomeDead
		h.failed.Add(1)
		h.dead.Add(1)
	default:
		outcome = outcomeFailed
		h.failed.Add(1)
	}
	if h.json {
		h.writeLine(job, outcome, time.Since(start), failure, &output)
	}
	return err
}

type workedView struct {
	ID              string  `json:"id"`
	Kind            string  `json:"kind"`
	Attempt         int     `json:"attempt"`
	Outcome         string  `json:"outcome"`
	Seconds         float64 `json:"seconds"`
	Output          *string `json:"output,omitempty"`
	OutputBase64    []byte  `json:"output_base64,omitempty"`
	OutputTruncated bool    `json:"output_truncated,omitempty"`
	Error           string  `json:"error,omitempty"`
}

func (h *commandHandler) writeLine(job *switchyard.Job, outcome string, took time.Duration, failure *taskcmd.Failure, output *cappedBuffer) {
	v := workedView{ID: job.ID, Kind: job.Kind, Attempt: job.Attempt, Outcome: outcome, Seconds: took.Seconds(), OutputTruncated: output.cut}
	if failure != nil {
		v.Error = failure.Text
	}
	if text := output.Bytes(); utf8.Valid(text) {
		s := string(text)
		v.Output = &s
	} else {
		v.OutputBase64 = text
	}
	h.lineMu.Lock()
	defer h.lineMu.Unlock()
	writeJSONLine(h.stdout, v)
}

func writeJSONLine(w io.Writer, v any) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(line.Bytes())
	return err
}

// cappedBuffer keeps the beginning of what is written to it.
type cappedBuffer struct {
	bytes.Buffer
	cut bool
}

func (b *cappedBuffer) Write(p []byte) (int, error) {
	keep := p
	if room := maxOutputJSON - b.Len(); len(keep) > room {
		keep, b.cut = keep[:room], true
	}
	b.Buffer.Write(keep)
	return len(p), nil
}

// ReadFrom hides Buffer's, which knows no limit.
func (b *cappedBuffer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// line is the progress line.
func (h *commandHandler) line(queue string) string {
	done := h.stats().Completed
	text := fmt.Sprintf("%s: completed %s, failed %s, running %s, %s", queue, count(done), count(h.failed.Load()), count(h.running.Load()),
		perSecond(float64(done)/time.Since(h.start).Seconds()))
	if left := h.left.Load(); left > 0 {
		text += fmt.Sprintf(", %s ready", count(left))
	}
	return text
}

type workSummaryView struct {
	Queue     string  `json:"queue"`
	Completed int64   `json:"completed"`
	Failed    int64   `json:"failed"`
	Dead      int64   `json:"dead"`
	Stopped   int64   `json:"stopped"`
	Delayed   int64   `json:"delayed,omitempty"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"rate"`
}

// summary prints what was done. left has the queue's counts at the end, if the
// worker ended because it was empty.
func (h *commandHandler) summary(a *app, queue string, left *v1.QueueCounts) error {
	took, done := time.Since(h.start), h.stats().Completed
	v := workSummaryView{
		Queue: queue, Completed: done, Failed: h.failed.Load(), Dead: h.dead.Load(), Stopped: h.stopped.Load(),
		Delayed: left.GetDelayed(), Seconds: took.Seconds(), Rate: float64(done) / took.Seconds(),
	}
	if h.json {
		return writeJSONLine(a.stdout, map[string]workSummaryView{"summary": v})
	}
	text := fmt.Sprintf("completed %s of %s in %s (%s)", plural(v.Completed, "task"), queue, roughly(took), perSecond(v.Rate))
	if v.Failed > 0 {
		text += fmt.Sprintf("; %s failed", plural(v.Failed, "attempt"))
	}
	if v.Dead > 0 {
		text += fmt.Sprintf("; %s dead", became(v.Dead))
	}
	if v.Stopped > 0 {
		text += fmt.Sprintf("; %s handed back", plural(v.Stopped, "task"))
	}
	if v.Delayed > 0 {
		text += fmt.Sprintf("; %s waits for a retry or for its time", plural(v.Delayed, "task"))
	}
	// Standard output belongs to the commands.
	_, err := fmt.Fprintln(a.stderr, text)
	return err
}
