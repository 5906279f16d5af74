package httpclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// attempt is one attempt and its end.
type attempt struct {
	Result
	node  *balance.Node
	class retry.Class
	wait  time.Duration
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL == nil {
		closeBody(r)
		return nil, errors.New("httpclient: the request has no URL")
	}
	if t.config.Service != "" && r.URL.Host != t.config.Service {
		return t.base.RoundTrip(r)
	}
	retrier, err := t.retrier(t.config.Route(r))
	if err != nil {
		closeBody(r)
		return nil, err
	}
	now := t.clock()
	deadline := retry.NoDeadline
	if d, ok := r.Context().Deadline(); ok {
		deadline = now + time.Until(d)
	}
	c := &call{t: t, request: r, source: newSource(r), idempotent: t.config.Idempotent(r), Call: retrier.Begin(now, deadline), observer: retrier.Observer()}
	defer c.source.close()
	return c.run(now)
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// call is one logical request.
type call struct {
	retry.Call
	t          *Transport
	request    *http.Request
	source     *source
	idempotent bool
	observer   retry.Observer
	avoid      []*balance.Node
}

func (c *call) run(now time.Duration) (*http.Response, error) {
	for {
		deadline, own := c.Attempt(now)
		var limit time.Duration
		if deadline != retry.NoDeadline {
			limit = max(deadline-now, 1)
		}
		a := c.send(limit, own, now)
		now = c.t.clock()
		if a.class > retry.NotRetryable && !c.source.again() {
			a.class = retry.Failed // the body is gone
		}
		if a.wait > maxRetryAfter && a.class > retry.NotRetryable {
			a.class = retry.Failed
		}
		d := c.Done(now, a.class, a.wait)
		if !d.Again() {
			c.End(now, a.class)
			return finish(a, d)
		}
		discard(a.Response)
		if a.node != nil {
			c.avoid = append(c.avoid, a.node)
		}
		if err := pause(c.request.Context(), d.Wait); err != nil {
			class := retry.Failed
			if errors.Is(err, context.Canceled) {
				class = retry.Ignored
			}
			c.End(c.t.clock(), class)
			return nil, err
		}
		now = c.t.clock()
	}
}

// finish is what the caller gets.
func finish(a attempt, d retry.Decision) (*http.Response, error) {
	if a.Err != nil {
		if d.NotRetryable {
			return nil, &Error{a.Err}
		}
		return nil, a.Err
	}
	if d.NotRetryable {
		a.Response.Header.Set(retry.SignalKey, retry.Never.Value())
	} else if a.Signal == retry.Nack {
		// It holds for us, not for whoever called us.
		a.Response.Header.Del(retry.SignalKey)
	}
	return a.Response, nil
}

// discard ends a response that nobody wants, so that its connection can be used
// again.
func discard(r *http.Response) {
	if r != nil {
		_, _ = io.CopyN(io.Discard, r.Body, 64<<10) // more is not worth it
		_ = r.Body.Close()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pick chooses an endpoint, and waits for one if the config says so.
func (c *call) pick(ctx context.Context, avoid []*balance.Node) (balance.Pick, error) {
	t := c.t
	end := time.Now().Add(t.config.WaitForEndpoints)
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		p, err := t.balancer.PickAvoiding(avoid)
		if err == nil {
			return p, nil
		}
		left := time.Until(end)
		if !errors.Is(err, balance.ErrNoEndpoints) || left <= 0 {
			c.observer.Count(retry.CountNoEndpoints)
			return p, fmt.Errorf("httpclient: %s: %w", c.request.URL.Host, err)
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return p, ctx.Err()
		}
		timer.Stop()
	}
}

// send makes an attempt, with a backup if one is due.
func (c *call) send(limit time.Duration, own bool, now time.Duration) attempt {
	h := c.t.hedger
	if h == nil || !c.idempotent || !c.source.repeatable() {
		return c.once(c.request.Context(), limit, own, c.avoid)
	}
	delay := h.Begin(now)
	if delay == retry.NoHedge {
		a := c.once(c.request.Context(), limit, own, c.avoid)
		c.record(now, a)
		return a
	}
	return c.hedged(limit, own, now, delay)
}

// record takes a latency into account if it says how long answers take.
func (c *call) record(began time.Duration, a attempt) {
	if a.class == retry.Success || a.AttemptTimeout || a.class == retry.Ignored {
		now := c.t.clock()
		c.t.hedger.Record(now, now-began)
	}
}

func (c *call) hedged(limit time.Duration, own bool, now, delay time.Duration) attempt {
	ctx := c.request.Context()
	var node atomic.Pointer[balance.Node]
	firstCtx, stopFirst := endable(context.WithValue(ctx, chosenKey{}, &node))
	backupCtx, stopBackup := endable(ctx)
	first, second := make(chan attempt, 1), make(chan attempt, 1)
	go func() { first <- c.once(firstCtx, limit, own, c.avoid) }()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	// keep hands the answer to the caller: its context ends with its body.
	keep := func(a attempt, stop context.CancelFunc) attempt {
		if a.Response == nil {
			stop()
			return a
		}
		a.Response.Body.(interface{ onClose(func()) }).onClose(stop)
		return a
	}
	select {
	case a := <-first:
		stopBackup()
		c.record(now, a)
		return keep(a, stopFirst)
	case <-timer.C:
	}
	began := c.t.clock()
	if !c.t.hedger.Send(began) {
		c.observer.Count(retry.CountHedgeBudgetExhausted)
		stopBackup()
		a := <-first
		c.record(now, a)
		return keep(a, stopFirst)
	}
	c.observer.Count(retry.CountHedges)
	avoid := c.avoid
	if n := node.Load(); n != nil {
		avoid = append(avoid[:len(avoid):len(avoid)], n)
	}
	if limit > 0 && !own {
		limit = max(limit-(began-now), 1) // the end of the whole request
	}
	go func() { second <- c.once(backupCtx, limit, own, avoid) }()
	// drop ends the attempt that is not wanted, whenever it ends.
	drop := func(from chan attempt, stop context.CancelFunc) {
		stop()
		go func() { discard((<-from).Response) }()
	}
	var failed attempt
	for range 2 {
		select {
		case a := <-first:
			if a.class == retry.Success {
				drop(second, stopBackup)
				c.record(now, a)
				c.observer.Attempt(retry.Ignored, c.t.clock()-began)
				return keep(a, stopFirst)
			}
			failed = keep(a, stopFirst)
			first = nil
		case a := <-second:
			second = nil
			if a.class == retry.Success {
				c.observer.Count(retry.CountHedgesWon)
				c.observer.Attempt(retry.Ignored, c.t.clock()-now)
				c.record(began, a)
				if first != nil {
					c.record(now, attempt{class: retry.Ignored})
					drop(first, stopFirst)
				} else {
					discard(failed.Response)
				}
				return keep(a, stopBackup)
			}
			c.observer.Attempt(a.class, c.t.clock()-began)
			discard(a.Response)
			stopBackup()
		}
	}
	c.record(now, failed)
	return failed
}

type chosenKey struct{}

var errAttemptTimeout = fmt.Errorf("httpclient: the time for one attempt is over: %w", context.DeadlineExceeded)

// once makes an attempt. limit bounds the time until the head of the answer is
// there, if it is not 0; own says that this is not the end of the whole request.
func (c *call) once(parent context.Context, limit time.Duration, own bool, avoid []*balance.Node) (a attempt) {
	t := c.t
	a.Request, a.Idempotent = c.request, c.idempotent
	p, err := c.pick(parent, avoid)
	if err != nil {
		a.Err, a.class = err, retry.Failed
		if errors.Is(err, context.Canceled) {
			a.class = retry.Ignored
		}
		return a
	}
	a.node = p.Node()
	if chosen, ok := parent.Value(chosenKey{}).(*atomic.Pointer[balance.Node]); ok {
		chosen.Store(a.node)
	}
	ctx, cancel := endableFor(parent)
	var timer *time.Timer
	if limit > 0 {
		timer = time.AfterFunc(limit, func() { cancel(errAttemptTimeout) })
	}
	var asked, wrote atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { asked.Store(true) },
		WroteHeaders: func() { wrote.Store(true) },
	})
	resp, err := t.roundTrip(ctx, c, p)
	timedOut := timer != nil && !timer.Stop() && errors.Is(context.Cause(ctx), errAttemptTimeout)
	if err == nil && timedOut {
		// It came in the moment in which its time was over, and cannot be read.
		_ = resp.Body.Close()
		err = errAttemptTimeout
	}
	a.CallerGone = parent.Err() != nil
	if err != nil {
		cancel(nil)
		if timedOut {
			err = errAttemptTimeout
		}
		a.Err = err
		a.AttemptTimeout = timedOut && own
		a.CallerGone = a.CallerGone || timedOut && !own
		a.Unconnected = unconnected(err)
		// A base that does not trace says nothing.
		a.Unsent = asked.Load() && !wrote.Load()
	} else {
		a.Response, a.Signal = resp, signalOf(resp)
		a.wait = retryAfter(resp, time.Now())
	}
	if retry.NoRetry(parent) || err != nil && retry.SignalOf(err) == retry.Never {
		a.Signal = retry.Never
	}
	a.class = t.config.Classify(a.Result)
	if a.Signal == retry.Never && a.class > retry.NotRetryable {
		a.class = retry.NotRetryable // overrides every classifier
	}
	outcome := outcomeOf(a.Result)
	if errors.Is(err, errNoBody) {
		outcome, a.class = balance.Ignored, retry.Failed
	}
	if err != nil {
		p.Done(outcome)
		return a
	}
	body := &answer{ReadCloser: resp.Body, pick: p, outcome: outcome, cancel: func() { cancel(nil) }}
	if w, ok := resp.Body.(io.Writer); ok {
		resp.Body = &duplex{body, w}
	} else {
		if resp.Body == http.NoBody {
			body.end(outcome) // some do not close what is not there
		}
		resp.Body = body
	}
	return a
}

var errNoBody = errors.New("httpclient: the body cannot be had again")

// endable is a context that is ended by whoever holds the answer that depends on it.
// It is a function because vet looks for the end in the function that calls
// context.WithCancel.
func endable(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(parent)
}

// endableFor is endable with a reason.
func endableFor(parent context.Context) (context.Context, context.CancelCauseFunc) {
	return context.WithCancelCause(parent)
}

// roundTrip sends the request to the endpoint that was picked.
func (t *Transport) roundTrip(ctx context.Context, c *call, p balance.Pick) (*http.Response, error) {
	body, err := c.source.body()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoBody, err)
	}
	at := p.Value().(target)
	r := c.request.WithContext(ctx)
	u := *r.URL
	u.Scheme, u.Host = at.scheme, at.host
	r.URL = &u
	if r.Host == "" {
		r.Host = c.request.URL.Host
	}
	r.Body = body
	if n := c.Number(); n > 0 {
		r.Header = r.Header.Clone()
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set(retry.AttemptKey, strconv.Itoa(n))
	}
	return t.base.RoundTrip(r)
}
