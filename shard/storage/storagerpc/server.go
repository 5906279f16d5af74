package storagerpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Storage is what the server needs to serve calls; *storage.Storage is one. What it can do
// beyond that is found out by the interfaces of admin.go.
type Storage interface {
	ReplicaSet() string
	BucketCount() uint32
	Write(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error)
	WriteAsync(bucket shard.BucketID, fn string, args []byte, done func([]byte, error))
	Read(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error)
	View(ctx context.Context, bucket shard.BucketID, fn func(*storage.View) error) error
	BucketState(bucket shard.BucketID) (shard.State, string)
	BucketCounts() map[shard.State]int
	Status() engine.Status
}

// Names of the metadata in which clients say what they believe.
const (
	metaCluster    = "switchyard-cluster"
	metaBuckets    = "switchyard-buckets"
	metaReplicaSet = "switchyard-replicaset"
)

// Server serves one storage. All methods may be called from any goroutine.
type Server struct {
	v1.UnimplementedStorageServiceServer

	opts    ServerOptions
	storage Storage
	views   chan struct{} // one for each view that may be opened
	// rebalancer is nil when this node has none.
	rebalancer atomic.Pointer[Rebalancer]

	mu       sync.Mutex
	streams  map[*callStream]struct{}
	callers  map[uint32]int       // streams by the bucket_count in which their clients believe
	left     map[uint32]time.Time // when the last of them ended
	started  time.Time
	draining bool
	drained  chan struct{}      // closed when draining begins
	stop     context.Context    // ended by Close
	end      context.CancelFunc // of stop
	running  sync.WaitGroup     // handlers
}

// NewServer makes a server. Close it before its storage.
func NewServer(opts ServerOptions) (*Server, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		opts: opts, storage: opts.Storage, views: make(chan struct{}, opts.MaxViews),
		streams: map[*callStream]struct{}{}, callers: map[uint32]int{}, left: map[uint32]time.Time{}, started: time.Now(), drained: make(chan struct{}),
	}
	s.stop, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Register makes r serve the storage. The gRPC server must take messages of MaxMessage
// bytes.
func (s *Server) Register(r grpc.ServiceRegistrar) { v1.RegisterStorageServiceServer(r, s) }

// Storage returns what is served.
func (s *Server) Storage() Storage { return s.storage }

// Member returns the id of this member.
func (s *Server) Member() string { return s.opts.Member }

// Drain takes no more calls, answers those it has, and then ends all streams, so that
// clients know that what was not answered was not done. It waits until ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		close(s.drained)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends all streams at once and waits for their handlers.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		close(s.drained)
	}
	s.mu.Unlock()
	s.end()
	s.running.Wait()
}

// begin admits a handler: it checks what the client believes, and returns a context that
// ends with the server. Call end when the handler is done.
func (s *Server) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	if err := s.check(ctx); err != nil {
		return nil, nil, statusOf(err)
	}
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return nil, nil, statusOf(s.errStopping())
	}
	s.running.Add(1)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.stop, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.running.Done()
	}, nil
}

// errStopping says that a call was not taken.
func (s *Server) errStopping() error {
	return &shard.Error{Code: shard.StorageIsDisabled, ReplicaSet: s.storage.ReplicaSet(), Reason: "the node is stopping"}
}

// clusterID is what is known of the cluster; empty before the storage knows.
func (s *Server) clusterID() string {
	// Of Facts this alone may be there.
	if c, ok := s.storage.(interface{ ClusterID() string }); ok {
		return c.ClusterID()
	}
	return ""
}

// check compares what the client believes with what is so.
func (s *Server) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if err := differs(md, metaCluster, "cluster id", s.clusterID(), s.storage.ReplicaSet()); err != nil {
		return err
	}
	if _, err := s.seen(ctx); err != nil {
		return err
	}
	return differs(md, metaReplicaSet, "replica set", s.storage.ReplicaSet(), s.storage.ReplicaSet())
}

func differs(md metadata.MD, key, what, ours, set string) error {
	for _, theirs := range md.Get(key) {
		if theirs != "" && ours != "" && theirs != ours {
			return differ(what, theirs, ours, set)
		}
	}
	return nil
}

func differ(what, theirs, ours, set string) error {
	return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: set,
		Reason: fmt.Sprintf("the caller expects %s %s, this node has %s", what, theirs, ours)}
}
