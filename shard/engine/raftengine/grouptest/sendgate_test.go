package grouptest

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// sendGate stops the member of a group that sends a snapshot.
type sendGate struct {
	mu   sync.Mutex
	stop *stop
}

// afterLast stops a member that has sent everything and waits for the answer.
const afterLast = math.MaxInt

// stop is one time of stopping.
type stop struct {
	at      int
	by      *member // once it is reached
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

// stopAt stops the next snapshot before message number at.
func (g *sendGate) stopAt(at int) *stop {
	s := &stop{at: at, reached: make(chan struct{}), open: make(chan struct{})}
	g.mu.Lock()
	g.stop = s
	g.mu.Unlock()
	return s
}

// wait waits for that and returns the member that sends.
func (s *stop) wait(t *testing.T) *member {
	t.Helper()
	select {
	case <-s.reached:
		return s.by
	case <-time.After(30 * time.Second):
		t.Fatal("no snapshot is sent")
		return nil
	}
}

func (s *stop) release() { s.once.Do(func() { close(s.open) }) }

func (g *sendGate) dialOptions(m *member) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		c, err := next(ctx, desc, cc, method, opts...)
		if err != nil || !strings.HasSuffix(method, "/InstallSnapshot") {
			return c, err
		}
		g.mu.Lock()
		s := g.stop
		g.stop = nil
		g.mu.Unlock()
		if s == nil {
			return c, nil
		}
		return &gatedStream{ClientStream: c, stop: s, by: m}, nil
	})}
}

type gatedStream struct {
	grpc.ClientStream
	stop *stop
	by   *member
	sent int
}

func (c *gatedStream) hold() {
	c.stop.by = c.by
	close(c.stop.reached)
	select {
	case <-c.stop.open:
	case <-c.Context().Done():
	}
}

func (c *gatedStream) SendMsg(m any) error {
	if c.sent++; c.sent == c.stop.at {
		c.hold()
	}
	return c.ClientStream.SendMsg(m)
}

func (c *gatedStream) RecvMsg(m any) error {
	if c.stop.at == afterLast {
		c.hold()
	}
	return c.ClientStream.RecvMsg(m)
}
