package grpcretry

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/retry"
)

// deadlineOf is the context's deadline on the client's clock.
func deadlineOf(ctx context.Context, now time.Duration) time.Duration {
	d, ok := ctx.Deadline()
	if !ok {
		return retry.NoDeadline
	}
	return now + time.Until(d)
}

// pause waits. The error is the context's, as a status.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// numbered tells the server the number of the attempt, unless it is the first.
func numbered(ctx context.Context, a *retry.Attempt) context.Context {
	ctx = retry.WithAttempt(ctx, a)
	if a.Number > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, retry.AttemptKey, strconv.Itoa(a.Number))
	}
	return ctx
}

// admit asks the admission control. The error is what the caller gets.
func (c *Client) admit(now time.Duration) error {
	if c.admission == nil || c.admission.Admit(now, c.draw()) {
		return nil
	}
	return &Error{status.Error(codes.Unavailable, "not sent: the servers refuse most requests; try again later")}
}

// answered tells the admission control.
func (c *Client) answered(now time.Duration, class retry.Class) {
	if c.admission != nil && class != retry.Ignored && class != retry.Unconnected {
		c.admission.Answered(now, class == retry.Requeueable)
	}
}

// Unary is the interceptor for unary calls.
func (c *Client) Unary(ctx context.Context, name string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m := c.method(name)
	now := c.clock()
	call := m.retrier.Begin(now, deadlineOf(ctx, now))
	if err := c.admit(now); err != nil {
		call.End(now, retry.NotRetryable)
		return err
	}
	if total := m.retrier.Policy().Total; total > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, total)
		defer cancel()
	}
	var trailer metadata.MD
	opts = append(slices.Clip(opts), grpc.Trailer(&trailer))
	send := unary{c, m, req, reply, cc, invoke, opts}
	var avoid []any
	for {
		a := &retry.Attempt{Number: call.Number(), Avoid: avoid}
		deadline, own := call.Attempt(now)
		var limit time.Duration
		if own {
			limit = deadline - now
		}
		err := send.attempt(ctx, a, limit, now)
		now = c.clock()
		class, wait := m.classify(ctx, err, trailer, a, own)
		c.answered(now, class)
		d := call.Done(now, class, wait)
		if !d.Again() {
			if a.Nowhere() {
				m.retrier.Observer().Count(retry.CountNoEndpoints)
			}
			call.End(now, class)
			return finish(err, d)
		}
		avoid = a.AvoidToo(avoid)
		trailer = nil
		if err := pause(ctx, d.Wait); err != nil {
			class := retry.Failed
			if status.Code(err) == codes.Canceled {
				class = retry.Ignored
			}
			call.End(c.clock(), class)
			return err
		}
		now = c.clock()
	}
}

// unary is a unary call as its caller made it.
type unary struct {
	c          *Client
	m          *method
	req, reply any
	cc         *grpc.ClientConn
	invoke     grpc.UnaryInvoker
	opts       []grpc.CallOption
}

// attempt makes one attempt, with a backup if one is due. limit bounds it if it is
// not 0.
func (u *unary) attempt(ctx context.Context, a *retry.Attempt, limit, now time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if u.m.hedger == nil {
		return u.invoke(numbered(ctx, a), u.m.name, u.req, u.reply, u.cc, u.opts...)
	}
	return u.hedged(ctx, a, now)
}
