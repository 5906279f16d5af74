package switchyard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"

	"github.com/switchyard-dev/switchyard/api/link"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	_ "github.com/switchyard-dev/switchyard/balance/grpcbalance" // several addresses are balanced with it
)

// Client is a connection to a Switchyard server. It is safe for concurrent use;
// a process needs one per server and namespace. It reconnects by itself.
//
// Calls wait for the connection and are repeated after transient errors until
// their context ends; a call whose context has no deadline takes WithTimeout at
// most.
type Client struct {
	opts   dialOptions
	conn   *grpc.ClientConn
	hot    grpc.ClientConnInterface // for the calls that are made all the time
	link   *link.Client             // nil when hot is conn
	tasks  v1.TaskServiceClient
	queues v1.QueueServiceClient
	calls  v1.CallServiceClient

	// ctx ends with Close; shared requests run under it.
	ctx     context.Context
	cancel  context.CancelFunc
	flights group

	mu     sync.RWMutex
	closed bool
	adders map[string]*adder // by queue
}

// Dial returns a client of the server at target: "host:port", several of them
// with commas between, or any target that grpc-go knows ("dns:///name:port",
// "unix:/path"). It does not wait for the connection and so fails only for
// settings that make no sense.
func Dial(target string, opts ...DialOption) (*Client, error) {
	o := defaultDialOptions()
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o.sharing = o.sharing.withDefaults()
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}

	creds := insecure.NewCredentials()
	if o.tls != nil {
		creds = credentials.NewTLS(o.tls)
	}
	grpcOpts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent("switchyard-go"),
		// Windows of a fixed, large size: batches never wait for a window update.
		grpc.WithInitialWindowSize(8 << 20),
		grpc.WithInitialConnWindowSize(16 << 20),
		grpc.WithReadBufferSize(64 << 10),
		grpc.WithWriteBufferSize(64 << 10),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		// The client repeats calls itself.
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(newCodec()),
			grpc.WaitForReady(true),
			grpc.MaxCallRecvMsgSize(o.maxMessage),
			grpc.MaxCallSendMsgSize(o.maxMessage),
		),
	}
	if target == "" {
		return nil, errors.New(`switchyard: the target is empty; give the server's address, "127.0.0.1:7480" for instance`)
	}
	if list := splitTargets(target); len(list) > 1 {
		target = listScheme + ":///" + strings.Join(list, ",")
		grpcOpts = append(grpcOpts, grpc.WithResolvers(listResolver{}),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"switchyard_p2c_least_loaded":{}}]}`))
	}
	conn, err := grpc.NewClient(target, append(grpcOpts, o.grpc...)...)
	if err != nil {
		return nil, fmt.Errorf("switchyard: the target %q cannot be used: %w", target, err)
	}
	c := &Client{
		opts:   o,
		conn:   conn,
		tasks:  v1.NewTaskServiceClient(conn),
		queues: v1.NewQueueServiceClient(conn),
		calls:  v1.NewCallServiceClient(conn),
		adders: make(map[string]*adder),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.hot = conn
	if o.direct != nil {
		c.hot = directConn{o.direct}
		c.tasks, c.calls = v1.NewTaskServiceClient(c.hot), v1.NewCallServiceClient(c.hot)
	} else if o.linkFits(target) {
		c.link = newLink(target, o.maxMessage)
		c.hot = &linkOrGRPC{link: c.link, grpc: conn}
	}
	return c, nil
}

// Close ends the connection. Calls that are on their way fail with
// ErrClientClosed or a Canceled error. Stop the client's workers first: they
// cannot hand back their tasks any more.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	err := c.conn.Close()
	if c.link != nil {
		err = errors.Join(err, c.link.Close())
	}
	c.flights.Wait()
	return err
}

// Namespace returns the namespace of the client's calls.
func (c *Client) Namespace() string { return c.opts.namespace }

// Conn returns the gRPC connection, for calls that this package does not have.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// TaskService returns the generated client of the task service, for full
// control over single calls. They are neither shared nor repeated.
func (c *Client) TaskService() v1.TaskServiceClient { return c.tasks }

// QueueService returns the generated client of the queue service.
func (c *Client) QueueService() v1.QueueServiceClient { return c.queues }

// CallService returns the generated client of the call service.
func (c *Client) CallService() v1.CallServiceClient { return c.calls }

// bounded returns ctx with the client's timeout if it has no deadline.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.opts.timeout)
}

// do makes a call and repeats it after transient errors. repeated is true from
// the second try on: the first one may have taken effect.
func (c *Client) do(ctx context.Context, op, what string, call func(ctx context.Context, repeated bool) error) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for try := 1; ; try++ {
		err := call(ctx, try > 1)
		if err == nil {
			return nil
		}
		if c.ctx.Err() != nil {
			return ErrClientClosed
		}
		if !transient(err) || !c.pause(ctx, try) {
			return callError(ctx, op, what, err)
		}
	}
}

// pause waits between two tries. It returns false if the context ends before the
// wait is over.
func (c *Client) pause(ctx context.Context, try int) bool {
	return sleep(ctx, c.opts.backoff.Delay(try, rand.Float64()))
}

// sleep returns false if ctx ends, or is bound to end, before d is over.
func sleep(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// listResolver resolves a list of addresses to itself.
type listResolver struct{}

const listScheme = "switchyard-list"

func (listResolver) Scheme() string { return listScheme }

func (listResolver) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var state resolver.State
	for _, address := range splitTargets(target.Endpoint()) {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}})
	}
	return listResolver{}, cc.UpdateState(state)
}

func (listResolver) ResolveNow(resolver.ResolveNowOptions) {}

func (listResolver) Close() {}

func splitTargets(target string) []string {
	var out []string
	for part := range strings.SplitSeq(target, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
