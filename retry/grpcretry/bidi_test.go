package grpcretry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/switchyard-dev/switchyard/internal/grpctest"
	"github.com/switchyard-dev/switchyard/retry"
)

// collector is a service with one method that takes a stream of texts and answers
// with one; attempt tells how each attempt goes: after how many texts it fails.
type collector struct {
	mu       sync.Mutex
	failAt   []int      // by attempt; -1 and beyond the end: not at all
	received [][]string // by attempt
}

func (c *collector) handle(_ any, s grpc.ServerStream) error {
	c.mu.Lock()
	n := len(c.received)
	c.received = append(c.received, nil)
	failAt := -1
	if n < len(c.failAt) {
		failAt = c.failAt[n]
	}
	c.mu.Unlock()
	for i := 0; ; i++ {
		if i == failAt {
			return retry.WithSignal(status.Error(codes.Unavailable, "not begun"), retry.Nack)
		}
		var text wrapperspb.StringValue
		err := s.RecvMsg(&text)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		c.mu.Lock()
		c.received[n] = append(c.received[n], text.GetValue())
		c.mu.Unlock()
	}
	c.mu.Lock()
	all := strings.Join(c.received[n], " ")
	c.mu.Unlock()
	return s.SendMsg(wrapperspb.String(all))
}

var collectDesc = grpc.StreamDesc{StreamName: "Collect", ClientStreams: true}

func startCollector(t *testing.T, c *collector) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	desc := collectDesc
	desc.Handler = c.handle
	s := grpc.NewServer(ServerOptions(ServerConfig{})...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Collector", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// collect sends texts, one by one, and returns the answer.
func collect(t *testing.T, client *Client, addr string, texts []string, between func(i int)) (string, error) {
	t.Helper()
	conn := grpctest.Dial(t, grpctest.Resolver(addr), leastLoaded, client.DialOptions()...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &collectDesc, "/test.Collector/Collect")
	if err != nil {
		return "", err
	}
	for i, text := range texts {
		if err := s.SendMsg(wrapperspb.String(text)); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		} else if err != nil {
			break // the status comes from RecvMsg
		}
		between(i)
	}
	if err := s.CloseSend(); err != nil {
		return "", err
	}
	var answer wrapperspb.StringValue
	err = s.RecvMsg(&answer)
	return answer.GetValue(), err
}

func TestClientStream_isSentAgainFromTheStart(t *testing.T) {
	texts := []string{"a", "b", "c", "d"}
	for name, failAt := range map[string][]int{
		"at once": {0}, "in the middle": {2}, "at the end": {4}, "twice": {1, 3}, "not at all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := &collector{failAt: failAt}
			client, rec := newClient(t, Method{}, nil)
			// Slowly enough that sending meets the broken stream.
			answer, err := collect(t, client, startCollector(t, c), texts, func(int) { time.Sleep(2 * time.Millisecond) })
			if err != nil || answer != "a b c d" {
				t.Errorf("%q, %v", answer, err)
			}
			if len(c.received) != len(failAt)+1 || !slices.Equal(c.received[len(failAt)], texts) {
				t.Errorf("received %q", c.received)
			}
			if !slices.Equal(rec.logical, []retry.Class{retry.Success}) {
				t.Errorf("logical requests: %v", rec.logical)
			}
		})
	}
}

func TestClientStream_whatIsTooLongIsNotSentAgain(t *testing.T) {
	c := &collector{failAt: []int{3}}
	client, rec := newClient(t, Method{ReplayBytes: 100}, nil)
	var texts []string
	for i := range 50 {
		texts = append(texts, fmt.Sprintf("text number %d", i))
	}
	_, err := collect(t, client, startCollector(t, c), texts, func(int) { time.Sleep(time.Millisecond) })
	if status.Code(err) != codes.Unavailable || len(c.received) != 1 || !slices.Equal(rec.logical, []retry.Class{retry.Failed}) {
		t.Errorf("%v after %d attempts, %v", err, len(c.received), rec.logical)
	}
}
