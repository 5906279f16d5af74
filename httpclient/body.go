package httpclient

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/balance"
)

// source gives attempts the request's body.
type source struct {
	request *http.Request
	mu      sync.Mutex
	first   io.ReadCloser // nil once used
	touched atomic.Bool   // something was read of a body that cannot be had again
}

func newSource(r *http.Request) *source {
	s := &source{request: r}
	if r.Body != nil && r.Body != http.NoBody {
		s.first = r.Body
	}
	return s
}

// repeatable reports whether another attempt can have the whole body, beside or
// after the ones before.
func (s *source) repeatable() bool {
	return s.request.Body == nil || s.request.Body == http.NoBody || s.request.GetBody != nil
}

// again reports whether another attempt can have the whole body once those before
// have ended.
func (s *source) again() bool { return s.repeatable() || !s.touched.Load() }

// body returns the body for an attempt.
func (s *source) body() (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.request.Body == nil || s.request.Body == http.NoBody:
		return s.request.Body, nil
	case s.request.GetBody == nil:
		return &once{source: s}, nil
	case s.first != nil:
		b := s.first
		s.first = nil
		return b, nil
	}
	return s.request.GetBody()
}

// close closes the caller's body if no attempt does.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first != nil {
		_ = s.first.Close() // the caller's; an error here helps nobody
	}
}

// once is a body that exists only once: closing it leaves the caller's open, for
// another attempt, as long as nothing was read. An attempt that has ended reads no
// more.
type once struct {
	source *source
	mu     sync.Mutex
	closed bool
}

func (o *once) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	o.source.touched.Store(true)
	return o.source.request.Body.Read(p)
}

func (o *once) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return nil
}

// answer is the body of a response: its end is the end of the request for the
// balancer.
type answer struct {
	io.ReadCloser
	pick    balance.Pick
	outcome balance.Outcome
	cancel  context.CancelFunc
	ended   atomic.Bool
}

func (a *answer) end(o balance.Outcome) {
	if a.ended.CompareAndSwap(false, true) {
		a.pick.Done(o)
	}
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	switch err {
	case nil:
	case io.EOF:
		a.end(a.outcome)
	default:
		a.end(max(a.outcome, balance.Failure))
	}
	return n, err
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.end(a.outcome)
	a.cancel()
	return err
}

// onClose has f called by Close too.
func (a *answer) onClose(f func()) {
	cancel := a.cancel
	a.cancel = func() { cancel(); f() }
}

// duplex is an answer whose body can be written too, after "101 Switching
// Protocols".
type duplex struct {
	*answer
	io.Writer
}
