package httpclient

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// Endpoint is one server.
type Endpoint struct {
	// URL is scheme and host, "http://10.0.0.1:8080"; without a scheme, http is
	// meant. A path or query is an error.
	URL string
	// Weight is its share of requests in relation to the others; 0 means 1.
	Weight float64
}

// Config says how a Transport works.
type Config struct {
	// Service is the host in the URLs of requests that go to the endpoints, for
	// example "catalog" for http://catalog/items. Requests to other hosts, such as
	// redirections, go to Base as they are. "" takes all requests.
	Service string
	// Endpoints is the first set; Update replaces it.
	Endpoints []Endpoint
	// WaitForEndpoints is how long a request waits while the set is empty. 0 means an
	// error at once.
	WaitForEndpoints time.Duration
	// Balance says how endpoints are chosen; nil means DefaultBalance.
	Balance *balance.Config
	// Policy says how often and when requests are sent again; nil means
	// retry.DefaultPolicy. Its timeouts end when the head of the answer has come.
	Policy *retry.Policy
	// Budget limits retries; nil means one as retry.DefaultBudget says.
	Budget *retry.Budget
	// Hedge, if not nil, sends a backup request when the answer to an idempotent
	// request takes longer than usual.
	Hedge *retry.HedgeConfig
	// Idempotent says which requests may be done twice; nil means Idempotent.
	Idempotent func(*http.Request) bool
	// Classify says what outcomes mean; nil means Classify.
	Classify func(Result) retry.Class
	// Observe, if not nil, makes the observer of a route, called when it is first
	// used. Route names the route of a request; nil means its method. There must be
	// few: from the 1001st on they count as "other".
	Observe func(route string) retry.Observer
	Route   func(*http.Request) string
	// Base sends the attempts; nil means a copy of http.DefaultTransport with 100
	// idle connections per endpoint, without a proxy.
	Base http.RoundTripper
	// Rand is for tests: uniform numbers in [0, 1).
	Rand func() float64
}

// DefaultBalance is power of two choices over the least loaded, with failure
// accrual and fail-fast.
func DefaultBalance() balance.Config {
	return balance.Config{
		Policy: balance.P2C{}, Accrual: balance.DefaultFailureAccrual(), FailFast: &balance.FailFast{},
	}
}

// maxRoutes bounds the routes that are told apart.
const maxRoutes = 1000

// Transport is an http.RoundTripper. It is safe for concurrent use. Close it when
// it is no longer used.
type Transport struct {
	config   Config
	balancer *balance.Balancer
	clock    balance.Clock
	budget   *retry.Budget
	policy   retry.Policy
	hedger   *retry.Hedger
	base     http.RoundTripper
	ownBase  *http.Transport

	mu      sync.Mutex
	changed chan struct{} // closed by the next Update

	routes struct {
		sync.RWMutex
		list map[string]*retry.Retrier
	}
}

// target is a node's value: where its requests go.
type target struct{ scheme, host string }

// parse reads an endpoint's URL.
func (e Endpoint) parse() (target, error) {
	text := e.URL
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return target{}, fmt.Errorf("httpclient: endpoint %q is not a URL: %w", e.URL, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, fmt.Errorf("httpclient: endpoint %q has scheme %q; it must be http or https", e.URL, u.Scheme)
	case u.Host == "" || u.Hostname() == "":
		return target{}, fmt.Errorf("httpclient: endpoint %q has no host", e.URL)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return target{}, fmt.Errorf("httpclient: endpoint %q has more than scheme and host", e.URL)
	}
	return target{u.Scheme, u.Host}, nil
}

// New makes a transport. The error names what is wrong in the config.
func New(c Config) (*Transport, error) {
	t := &Transport{config: c, budget: c.Budget, base: c.Base, changed: make(chan struct{})}
	if t.config.Rand == nil {
		t.config.Rand = rand.Float64
	}
	if t.config.Idempotent == nil {
		t.config.Idempotent = Idempotent
	}
	if t.config.Classify == nil {
		t.config.Classify = Classify
	}
	if t.config.Route == nil {
		t.config.Route = func(r *http.Request) string { return r.Method }
	}
	if c.WaitForEndpoints < 0 {
		return nil, fmt.Errorf("httpclient: wait for endpoints is %v; it must not be negative", c.WaitForEndpoints)
	}
	b := DefaultBalance()
	if c.Balance != nil {
		b = *c.Balance
	}
	if b.Connections != nil {
		return nil, errors.New("httpclient: the balance config must not have Connections; net/http makes its own")
	}
	if b.Name == "" {
		b.Name = c.Service
	}
	if b.Clock == nil {
		b.Clock = balance.SystemClock
	}
	t.clock = b.Clock
	t.policy = retry.DefaultPolicy()
	if c.Policy != nil {
		t.policy = *c.Policy
	}
	if t.budget == nil {
		var err error
		if t.budget, err = retry.NewBudget(retry.DefaultBudget()); err != nil {
			return nil, err
		}
	}
	if err := t.policy.Check(); err != nil {
		return nil, err
	}
	if c.Hedge != nil {
		var err error
		if t.hedger, err = retry.NewHedger(*c.Hedge, t.budget, t.clock()); err != nil {
			return nil, err
		}
	}
	list, err := parse(c.Endpoints)
	if err != nil {
		return nil, err
	}
	if t.balancer, err = balance.New(b); err != nil {
		return nil, err
	}
	if err := t.balancer.Update(list); err != nil {
		t.balancer.Close()
		return nil, err
	}
	if t.base == nil {
		// http.DefaultTransport may have been replaced by anything.
		own := &http.Transport{ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second}
		if d, ok := http.DefaultTransport.(*http.Transport); ok {
			own = d.Clone()
		}
		own.Proxy, own.MaxIdleConnsPerHost, own.MaxIdleConns = nil, 100, 0
		t.base, t.ownBase = own, own
	}
	t.routes.list = map[string]*retry.Retrier{}
	return t, nil
}

func parse(endpoints []Endpoint) ([]balance.Endpoint, error) {
	list := make([]balance.Endpoint, len(endpoints))
	for i, e := range endpoints {
		at, err := e.parse()
		if err != nil {
			return nil, err
		}
		list[i] = balance.Endpoint{Address: at.scheme + "://" + at.host, Weight: e.Weight, Value: at}
	}
	return list, nil
}

// Update replaces the set of endpoints. Those that stay keep their load and their
// history; requests on those that go may end in peace. An error, which names the
// endpoint at fault, leaves the set as it was.
func (t *Transport) Update(endpoints []Endpoint) error {
	list, err := parse(endpoints)
	if err != nil {
		return err
	}
	if err := t.balancer.Update(list); err != nil {
		return err
	}
	t.mu.Lock()
	close(t.changed)
	t.changed = make(chan struct{})
	t.mu.Unlock()
	return nil
}

// Balancer returns the balancer, for metrics and status pages.
func (t *Transport) Balancer() *balance.Balancer { return t.balancer }

// Budget returns the budget of retries.
func (t *Transport) Budget() *retry.Budget { return t.budget }

// Close gives up idle connections and refuses further requests. Those that are
// under way may end in peace.
func (t *Transport) Close() {
	t.balancer.Close()
	t.CloseIdleConnections()
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// retrier finds the retrier of a route.
func (t *Transport) retrier(route string) (*retry.Retrier, error) {
	t.routes.RLock()
	r := t.routes.list[route]
	full := len(t.routes.list) >= maxRoutes
	t.routes.RUnlock()
	if r != nil {
		return r, nil
	}
	if full && route != "other" {
		return t.retrier("other")
	}
	var o retry.Observer
	if t.config.Observe != nil {
		o = t.config.Observe(route)
	}
	made, err := retry.NewRetrier(t.policy, t.budget, o, t.config.Rand)
	if err != nil {
		return nil, err
	}
	t.routes.Lock()
	defer t.routes.Unlock()
	if r := t.routes.list[route]; r != nil {
		return r, nil
	}
	t.routes.list[strings.Clone(route)] = made
	return made, nil
}

// Idempotent is true for the methods that RFC 9110 calls idempotent, and for
// requests with an Idempotency-Key.
func Idempotent(r *http.Request) bool {
	return slices.Contains([]string{"", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete}, r.Method) ||
		r.Header.Get("Idempotency-Key") != ""
}
