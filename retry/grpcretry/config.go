package grpcretry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// Config says how a client sends requests again. The zero value is good for
// methods of which nothing is known: what was refused or never written is sent
// again, within the default budget.
type Config struct {
	// Budget limits retries of all methods together; nil means one as
	// retry.DefaultBudget says. Share it among the connections to the same servers.
	Budget *retry.Budget
	// Methods says more about methods. The key is a full method name
	// ("/shop.Catalog/Get"), a service ("/shop.Catalog/"), or "" for all others; the
	// most exact one counts alone, nothing is inherited.
	Methods map[string]Method
	// Admission, if not nil, drops requests while the servers refuse most of them.
	Admission *retry.AdmissionConfig
	// Observe, if not nil, makes the observer of a method, called with its full
	// name when it is first used.
	Observe func(method string) retry.Observer
	// Clock and Rand are for tests; nil means the machine's. Rand returns uniform
	// numbers in [0, 1). Waiting always takes real time.
	Clock balance.Clock
	Rand  func() float64
}

// Method says what a method is like and how it is sent again.
type Method struct {
	// Idempotent says that doing it twice does no harm, so that it may be sent again
	// when it is not known whether it was done.
	Idempotent bool
	// Policy says how often and when; nil means retry.DefaultPolicy. Its timeouts
	// are for unary calls only.
	Policy *retry.Policy
	// Hedge, if not nil, sends a backup request when the answer takes longer than
	// usual. Only for Idempotent methods; streams are not hedged.
	Hedge *retry.HedgeConfig
	// Classify, if not nil, is asked instead of Classify what an outcome means.
	Classify func(Result) retry.Class
	// ReplayBytes bounds what is kept of a stream's messages, to send them again; 0
	// means 64 KiB. Negative means that streams are not opened again.
	ReplayBytes int
}

const (
	defaultReplay = 64 << 10
	// maxMethods bounds the methods that are told apart, in case their names come
	// from outside.
	maxMethods = 10_000
)

// Client makes the interceptors for connections. It is safe for concurrent use.
type Client struct {
	config    Config
	budget    *retry.Budget
	admission *retry.Admission
	clock     balance.Clock
	draw      func() float64

	methods sync.Map // full method name → *method
	count   atomic.Int64
	other   *method
}

// method is what a client knows about one method.
type method struct {
	name    string
	config  Method
	retrier *retry.Retrier
	hedger  *retry.Hedger
}

// New makes a client. The error names what is wrong in the config.
func New(c Config) (*Client, error) {
	x := &Client{config: c, budget: c.Budget, clock: c.Clock, draw: c.Rand}
	if x.clock == nil {
		x.clock = balance.SystemClock
	}
	if x.draw == nil {
		x.draw = rand.Float64
	}
	if x.budget == nil {
		var err error
		if x.budget, err = retry.NewBudget(retry.DefaultBudget()); err != nil {
			return nil, err
		}
	}
	if c.Admission != nil {
		var err error
		if x.admission, err = retry.NewAdmission(*c.Admission, x.clock()); err != nil {
			return nil, err
		}
	}
	for key, m := range c.Methods {
		if key != "" && (key[0] != '/' || strings.Count(key, "/") != 2) {
			return nil, fmt.Errorf(`grpcretry: method %q is neither "/service/method" nor "/service/" nor ""`, key)
		}
		if _, err := x.newMethod(key, m, retry.NoObserver{}); err != nil {
			return nil, fmt.Errorf("grpcretry: method %q: %w", key, err)
		}
	}
	var err error
	x.other, err = x.newMethod("", c.Methods[""], x.observer(""))
	return x, err
}

func (c *Client) observer(name string) retry.Observer {
	if c.config.Observe == nil {
		return nil
	}
	return c.config.Observe(name)
}

func (c *Client) newMethod(name string, m Method, o retry.Observer) (*method, error) {
	policy := retry.DefaultPolicy()
	if m.Policy != nil {
		policy = *m.Policy
	}
	if m.ReplayBytes == 0 {
		m.ReplayBytes = defaultReplay
	}
	if m.Classify == nil {
		m.Classify = Classify
	}
	x := &method{name: name, config: m}
	var err error
	if x.retrier, err = retry.NewRetrier(policy, c.budget, o, c.draw); err != nil {
		return nil, err
	}
	if m.Hedge != nil {
		if !m.Idempotent {
			return nil, errors.New("hedging needs a method that is idempotent")
		}
		if x.hedger, err = retry.NewHedger(*m.Hedge, c.budget, c.clock()); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// method finds what is known about a method.
func (c *Client) method(name string) *method {
	if m, ok := c.methods.Load(name); ok {
		return m.(*method)
	}
	if c.count.Load() >= maxMethods {
		return c.other
	}
	config, ok := c.config.Methods[name]
	if !ok {
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			config, ok = c.config.Methods[name[:i+1]]
		}
		if !ok {
			config = c.config.Methods[""]
		}
	}
	m, err := c.newMethod(name, config, c.observer(name))
	if err != nil { // not for a config that New has checked
		return c.other
	}
	if old, loaded := c.methods.LoadOrStore(name, m); loaded {
		return old.(*method)
	}
	c.count.Add(1)
	return m
}

// Budget returns the client's budget.
func (c *Client) Budget() *retry.Budget { return c.budget }

// BackupDelay returns how long a call of the method waits for its backup, or
// retry.NoHedge.
func (c *Client) BackupDelay(fullMethod string) time.Duration {
	if m := c.method(fullMethod); m.hedger != nil {
		return m.hedger.Delay()
	}
	return retry.NoHedge
}

// DialOptions are the options for a connection: both interceptors, and gRPC's own
// retries off, which know no budget. (What gRPC calls transparent retries stays.)
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream), grpc.WithDisableRetry(),
	}
}
