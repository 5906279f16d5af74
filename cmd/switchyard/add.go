package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard"
	"github.com/switchyard-dev/switchyard/internal/bulkadd"
)

const (
	// maxLineBytes bounds one line of the input: no server takes larger requests.
	maxLineBytes = 16 << 20
	// maxRefusedShown is how many refused tasks are told one by one.
	maxRefusedShown = 10
	// maxBatch and maxInFlight bound the flags of a stream.
	maxBatch    = 10_000
	maxInFlight = 100
)

// addFlags are the flags of add.
type addFlags struct {
	files, null, progress bool
	kind, id, runAt       string
	headers               []string
	delay, ttl, leaseTime time.Duration
	maxAttempts           int
	priority              int
	fairnessKey           string
	fairnessWeight        float64
	retry                 retryFlags
	batch, inFlight       int
}

func newAddCommand(a *app) *cobra.Command {
	var f addFlags
	c := &cobra.Command{
		Use:   "add QUEUE {PAYLOAD | - | --files {FILE... | -}}",
		Short: "Add tasks to a queue",
		Long: `Add tasks to a queue: one with the given payload, or one for every line of the
standard input (-), or one for every file name (--files; the payload is the
name, the file is not read). The task is durable when the command says so.

One task prints its id. A stream is sent in batches, several in flight, so its
order is only kept with --in-flight 1; a summary is printed at the end. Lines
are taken as they are, without the line feed; an empty line is a task without
payload, an empty file name is left out. Ctrl-C ends a stream after the batches
in flight and tells how many tasks were added.`,
		Example: `  switchyard add mails '{"to":"ann@example.com"}' --kind welcome --header tenant=acme
  switchyard add reports monthly --delay 2h --max-attempts 3
  switchyard add lines - < access.log
  switchyard add thumbnails --files *.jpg
  find . -name '*.go' -print0 | switchyard add words --files - --null`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageOf(c, errors.New("missing argument QUEUE"))
			}
			task, err := f.task(c)
			if err != nil {
				return usageOf(c, err)
			}
			queue, payloads := args[0], args[1:]
			src, err := f.source(a, payloads)
			if err != nil {
				return usageOf(c, err)
			}
			if src == nil {
				task.Payload = []byte(payloads[0])
				return a.addOne(c.Context(), queue, task)
			}
			if f.id != "" {
				return usageOf(c, errors.New("--id is for a single task"))
			}
			return a.addStream(c.Context(), queue, task, src, &f)
		},
	}
	fs := c.Flags()
	fs.BoolVar(&f.files, "files", false, "add one task for every file name that follows, or for every name on standard input (-)")
	fs.BoolVarP(&f.null, "null", "0", false, "lines of standard input end with a zero byte, as those of find -print0")
	fs.StringVar(&f.kind, "kind", "default", "name of the handler")
	fs.StringArrayVar(&f.headers, "header", nil, "`NAME=VALUE` that is carried along; may be given several times")
	fs.DurationVar(&f.delay, "delay", 0, "do not start before so long from now")
	fs.StringVar(&f.runAt, "run-at", "", "do not start before this `TIME` (RFC 3339: 2030-01-02T15:04:05Z)")
	fs.DurationVar(&f.ttl, "ttl", 0, "drop the task when it has not started so long after it was added (default: the queue's setting)")
	fs.IntVar(&f.maxAttempts, "max-attempts", 0, "attempts before the task is dead (default: the queue's setting)")
	fs.DurationVar(&f.leaseTime, "lease-time", 0, "how long a worker holds the task before it goes to another (default: the queue's setting)")
	fs.IntVar(&f.priority, "priority", 0, "1 to 5, 1 goes first (default: 3)")
	fs.StringVar(&f.fairnessKey, "fairness-key", "", "`NAME` of whose task it is: those of different keys take turns")
	fs.Float64Var(&f.fairnessWeight, "fairness-weight", 0, "how large the key's share is, 0.001 or more (default: 1)")
	fs.StringVar(&f.id, "id", "", "the task's `UUID`; adding it again within 10 minutes does nothing (default: a new one)")
	f.retry.add(c)
	fs.BoolVar(&f.progress, "progress", false, "show progress even when standard error is not a terminal")
	fs.IntVar(&f.batch, "batch", bulkadd.DefaultBatchItems, "most tasks in one request of a stream")
	fs.IntVar(&f.inFlight, "in-flight", bulkadd.DefaultInFlight, "most requests of a stream on their way at once")
	return c
}

// task returns what all tasks of the call have in common.
func (f *addFlags) task(c *cobra.Command) (switchyard.Task, error) {
	given := c.Flags().Changed
	t := switchyard.Task{ID: f.id, Kind: f.kind, Delay: f.delay, TTL: f.ttl, LeaseTime: f.leaseTime, MaxAttempts: f.maxAttempts,
		Priority: f.priority, FairnessKey: f.fairnessKey, FairnessWeight: f.fairnessWeight}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return t, fmt.Errorf("--header %q is not NAME=VALUE", h)
		}
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers[name] = value
	}
	if f.runAt != "" {
		if given("delay") {
			return t, errors.New("give --delay or --run-at, not both")
		}
		at, err := time.Parse(time.RFC3339, f.runAt)
		if err != nil {
			return t, fmt.Errorf("--run-at %q is not a time like 2030-01-02T15:04:05Z", f.runAt)
		}
		t.RunAt = at
	}
	for _, limit := range []struct {
		flag string
		ok   bool
		must string
	}{
		{"kind", f.kind != "", "not be empty"},
		{"id", f.id != "" || !given("id"), "not be empty"},
		{"delay", f.delay >= 0, "not be negative"},
		{"ttl", f.ttl > 0 || !given("ttl"), "be more than 0"},
		{"lease-time", f.leaseTime > 0 || !given("lease-time"), "be more than 0"},
		{"max-attempts", f.maxAttempts > 0 || !given("max-attempts"), "be more than 0"},
		{"priority", f.priority > 0 || !given("priority"), "be 1 to 5"},
		{"fairness-weight", f.fairnessWeight > 0 || !given("fairness-weight"), "be more than 0"},
		{"batch", f.batch >= 1 && f.batch <= maxBatch, fmt.Sprintf("be 1 to %d", maxBatch)},
		{"in-flight", f.inFlight >= 1 && f.inFlight <= maxInFlight, fmt.Sprintf("be 1 to %d", maxInFlight)},
	} {
		if !limit.ok {
			return t, fmt.Errorf("--%s %s is out of range: it must %s", limit.flag, c.Flags().Lookup(limit.flag).Value, limit.must)
		}
	}
	if p := f.retry.policy(c); p != nil {
		t.Retry = &switchyard.RetryPolicy{InitialBackoff: f.retry.backoff, MaxBackoff: f.retry.maxBackoff, Multiplier: f.retry.multiplier, Jitter: f.retry.jitter}
		if given("jitter") && f.retry.jitter == 0 {
			t.Retry.Jitter = switchyard.NoJitter
		}
	}
	return t, nil
}

// source returns the stream that the arguments ask for, nil for one payload.
func (f *addFlags) source(a *app, args []string) (bulkadd.Source, error) {
	stdin := len(args) == 1 && args[0] == "-"
	if f.null && !stdin {
		return nil, errors.New("--null is for standard input: give - too")
	}
	switch {
	case stdin:
		delimiter := byte('\n')
		if f.null {
			delimiter = 0
		}
		src := bulkadd.NewSplit(a.stdin, delimiter, maxLineBytes)
		src.SkipEmpty = f.files
		return src, nil
	case f.files && len(args) == 0:
		return nil, errors.New("--files wants file names, or - for names on standard input")
	case f.files:
		return bulkadd.Strings(args), nil
	case len(args) == 0:
		return nil, errors.New("missing PAYLOAD: give a text, - for the lines of standard input, or --files")
	case len(args) > 1:
		return nil, fmt.Errorf("unexpected argument %q: one payload at a time, or --files for a list of file names", args[1])
	}
	return nil, nil
}

type addedView struct {
	ID           string `json:"id"`
	AlreadyAdded bool   `json:"already_added"`
}

func (a *app) addOne(parent context.Context, queue string, task switchyard.Task) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(parent, a.timeout)
	defer cancel()
	if err := a.reach(ctx, client); err != nil {
		return err
	}
	result, err := client.Add(ctx, queue, task)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(addedView{ID: result.ID, AlreadyAdded: result.AlreadyAdded})
	}
	if result.AlreadyAdded {
		fmt.Fprintln(a.stderr, "The queue had this task already; it was not added again.")
	}
	_, err = fmt.Fprintln(a.stdout, result.ID)
	return err
}

type addSummaryView struct {
	Queue        string  `json:"queue"`
	Added        int64   `json:"added"`
	AlreadyAdded int64   `json:"already_added"`
	Refused      int64   `json:"refused"`
	Unknown      int64   `json:"unknown"`
	NotAdded     int64   `json:"not_added"`
	Complete     bool    `json:"complete"`
	Seconds      float64 `json:"seconds"`
	Rate         float64 `json:"rate"`
}

// addStream adds a task like the given one for every item of the stream.
func (a *app) addStream(parent context.Context, queue string, task switchyard.Task, src bulkadd.Source, f *addFlags) error {
	client, err := a.dial(switchyard.WithAddSharing(switchyard.AddSharing{MaxTasks: f.batch, MaxRequests: f.inFlight}))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, now, stop := interrupts(parent)
	defer stop()
	if err := a.reach(ctx, client); err != nil {
		return err
	}

	adder := &bulkadd.Adder{BatchItems: f.batch, InFlight: f.inFlight}
	adder.Send = func(_ context.Context, items []bulkadd.Item) ([]bulkadd.Outcome, error) {
		call, cancel := context.WithTimeout(now, a.timeout)
		defer cancel()
		return addBatch(call, client, queue, task, items)
	}
	start := time.Now()
	p := a.startProgress(f.progress, time.Second, 200*time.Millisecond, func() string {
		s := adder.Summary()
		return fmt.Sprintf("added %s to %s, %s", plural(s.Added, "task"), queue, perSecond(float64(s.Added)/time.Since(start).Seconds()))
	})
	var mu sync.Mutex
	refused := 0
	errs := p.beside(a.stderr)
	adder.OnRefused = func(item bulkadd.Item, err error) {
		mu.Lock()
		defer mu.Unlock()
		if refused++; refused <= maxRefusedShown {
			_, text := a.explain(err)
			fmt.Fprintf(errs, "switchyard: item %d was refused: %s\n", item.Number, text)
		}
	}
	err = adder.Run(ctx, src)
	took := time.Since(start)
	p.end()

	code, text := a.explain(err)
	s := adder.Summary()
	if code == exitUsage || code == exitNotFound || code == exitRefused {
		s.Unknown = 0 // the server has said that it did not take them
	}
	v := addSummaryView{
		Queue: queue, Added: s.Added, AlreadyAdded: s.AlreadyAdded, Refused: s.Refused, Unknown: s.Unknown,
		NotAdded: s.Read - s.Added - s.AlreadyAdded - s.Refused - s.Unknown,
		Complete: err == nil, Seconds: took.Seconds(), Rate: float64(s.Added) / took.Seconds(),
	}
	if printErr := a.printAddSummary(v, took); printErr != nil {
		return printErr
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &exitError{code: exitInterrupted, err: errors.New("interrupted: the rest of the input was not added")}
	case err != nil:
		return &exitError{code: code, err: fmt.Errorf("stopped before the end of the input: %s", text)}
	case s.Refused > 0:
		return &exitError{code: exitPartly, err: fmt.Errorf("%s refused", was(s.Refused, "task"))}
	}
	return nil
}

// addBatch adds one batch; the outcome of every task is in its place.
func addBatch(ctx context.Context, client *switchyard.Client, queue string, task switchyard.Task, items []bulkadd.Item) ([]bulkadd.Outcome, error) {
	tasks := make([]switchyard.Task, len(items))
	for i, item := range items {
		tasks[i] = task
		tasks[i].Payload = item.Data
	}
	results, err := client.AddMany(ctx, queue, tasks)
	var partly *switchyard.BatchError
	if err != nil && !errors.As(err, &partly) {
		return nil, err
	}
	outcomes := make([]bulkadd.Outcome, len(results))
	for i, r := range results {
		outcomes[i] = bulkadd.Outcome{AlreadyAdded: r.AlreadyAdded, Err: r.Err}
	}
	return outcomes, nil
}

func (a *app) printAddSummary(v addSummaryView, took time.Duration) error {
	if a.json() {
		return a.printJSON(v)
	}
	text := fmt.Sprintf("added %s to %s in %s (%s)", plural(v.Added, "task"), v.Queue, roughly(took), perSecond(v.Rate))
	for _, more := range []struct {
		n    int64
		what string
	}{
		{v.AlreadyAdded, "had been added before"}, {v.Refused, "refused"},
		{v.Unknown, "sent without an answer, so perhaps added"}, {v.NotAdded, "read but not added"},
	} {
		if more.n > 0 {
			text += fmt.Sprintf("; %s %s", count(more.n), more.what)
		}
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}

func was(n int64, word string) string {
	if n == 1 {
		return plural(n, word) + " was"
	}
	return plural(n, word) + " were"
}
