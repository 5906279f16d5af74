package httpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// server is an HTTP server that counts.
type server struct {
	*httptest.Server
	calls atomic.Int64
}

func start(t testing.TB, h http.HandlerFunc) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		if h != nil {
			h(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func urls(servers ...*server) (list []Endpoint) {
	for _, s := range servers {
		list = append(list, Endpoint{URL: s.URL})
	}
	return list
}

// recorder is an Observer.
type recorder struct {
	mu      sync.Mutex
	counts  [retry.Counts]int
	attempt []retry.Class
	logical []retry.Class
}

func (r *recorder) Attempt(c retry.Class, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempt = append(r.attempt, c)
}

func (r *recorder) Logical(c retry.Class, _ time.Duration, _ retry.Tries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logical = append(r.logical, c)
}

func (r *recorder) Count(c retry.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[c]++
}

// quick is the default policy without waits.
func quick() *retry.Policy {
	p := retry.DefaultPolicy()
	p.RequeueWait, p.RetryWait, p.ConnectWait = nil, nil, nil
	return &p
}

// newClient makes a client; what c leaves open is quick and unlimited.
func newClient(t testing.TB, c Config) (*http.Client, *Transport, *recorder) {
	t.Helper()
	rec := &recorder{}
	c.Observe = func(string) retry.Observer { return rec }
	if c.Policy == nil {
		c.Policy = quick()
	}
	if c.Budget == nil {
		c.Budget = retry.InfiniteBudget()
	}
	if c.Balance == nil {
		c.Balance = &balance.Config{}
	}
	tr, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return &http.Client{Transport: tr}, tr, rec
}

// do makes a request and returns status, body and error.
func do(c *http.Client, method, body string) (int, string, error) {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequest(method, "http://catalog/items", reader)
	if err != nil {
		return 0, "", err
	}
	return send(c, r)
}

func send(c *http.Client, r *http.Request) (int, string, error) {
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestTransport_spreadsRequests(t *testing.T) {
	host := make(chan string, 1000)
	h := func(_ http.ResponseWriter, r *http.Request) { host <- r.Host }
	a, b, c := start(t, h), start(t, h), start(t, h)
	client, tr, rec := newClient(t, Config{Service: "catalog", Endpoints: urls(a, b, c)})
	for range 300 {
		if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		if h := <-host; h != "catalog" {
			t.Fatalf("the server sees host %q", h)
		}
	}
	for i, s := range []*server{a, b, c} {
		if n := s.calls.Load(); n < 50 {
			t.Errorf("server %d got %d of 300", i, n)
		}
	}
	if s := tr.Balancer().Stats(); s.Outstanding != 0 || s.Results[balance.Success] != 300 || s.Name != "catalog" {
		t.Errorf("outstanding %d, results %v, name %q", s.Outstanding, s.Results, s.Name)
	}
	if len(rec.logical) != 300 {
		t.Errorf("%d logical requests counted", len(rec.logical))
	}
}

func TestTransport_otherHostsGoToTheBase(t *testing.T) {
	outside := start(t, nil)
	inside := start(t, http.RedirectHandler(outside.URL+"/x", http.StatusFound).ServeHTTP)
	client, _, _ := newClient(t, Config{Service: "catalog", Endpoints: urls(inside)})
	if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	if outside.calls.Load() != 1 {
		t.Errorf("the redirection was followed %d times", outside.calls.Load())
	}
}

func answer503(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }
func nack(w http.ResponseWriter, _ *http.Request)      { Refuse(w, "full") }

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

func TestTransport_theCallerMayForbidRetries(t *testing.T) {
	s := start(t, nack)
	client, _, _ := newClient(t, Config{Endpoints: urls(s)})
	r, _ := http.NewRequestWithContext(retry.WithNoRetry(t.Context()), "GET", "http://catalog/", nil)
	if code, _, err := send(client, r); code != 503 || err != nil || s.calls.Load() != 1 {
		t.Errorf("%d, %v after %d attempts", code, err, s.calls.Load())
	}
}

func TestTransport_noEndpoints(t *testing.T) {
	client, tr, rec := newClient(t, Config{})
	if _, _, err := do(client, "GET", ""); !errors.Is(err, balance.ErrNoEndpoints) || rec.counts[retry.CountNoEndpoints] != 1 {
		t.Errorf("got %v", err)
	}
	s := start(t, nil)
	if err := tr.Update(urls(s)); err != nil {
		t.Fatal(err)
	}
	if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
		t.Error(code, err)
	}

	patient, tr, _ := newClient(t, Config{WaitForEndpoints: 10 * time.Second})
	done := make(chan error, 1)
	go func() { _, _, err := do(patient, "GET", ""); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	if err := tr.Update(urls(s)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	short, _, _ := newClient(t, Config{WaitForEndpoints: 20 * time.Millisecond})
	if _, _, err := do(short, "GET", ""); !errors.Is(err, balance.ErrNoEndpoints) {
		t.Errorf("got %v", err)
	}
	tr.Close()
	if _, _, err := do(patient, "GET", ""); !errors.Is(err, balance.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestTransport_changesUnderLoad(t *testing.T) {
	a, b, c := start(t, nil), start(t, nil), start(t, nil)
	client, tr, _ := newClient(t, Config{Endpoints: urls(a, b)})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if code, _, err := do(client, "POST", "x"); code != 200 || err != nil {
					t.Error(code, err)
					return
				}
			}
		})
	}
	for i := range 100 {
		sets := [][]Endpoint{urls(a, b), urls(b, c), urls(c, a)}
		if err := tr.Update(sets[i%3]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // let some requests through
	}
	close(stop)
	wg.Wait()
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding", n)
	}
}

func TestTransport_countsARequestUntilItsBodyEnds(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	client, tr, _ := newClient(t, Config{Endpoints: urls(s)})
	resp, err := client.Get("http://catalog/")
	if err != nil {
		t.Fatal(err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 1 {
		t.Errorf("%d outstanding before the body was read", n)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding after the end of the body", n)
	}
	resp.Body.Close()
	resp.Body.Close()
	if got := tr.Balancer().Stats().Results[balance.Success]; got != 1 {
		t.Errorf("%d successes", got)
	}
}

func TestHedge(t *testing.T) {
	var n atomic.Int64
	slow := start(t, func(_ http.ResponseWriter, r *http.Request) {
		if n.Add(1)%20 == 0 {
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
		}
	})
	fast := start(t, nil)
	client, tr, rec := newClient(t, Config{Endpoints: urls(slow, fast), Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.1, MinDelay: 2 * time.Millisecond, MinSamples: 20}})
	began := time.Now()
	for i := range 300 {
		if i == 60 {
			began = time.Now()
		}
		if code, _, err := do(client, "PUT", "data"); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("240 requests took %v: backups did not overtake", took)
	}
	if rec.counts[retry.CountHedgesWon] == 0 || len(rec.logical) != 300 {
		t.Errorf("counts %v, %d logical requests", rec.counts, len(rec.logical))
	}
	before := rec.counts[retry.CountHedges]
	for range 60 {
		if code, _, err := do(client, "POST", "data"); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if rec.counts[retry.CountHedges] != before {
		t.Error("a POST got a backup")
	}
	for end := time.Now().Add(5 * time.Second); tr.Balancer().Stats().Outstanding != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d outstanding", tr.Balancer().Stats().Outstanding)
		}
	}
}

func TestHedge_bothFail(t *testing.T) {
	var n atomic.Int64
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) > 60 {
			time.Sleep(30 * time.Millisecond)
			w.WriteHeader(500 + int(n.Load()%2))
		}
	})
	client, tr, _ := newClient(t, Config{Endpoints: urls(s), Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.9, MinDelay: 2 * time.Millisecond, MinSamples: 20}})
	for range 60 {
		if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if code, _, err := do(client, "GET", ""); code < 500 || err != nil {
		t.Error(code, err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding", n)
	}
}

func TestNew_errorsNameWhatIsWrong(t *testing.T) {
	bad := retry.DefaultPolicy()
	bad.PerAttempt = -1
	for want, c := range map[string]Config{
		`endpoint "ftp://x" has scheme "ftp"`: {Endpoints: []Endpoint{{URL: "ftp://x"}}},
		`endpoint "http://" has no host`:      {Endpoints: []Endpoint{{URL: "http://"}}},
		`endpoint "" has no host`:             {Endpoints: []Endpoint{{}}},
		`has more than scheme and host`:       {Endpoints: []Endpoint{{URL: "http://x/path"}}},
		`is not a URL`:                        {Endpoints: []Endpoint{{URL: "http://%zz"}}},
		`http://x is listed twice`:            {Endpoints: []Endpoint{{URL: "x"}, {URL: "http://x/"}}},
		`endpoint http://x has weight -1`:     {Endpoints: []Endpoint{{URL: "x", Weight: -1}}},
		`timeout per attempt is -1ns`:         {Policy: &bad},
		`wait for endpoints is -1ns`:          {WaitForEndpoints: -1},
		`hedge max extra load is 0`:           {Hedge: &retry.HedgeConfig{}},
		`panic mode is 77`:                    {Balance: &balance.Config{Panic: 77}},
		`must not have Connections`:           {Balance: &balance.Config{Connections: noConnections{}}},
	} {
		if tr, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
			if tr != nil {
				tr.Close()
			}
		}
	}
}

type noConnections struct{}

func (noConnections) Connect(*balance.Node) {}
func (noConnections) Release(*balance.Node) {}

func TestRoutes_areBounded(t *testing.T) {
	s := start(t, nil)
	names := map[string]bool{}
	tr, err := New(Config{
		Endpoints: urls(s), Route: func(r *http.Request) string { return r.URL.Path },
		Observe: func(route string) retry.Observer { names[route] = true; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	for i := range maxRoutes + 5 {
		if _, err := tr.retrier(fmt.Sprint("/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(names) != maxRoutes+1 || !names["other"] {
		t.Errorf("%d routes", len(names))
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

func TestTransport_upgrades(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	})
	_, tr, _ := newClient(t, Config{Endpoints: urls(s)})
	r, _ := http.NewRequest("GET", "http://catalog/", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the body of an upgraded connection cannot be written")
	}
	if _, err := io.WriteString(conn, "hi\n"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, conn); err != nil || out.String() != "hi\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func BenchmarkTransport(b *testing.B) {
	tr, err := New(Config{Endpoints: []Endpoint{{URL: "a"}, {URL: "b"}}, Base: instant{}})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	r, _ := http.NewRequest("GET", "http://catalog/", nil)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

type instant struct{}

func (instant) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
}
