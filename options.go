package switchyard

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/retry"
)

// Defaults of the dial options.
const (
	// DefaultNamespace is the namespace of a client that names none.
	DefaultNamespace = "default"
	// DefaultTimeout bounds calls whose context has no deadline.
	DefaultTimeout = 30 * time.Second
	// DefaultMaxMessageSize is the largest message sent or received, in bytes.
	DefaultMaxMessageSize = 64 << 20
)

// AddSharing bounds how concurrent calls of Add and AddMany share requests.
// Fields that are 0 take the default.
type AddSharing struct {
	// MaxTasks is the most tasks in one request; default 1000. A server refuses
	// requests with more than its own limit, 10,000 by default.
	MaxTasks int
	// MaxBytes is the size from which on a request takes no further tasks;
	// default 2 MiB. A single task may be larger, it travels alone then.
	MaxBytes int
	// MaxRequests is how many requests are on their way at once for one queue;
	// default 2.
	MaxRequests int
}

func (s AddSharing) withDefaults() AddSharing {
	if s.MaxTasks == 0 {
		s.MaxTasks = 1000
	}
	if s.MaxBytes == 0 {
		s.MaxBytes = 2 << 20
	}
	if s.MaxRequests == 0 {
		s.MaxRequests = 2
	}
	return s
}

// DialOption is a setting of Dial.
type DialOption func(*dialOptions)

type dialOptions struct {
	namespace  string
	identity   string
	logger     *slog.Logger
	tls        *tls.Config
	timeout    time.Duration
	maxMessage int
	sharing    AddSharing
	grpcOnly   bool
	direct     grpc.ClientConnInterface
	backoff    retry.Backoff
	grpc       []grpc.DialOption
}

func defaultDialOptions() dialOptions {
	return dialOptions{
		namespace:  DefaultNamespace,
		identity:   defaultIdentity(),
		logger:     slog.Default(),
		timeout:    DefaultTimeout,
		maxMessage: DefaultMaxMessageSize,
		backoff: retry.Backoff{
			Initial: 20 * time.Millisecond, Max: 2 * time.Second, Multiplier: 2, Jitter: 0.5,
		},
	}
}

func (o *dialOptions) check() error {
	switch {
	case o.namespace == "":
		return fmt.Errorf("switchyard: the namespace is empty; leave it out for %q", DefaultNamespace)
	case o.timeout <= 0:
		return fmt.Errorf("switchyard: the timeout is %v; it must be positive", o.timeout)
	case o.maxMessage <= 0:
		return fmt.Errorf("switchyard: the largest message is %d bytes; it must be positive", o.maxMessage)
	case o.sharing.MaxTasks < 0 || o.sharing.MaxBytes < 0 || o.sharing.MaxRequests < 0:
		return fmt.Errorf("switchyard: a limit of %+v is negative", o.sharing)
	}
	return o.backoff.Check()
}

// WithNamespace sets the namespace of all calls, DefaultNamespace if not given.
func WithNamespace(namespace string) DialOption {
	return func(o *dialOptions) { o.namespace = namespace }
}

// WithIdentity sets the name under which this process shows up as a poller; by
// default "host:pid".
func WithIdentity(identity string) DialOption {
	return func(o *dialOptions) { o.identity = identity }
}

// WithLogger sets where the client and its workers log, slog.Default() if not
// given; nil for nowhere.
func WithLogger(logger *slog.Logger) DialOption {
	return func(o *dialOptions) { o.logger = logger }
}

// WithTLS encrypts the connection. Without it the connection is plain.
func WithTLS(config *tls.Config) DialOption {
	return func(o *dialOptions) { o.tls = config }
}

// WithTimeout bounds calls whose context has no deadline; DefaultTimeout if not
// given. Long polls of workers have deadlines of their own.
func WithTimeout(timeout time.Duration) DialOption {
	return func(o *dialOptions) { o.timeout = timeout }
}

// WithMaxMessageSize sets the largest message that is sent or received, in
// bytes; DefaultMaxMessageSize if not given. The server has a limit too.
func WithMaxMessageSize(bytes int) DialOption {
	return func(o *dialOptions) { o.maxMessage = bytes }
}

// WithGRPCOnly makes all calls over gRPC. By default the calls that add, poll,
// complete and release go over a leaner transport on the same port when the target
// is a single "host:port" without TLS; see package api/link.
func WithGRPCOnly() DialOption { return func(o *dialOptions) { o.grpcOnly = true } }

// WithAddSharing bounds how concurrent adds share requests.
func WithAddSharing(sharing AddSharing) DialOption {
	return func(o *dialOptions) { o.sharing = sharing }
}

// WithBackoff sets the wait between tries of a call that failed with a
// transient error; by default from 20 ms to 2 s, doubling, half of it random.
func WithBackoff(backoff retry.Backoff) DialOption {
	return func(o *dialOptions) { o.backoff = backoff }
}

// WithGRPC adds options of grpc-go: interceptors, statistics, credentials per
// call. They come last and win over the client's own. Interceptors see the
// requests of AddTasks, PollTasks, CompleteTasks and ReleaseTasks as types of
// this package that are no protobuf messages.
func WithGRPC(opts ...grpc.DialOption) DialOption {
	return func(o *dialOptions) { o.grpc = append(o.grpc, opts...) }
}

func defaultIdentity() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}
