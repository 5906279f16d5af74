package switchyard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// IncomingCall is a call in a worker's hands.
type IncomingCall struct {
	// Queue is where it came from, Kind its handler's name.
	Queue, Kind string
	// Payload and Headers are what the caller gave.
	Payload []byte
	Headers map[string]string
}

// CallHandler answers calls. It must be safe for concurrent use.
//
// The answer, or the error's text, goes to the caller. ctx ends when the caller stops
// waiting. A panic counts as an error.
type CallHandler func(ctx context.Context, call *IncomingCall) ([]byte, error)

// CallWorkerOptions are a call worker's settings. Fields left at zero take the
// default.
type CallWorkerOptions struct {
	// Concurrency is how many handlers run at once; default 10 per CPU that the
	// process may use (GOMAXPROCS).
	Concurrency int
	// PollWait is how long a poll waits for a call; default 20 s, 60 s at most.
	PollWait time.Duration
	// StopTimeout is how long running handlers may go on when Run's context has
	// ended; default 10 s. Their contexts are cancelled then.
	StopTimeout time.Duration
	// Logger is where the worker logs; default: the client's logger.
	Logger *slog.Logger
	// Identity is the name of this worker; default: the client's identity.
	Identity string
}

// CallWorker answers the calls of one queue; see Client.Call.
type CallWorker struct {
	client  *Client
	queue   string
	handler CallHandler
	opts    CallWorkerOptions
}

// NewCallWorker returns a call worker of a queue. It does nothing until Run is called.
func NewCallWorker(client *Client, queue string, handler CallHandler, opts CallWorkerOptions) *CallWorker {
	setDefault(&opts.Concurrency, 10*runtime.GOMAXPROCS(0))
	setDefault(&opts.PollWait, 20*time.Second)
	setDefault(&opts.StopTimeout, 10*time.Second)
	setDefault(&opts.Identity, client.opts.identity)
	if opts.Logger == nil {
		opts.Logger = client.opts.logger
	}
	return &CallWorker{client: client, queue: queue, handler: handler, opts: opts}
}

// Run answers calls until ctx ends; then it polls no more and waits until the running
// handlers have answered. It ends by itself, with an error, when polling can never
// succeed. Everything that may pass is waited out. Run may be called again after it
// returned.
func (w *CallWorker) Run(ctx context.Context) error {
	if w.opts.Concurrency < 1 || w.opts.PollWait < 0 || w.opts.StopTimeout < 0 {
		return fmt.Errorf("switchyard: the settings of the call worker make no sense: %+v", w.opts)
	}
	// Running handlers outlive ctx by the stop timeout.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(ErrWorkerStopped)
	timeout := context.AfterFunc(ctx, func() {
		time.AfterFunc(w.opts.StopTimeout, func() { stop(ErrWorkerStopped) })
	})
	defer timeout()

	seats := make(chan struct{}, w.opts.Concurrency)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for misses := 0; ; {
		n := takeSeats(ctx, seats)
		if n == 0 {
			return nil
		}
		start := time.Now()
		calls, err := w.poll(ctx, n)
		for _, call := range calls {
			handlers.Go(func() {
				defer func() { <-seats }()
				w.serve(work, call)
			})
		}
		for range n - len(calls) {
			<-seats
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (final(err) || w.client.ctx.Err() != nil):
			if w.client.ctx.Err() != nil {
				return ErrClientClosed
			}
			return callError(ctx, "poll for calls of queue", quote(w.queue), err)
		case err != nil:
			if misses++; misses == 1 {
				w.opts.Logger.Warn("cannot poll for calls; trying again", "queue", w.queue, "error", err)
			}
		case len(calls) == 0 && time.Since(start) < w.opts.PollWait/2: // the server is stopping, say
			misses++
		default:
			misses = 0
		}
		if misses > 0 {
			sleep(ctx, w.client.opts.backoff.Delay(misses, rand.Float64()))
		}
	}
}

// takeSeats waits for a free seat and takes all that are free; 0 when ctx ended.
func takeSeats(ctx context.Context, seats chan struct{}) int {
	select {
	case seats <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case seats <- struct{}{}:
			if n+1 == 100 { // as many as one poll should ask for
				return n + 1
			}
		default:
			return n
		}
	}
}

func (w *CallWorker) poll(ctx context.Context, n int) ([]*callWithDeadline, error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.PollWait+pollGrace)
	defer cancel()
	response, err := w.client.calls.PollCalls(ctx, &v1.PollCallsRequest{
		Namespace: w.client.opts.namespace, Queue: w.queue, Identity: w.opts.Identity, MaxCalls: int32(n), Wait: durationpb.New(w.opts.PollWait),
	})
	if err != nil {
		return nil, err
	}
	received := time.Now()
	calls := make([]*callWithDeadline, len(response.GetCalls()))
	for i, c := range response.GetCalls() {
		left := c.GetDeadline().AsTime().Sub(response.GetServerTime().AsTime())
		calls[i] = &callWithDeadline{c, received.Add(left)}
	}
	return calls, nil
}

// callWithDeadline is a call with its deadline by this process's clock.
type callWithDeadline struct {
	*v1.WaitingCall
	deadline time.Time
}

// serve runs the handler and sends its answer.
func (w *CallWorker) serve(ctx context.Context, c *callWithDeadline) {
	ctx, cancel := context.WithDeadline(ctx, c.deadline)
	defer cancel()
	answer := &v1.AnswerCallsRequest_Answer{CallToken: c.GetCallToken()}
	payload, err := w.run(ctx, &IncomingCall{Queue: w.queue, Kind: c.GetKind(), Payload: c.GetPayload(), Headers: c.GetHeaders()})
	if answer.Payload = payload; err != nil {
		if answer.Error = err.Error(); answer.Error == "" {
			answer.Error = "the handler failed"
		}
	}
	// The answer may still go out when the handler was cancelled because of a stop.
	sendCtx, stop := context.WithDeadline(context.WithoutCancel(ctx), c.deadline)
	defer stop()
	for try := 1; ; try++ {
		response, err := w.client.calls.AnswerCalls(sendCtx, &v1.AnswerCallsRequest{
			Namespace: w.client.opts.namespace, Queue: w.queue, Identity: w.opts.Identity, Answers: []*v1.AnswerCallsRequest_Answer{answer},
		})
		if err == nil {
			if err = reason.FromItem(response.GetResults()[0].GetError()); err == nil {
				return
			}
		}
		if !transient(err) || !w.client.pause(sendCtx, try) {
			w.opts.Logger.Warn("the answer to a call did not reach its caller", "queue", w.queue, "kind", c.GetKind(), "error", err)
			return
		}
	}
}

func (w *CallWorker) run(ctx context.Context, call *IncomingCall) (payload []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.opts.Logger.Error("the handler of a call panicked", "queue", w.queue, "kind", call.Kind, "panic", p, "stack", string(debug.Stack()))
			payload, err = nil, errors.New("the handler panicked")
		}
	}()
	return w.handler(ctx, call)
}
