package storagerpc

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// ClientOptions of NewClient. The zero value of a field is its default.
type ClientOptions struct {
	// ClusterID, BucketCount and ReplicaSet are what the member must have; what is empty is
	// not checked.
	ClusterID   string
	BucketCount uint32
	ReplicaSet  string
	// DialOptions are used besides the client's own: credentials above all. Without
	// credentials among them the connection is in the clear.
	DialOptions []grpc.DialOption
	// Secure says that DialOptions have credentials.
	Secure bool
	// MaxCalls and MaxBytes bound the calls in flight and the bytes of their arguments
	// (default 16384 and 256 MiB, as an engine's). More are refused with OVERLOADED.
	MaxCalls int
	MaxBytes int64
	// ConnectTimeout bounds connecting (default 2 s).
	ConnectTimeout time.Duration
	// Silence is after how long without a word from the member a discovery stream is
	// given up, and with it all calls (default 2 s).
	Silence time.Duration
}

// Client reaches one member of a replica set. It connects when it is needed, and again when
// the connection was lost. All methods may be called from any goroutine.
type Client struct {
	address string
	opts    ClientOptions
	dial    []grpc.DialOption
	meta    []string

	mu     sync.Mutex
	conn   *grpc.ClientConn
	calls  *callsConn // takes calls, or nil
	closed bool
	ctx    context.Context // ended by Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// NewClient makes a client for the member at address. It does not connect yet.
func NewClient(address string, opts ClientOptions) (*Client, error) {
	if opts.MaxCalls < 0 || opts.MaxBytes < 0 || opts.ConnectTimeout < 0 || opts.Silence < 0 {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "the limits of a client of a storage must not be negative"}
	}
	def(&opts.MaxCalls, 16384)
	def(&opts.MaxBytes, 256<<20)
	def(&opts.ConnectTimeout, 2*time.Second)
	def(&opts.Silence, 2*time.Second)
	dial := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: opts.ConnectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithDisableServiceConfig(),
	}
	if !opts.Secure {
		dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	c := &Client{address: address, opts: opts, dial: append(dial, opts.DialOptions...)}
	if err := c.open(); err != nil {
		return nil, &shard.Error{Code: shard.InvalidConfig, ReplicaSet: opts.ReplicaSet, Reason: "the address " + address + " cannot be used", Err: err}
	}
	for _, kv := range [][2]string{{metaCluster, opts.ClusterID}, {metaBuckets, number(opts.BucketCount)}, {metaReplicaSet, opts.ReplicaSet}} {
		if kv[1] != "" {
			c.meta = append(c.meta, kv[0], kv[1])
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// open makes a connection, which connects when it is needed.
func (c *Client) open() (err error) {
	c.conn, err = grpc.NewClient("passthrough:///"+c.address, c.dial...)
	return err
}

// service returns the service over the connection of now.
func (c *Client) service() v1.StorageServiceClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	return v1.NewStorageServiceClient(c.conn)
}

// renew gives the connection up, with all that is in flight on it, for a new one.
func (c *Client) renew(why error) {
	c.mu.Lock()
	x, old := c.calls, c.conn
	if c.closed {
		c.mu.Unlock()
		return
	}
	if err := c.open(); err != nil {
		c.conn = old // it was possible before
		old = nil
	}
	c.mu.Unlock()
	if x != nil {
		x.cancel(why)
	}
	if old != nil {
		_ = old.Close()
	}
}

func number(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}

// Address returns the member's address.
func (c *Client) Address() string { return c.address }

// Close ends the connection. Calls in flight fail.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	conn := c.conn
	c.mu.Unlock()
	c.cancel(errClientClosed)
	err := conn.Close()
	c.wg.Wait()
	return err
}

// Retire closes the client when its calls in flight have ended, or ctx has. A call that comes
// meanwhile may or may not be taken.
func (c *Client) Retire(ctx context.Context) error {
	c.mu.Lock()
	x := c.calls
	c.mu.Unlock()
	if x != nil {
		select {
		case <-x.idle():
		case <-ctx.Done():
		}
	}
	return c.Close()
}

// with adds what the client believes.
func (c *Client) with(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, c.meta...)
}

// Do runs one unary call of the service: an admin operation. Its error is the store's where
// there is one, and a *ConnError when the member did not answer.
func (c *Client) Do(ctx context.Context, call func(context.Context, v1.StorageServiceClient) error) error {
	return c.failure(call(c.with(ctx), c.service()))
}

// failure tells errors of the connection, which may have been sent, from others.
func (c *Client) failure(err error) error {
	if err == nil {
		return nil
	}
	var e *shard.Error
	if err = fromStatus(err); errors.As(err, &e) {
		return err
	}
	switch status.Code(err) {
	case codes.Unavailable:
		// Who cannot be connected to has got nothing. gRPC says it in words alone.
		dialing := strings.Contains(status.Convert(err).Message(), "Error while dialing")
		return &ConnError{Address: c.address, Sent: !dialing, Err: err}
	case codes.Unimplemented:
		// A server that does not know this service at all is none of ours: a node is gone, and
		// another program has its address.
		if strings.Contains(status.Convert(err).Message(), "unknown service") {
			return &ConnError{Address: c.address, Err: err}
		}
	case codes.DeadlineExceeded:
		return errors.Join(context.DeadlineExceeded, err)
	case codes.Canceled:
		return errors.Join(context.Canceled, err)
	}
	return err
}

// Watch calls fn with what the member's discovery stream says, first with all that is so. It
// returns when ctx ends, the stream breaks, the member has been silent for too long, or fn
// returns an error. When it was silent, the connection is given up with all that is in flight
// on it: one on which nothing comes is lost, whether the system knows it or not.
func (c *Client) Watch(ctx context.Context, fn func(*v1.DiscoverResponse) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Connecting has its time, and then every message.
	silent := &ConnError{Address: c.address, Sent: true, Err: errors.New("it has been silent for " + c.opts.Silence.String())}
	timer := time.AfterFunc(c.opts.ConnectTimeout+c.opts.Silence, func() {
		cancel(silent)
		c.renew(silent)
	})
	defer timer.Stop()
	stream, err := c.service().Discover(c.with(ctx), &v1.DiscoverRequest{})
	for err == nil {
		var resp *v1.DiscoverResponse
		if resp, err = stream.Recv(); err == nil {
			timer.Reset(c.opts.Silence)
			if err := fn(resp); err != nil {
				return err
			}
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return &ConnError{Address: c.address, Err: errors.New("the member has ended the stream")}
	}
	return c.failure(err)
}

// Discover returns what the member knows now.
func (c *Client) Discover(ctx context.Context) (*v1.DiscoverResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.service().Discover(c.with(ctx), &v1.DiscoverRequest{Once: true})
	if err != nil {
		return nil, c.failure(err)
	}
	resp, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, &ConnError{Address: c.address, Err: errors.New("the member has ended the stream")}
	}
	return resp, c.failure(err)
}

// MapCall runs one function on many buckets and calls fn with each bucket's outcome as they
// come. An error says that there are no more; the outcome of the others is unknown then, unless
// it is a *ConnError that was not sent, or an error of the store.
func (c *Client) MapCall(ctx context.Context, req *v1.MapCallRequest, fn func(b shard.BucketID, result []byte, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.service().MapCall(c.with(ctx), req)
	for err == nil {
		var resp *v1.MapCallResponse
		if resp, err = stream.Recv(); err == nil {
			for _, r := range resp.GetResults() {
				fn(shard.BucketID(r.GetId()), r.GetResult(), DecodeError(r.GetError()))
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return c.failure(err)
}
