package httpclient

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/switchyard-dev/switchyard/retry"
)

func TestTransport_whatIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		name, method, body string
		handler            http.HandlerFunc
		attempts           int64
		code               int
		never              bool
	}{
		{"GET refused by all", "GET", "", nack, 6, 503, true},
		{"POST refused by all", "POST", "data", nack, 6, 503, true},
		{"GET 503", "GET", "", answer503, 3, 503, false},
		{"PUT 503 with a body", "PUT", "data", answer503, 3, 503, false},
		{"POST 503", "POST", "data", answer503, 1, 503, false},
		{"GET 500", "GET", "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, 1, 500, false},
		{"GET 404", "GET", "", http.NotFound, 1, 404, false},
		{"GET never", "GET", "", func(w http.ResponseWriter, _ *http.Request) { MarkNever(w); w.WriteHeader(503) }, 1, 503, true},
		{"POST refused as others say it", "POST", "x", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(503)
		}, 6, 503, true},
		{"GET come back tomorrow", "GET", "", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(503)
		}, 1, 503, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bodies []string
			s := start(t, func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				bodies = append(bodies, string(text))
				c.handler(w, r)
			})
			client, tr, rec := newClient(t, Config{Endpoints: urls(s)})
			var reader io.Reader
			if c.body != "" {
				reader = strings.NewReader(c.body)
			}
			req, _ := http.NewRequest(c.method, "http://catalog/", reader)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if s.calls.Load() != c.attempts || resp.StatusCode != c.code {
				t.Errorf("%d attempts, status %d; want %d, %d", s.calls.Load(), resp.StatusCode, c.attempts, c.code)
			}
			if never := resp.Header.Get(retry.SignalKey) == "never"; never != c.never {
				t.Errorf("not retryable: %v, want %v", never, c.never)
			}
			for _, b := range bodies {
				if b != c.body {
					t.Errorf("bodies %q, want %q each", bodies, c.body)
				}
			}
			if len(rec.logical) != 1 || int64(len(rec.attempt)) != c.attempts || tr.Balancer().Stats().Outstanding != 0 {
				t.Errorf("%d logical requests of %d attempts, %d outstanding", len(rec.logical), len(rec.attempt), tr.Balancer().Stats().Outstanding)
			}
		})
	}
}

func TestTransport_aRefusedRequestGoesElsewhere(t *testing.T) {
	bad, good := start(t, nack), start(t, nil)
	client, _, rec := newClient(t, Config{Endpoints: urls(bad, good)})
	for range 200 {
		if code, _, err := do(client, "POST", "x"); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if n := rec.counts[retry.CountRequeues]; n == 0 || int64(n) != bad.calls.Load() {
		t.Errorf("%d requeues after %d refusals", n, bad.calls.Load())
	}
}

func TestTransport_theServerSeesTheNumberOfTheAttempt(t *testing.T) {
	var numbers []string
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		numbers = append(numbers, r.Header.Get(retry.AttemptKey))
		Refuse(w, "")
	})
	client, _, _ := newClient(t, Config{Endpoints: urls(s)})
	_, _, _ = do(client, "GET", "")
	if !slices.Equal(numbers, []string{"", "1", "2", "3", "4", "5"}) {
		t.Errorf("numbers %q", numbers)
	}
}

// drip is a body that cannot be had again.
type drip struct {
	io.Reader
	closed atomic.Bool
}

func (d *drip) Close() error { d.closed.Store(true); return nil }

func TestTransport_bodiesThatExistOnce(t *testing.T) {
	refused := start(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); Refuse(w, "full") })
	client, _, _ := newClient(t, Config{Endpoints: urls(refused)})
	body := &drip{Reader: strings.NewReader("once")}
	r, _ := http.NewRequest("POST", "http://catalog/", body)
	if code, _, err := send(client, r); code != 503 || err != nil || refused.calls.Load() != 1 {
		t.Errorf("%d, %v after %d attempts: the body was gone", code, err, refused.calls.Load())
	}
	if !body.closed.Load() {
		t.Error("the caller's body is left open")
	}

	// A connection that could not be had has read nothing.
	good := start(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	client, _, rec := newClient(t, Config{Endpoints: append(urls(good), Endpoint{URL: deadAddress(t)})})
	for range 30 {
		body := &drip{Reader: strings.NewReader("once")}
		r, _ := http.NewRequest("POST", "http://catalog/", body)
		if code, text, err := send(client, r); code != 200 || err != nil || text != "once" {
			t.Fatalf("%d, %q, %v", code, text, err)
		}
		if !body.closed.Load() {
			t.Error("the caller's body is left open")
		}
	}
	if rec.counts[retry.CountConnects] == 0 {
		t.Error("the dead endpoint was never tried")
	}
}

func TestTransport_theCallerMayForbidRetries(t *testing.T) {
	s := start(t, nack)
	client, _, _ := newClient(t, Config{Endpoints: urls(s)})
	r, _ := http.NewRequestWithContext(retry.WithNoRetry(t.Context()), "GET", "http://catalog/", nil)
	if code, _, err := send(client, r); code != 503 || err != nil || s.calls.Load() != 1 {
		t.Errorf("%d, %v after %d attempts", code, err, s.calls.Load())
	}
}
