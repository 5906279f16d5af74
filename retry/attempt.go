package retry

import (
	"context"
	"sync"
)

// Attempt is what one attempt tells the balancer below it and hears from it. It
// travels in the context. The zero value is a first attempt.
type Attempt struct {
	// Number is 0 for the first attempt of the logical request.
	Number int
	// Avoid lists endpoints, as Chosen got them, that just refused this request;
	// the balancer takes another one if there is one.
	Avoid []any

	mu       sync.Mutex
	endpoint any
	unsent   bool
	nowhere  bool
}

// Chosen is called by the balancer with the endpoint that it chose, the last one
// if it chose more than once. It may be any comparable value of the balancer's.
func (a *Attempt) Chosen(endpoint any) {
	a.mu.Lock()
	a.endpoint, a.unsent, a.nowhere = endpoint, false, false
	a.mu.Unlock()
}

// NotSent is called by the balancer when it knows that nothing of the request
// was written to the endpoint.
func (a *Attempt) NotSent() {
	a.mu.Lock()
	a.unsent = true
	a.mu.Unlock()
}

// NoEndpoints is called by the balancer when it has nothing to send the request
// to, and no hope of something soon.
func (a *Attempt) NoEndpoints() {
	a.mu.Lock()
	a.nowhere = true
	a.mu.Unlock()
}

// Nowhere reports whether the balancer had nothing to send the request to.
func (a *Attempt) Nowhere() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nowhere
}

// Endpoint returns what Chosen got, or nil.
func (a *Attempt) Endpoint() any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.endpoint
}

// Unsent reports whether it is known that nothing was written.
func (a *Attempt) Unsent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unsent
}

// AvoidToo returns avoid with the endpoint of a added, if it is known and new.
func (a *Attempt) AvoidToo(avoid []any) []any {
	e := a.Endpoint()
	if e == nil {
		return avoid
	}
	for _, x := range avoid {
		if x == e {
			return avoid
		}
	}
	// A copy: an attempt that is still under way may read the old one.
	return append(avoid[:len(avoid):len(avoid)], e)
}

type attemptKey struct{}

// WithAttempt puts an attempt into a context.
func WithAttempt(ctx context.Context, a *Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// AttemptOf returns the context's attempt, or nil.
func AttemptOf(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

type neverKey struct{}

// WithNoRetry marks all requests under a context as not retryable, whatever the
// policies below say.
func WithNoRetry(ctx context.Context) context.Context {
	return context.WithValue(ctx, neverKey{}, true)
}

// NoRetry reports whether WithNoRetry marked the context.
func NoRetry(ctx context.Context) bool { return ctx.Value(neverKey{}) != nil }
