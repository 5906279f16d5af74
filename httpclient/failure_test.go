package httpclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// deadAddress is where nobody listens.
func deadAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestTransport_deadEndpoints(t *testing.T) {
	b := DefaultBalance()
	client, tr, rec := newClient(t, Config{Endpoints: []Endpoint{{URL: deadAddress(t)}, {URL: deadAddress(t)}}, Balance: &b, Budget: retry.EmptyBudget()})
	_, _, err := do(client, "POST", "x")
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
	if rec.counts[retry.CountConnects] != 25 || tr.Balancer().Stats().MarkedUnreachable == 0 {
		t.Errorf("counts %v; unreachable %d", rec.counts, tr.Balancer().Stats().MarkedUnreachable)
	}
}

func TestTransport_brokenConnections(t *testing.T) {
	// The handler dies, and with it the connection.
	bad := start(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	good := start(t, nil)
	client, _, _ := newClient(t, Config{Endpoints: urls(bad, good)})
	for range 50 {
		if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	client, _, rec := newClient(t, Config{Endpoints: urls(bad)})
	if _, _, err := do(client, "POST", "x"); err == nil {
		t.Error("no error")
	}
	if !slices.Equal(rec.attempt, []retry.Class{retry.Failed}) {
		t.Errorf("classes %v: what is not idempotent may have been done", rec.attempt)
	}
}

// hang waits until the caller is gone, which shows once the body has been read.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestTransport_timeouts(t *testing.T) {
	s := start(t, hang)
	p := quick()
	p.MaxRetries, p.PerAttempt, p.Total = 9, 50*time.Millisecond, 120*time.Millisecond
	client, tr, rec := newClient(t, Config{Endpoints: urls(s), Policy: p})
	began := time.Now()
	_, _, err := do(client, "GET", "")
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took < 120*time.Millisecond || took > time.Second {
		t.Errorf("%v after %v", err, took)
	}
	if n := rec.counts[retry.CountRetries]; n < 1 || n > 2 || rec.logical[0] != retry.Failed {
		t.Errorf("%d retries, want 2; %v", n, rec.logical)
	}
	if got := tr.Balancer().Stats(); got.Outstanding != 0 || got.Results[balance.Failure] == 0 {
		t.Errorf("outstanding %d, results %v", got.Outstanding, got.Results)
	}
	s.calls.Store(0)
	if _, _, err := do(client, "POST", "x"); !errors.Is(err, context.DeadlineExceeded) || s.calls.Load() != 1 {
		t.Errorf("%v after %d attempts", err, s.calls.Load())
	}
	// The time of an attempt ends with the head of the answer.
	slow := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		time.Sleep(150 * time.Millisecond)
		_, _ = io.WriteString(w, "late")
	})
	client, _, _ = newClient(t, Config{Endpoints: urls(slow), Policy: p})
	if _, text, err := do(client, "GET", ""); text != "late" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestTransport_aCallerWhoLeavesIsIgnored(t *testing.T) {
	s := start(t, hang)
	client, tr, rec := newClient(t, Config{Endpoints: urls(s)})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	r, _ := http.NewRequestWithContext(ctx, "GET", "http://catalog/", nil)
	if _, _, err := send(client, r); !errors.Is(err, context.Canceled) || !slices.Equal(rec.logical, []retry.Class{retry.Ignored}) {
		t.Errorf("%v, %v", err, rec.logical)
	}
	if got := tr.Balancer().Stats(); got.Results[balance.Ignored] != 1 {
		t.Errorf("results %v", got.Results)
	}
	// Also while waiting for the next attempt.
	s = start(t, nack)
	p := quick()
	p.RequeueWait = retry.Constant(time.Hour)
	client, _, rec = newClient(t, Config{Endpoints: urls(s), Policy: p})
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	r, _ = http.NewRequestWithContext(ctx, "GET", "http://catalog/", nil)
	if _, _, err := send(client, r); !errors.Is(err, context.Canceled) || !slices.Equal(rec.logical, []retry.Class{retry.Ignored}) {
		t.Errorf("%v, %v", err, rec.logical)
	}
}

// A base that does not trace: nothing is known of what it wrote.
type opaque struct{ calls atomic.Int64 }

func (o *opaque) RoundTrip(r *http.Request) (*http.Response, error) {
	o.calls.Add(1)
	if r.Body != nil {
		r.Body.Close()
	}
	return nil, errors.New("broken pipe")
}

func TestTransport_doesNotTrustABaseThatSaysNothing(t *testing.T) {
	o := &opaque{}
	client, _, _ := newClient(t, Config{Endpoints: []Endpoint{{URL: "x"}}, Base: o})
	if _, _, err := do(client, "POST", "x"); err == nil || o.calls.Load() != 1 {
		t.Errorf("%v after %d attempts", err, o.calls.Load())
	}
	o.calls.Store(0)
	if _, _, err := do(client, "GET", ""); err == nil || o.calls.Load() != 3 {
		t.Errorf("%v after %d attempts", err, o.calls.Load())
	}
}
