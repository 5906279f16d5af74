package httpclient

import (
	"io"
	"net/http"
	"net/http/httptest"
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
