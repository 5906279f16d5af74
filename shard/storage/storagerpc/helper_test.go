package storagerpc

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const buckets = 16

// testTime is how long a test waits for what must come.
const testTime = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// newStorage opens a bootstrapped storage; in memory when dir is empty.
func newStorage(t testing.TB, dir string, reg *storage.Registry) *storage.Storage {
	t.Helper()
	ctx := testContext(t)
	s, err := storage.Open(ctx, storage.Options{
		Registry: reg, BucketCount: buckets, ReplicaSet: "a",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Memory: dir == "", Dir: dir, Machine: m, BucketCount: buckets})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves a storage on loopback and returns its server and address.
func serve(t testing.TB, opts ServerOptions) (*Server, string) {
	t.Helper()
	if opts.Member == "" {
		opts.Member = "a1"
	}
	s, err := NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage))
	s.Register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() {
		s.Close()
		g.Stop()
		<-done
	})
	return s, l.Addr().String()
}

func dial(t testing.TB, address string, opts ClientOptions) *Client {
	t.Helper()
	c, err := NewClient(address, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
