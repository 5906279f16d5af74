package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var codec = encoding.GetCodecV2(protocodec.Name)

// service is what the tests call: the message says what to do.
type service struct {
	began   chan struct{}
	waiting atomic.Int32
}

func (s *service) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "test.Service", Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: s.do}}}
}

func (s *service) do(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(wrapperspb.BytesValue)
	if err := dec(in); err != nil {
		return nil, err
	}
	switch string(in.Value) {
	case "fail":
		return nil, status.Error(codes.NotFound, "nothing here")
	case "panic":
		panic("as asked")
	case "wait":
		s.waiting.Add(1)
		defer s.waiting.Add(-1)
		s.began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	case "deadline":
		d, ok := ctx.Deadline()
		if !ok {
			return wrapperspb.Bytes(nil), nil
		}
		return wrapperspb.Bytes([]byte(time.Until(d).Round(time.Second).String())), nil
	}
	return in, nil
}

type fixture struct {
	*Client
	server *Server
	*service
	addr string
	l    net.Listener
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{service: &service{began: make(chan struct{}, 100)}}
	f.listen(t, "127.0.0.1:0")
	f.Client = dialTo(f.addr)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		f.stop()
	})
	return f
}

func (f *fixture) listen(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	f.l, f.addr = l, l.Addr().String()
	f.server = NewServer(ServerOptions{Codec: codec, MaxMessage: 1 << 20})
	f.server.RegisterService(f.desc(), nil)
	go func() { _ = f.server.Serve(l) }()
}

func (f *fixture) stop() {
	f.l.Close()
	f.server.Stop()
}

func dialTo(addr string) *Client {
	return NewClient(ClientOptions{Codec: codec, MaxMessage: 1 << 20, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}})
}

func (f *fixture) do(ctx context.Context, what string) (string, error) {
	out := new(wrapperspb.BytesValue)
	err := f.Invoke(ctx, "/test.Service/Do", wrapperspb.Bytes([]byte(what)), out)
	return string(out.Value), err
}

func TestCall_comesBackWithItsAnswer(t *testing.T) {
	f := start(t)
	got, err := f.do(t.Context(), "hello")
	require.NoError(t, err)
	require.Equal(t, "hello", got)
}

func TestCall_carriesErrorsAsStatuses(t *testing.T) {
	f := start(t)
	_, err := f.do(t.Context(), "fail")
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, "nothing here")
	_, err = f.do(t.Context(), "panic")
	require.Equal(t, codes.Internal, status.Code(err))
	err = f.Invoke(t.Context(), "/test.Service/Other", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue))
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = f.do(t.Context(), "still there")
	require.NoError(t, err)
}

func TestCall_carriesItsDeadline(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := f.do(ctx, "deadline")
	require.NoError(t, err)
	require.Equal(t, "30s", got)
	got, err = f.do(context.Background(), "deadline")
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestCall_thatIsGivenUpIsCancelledAtTheServer(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := f.do(ctx, "wait"); done <- err }()
	<-f.began
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done))
	// The handler ends, so a graceful stop does too.
	f.l.Close()
	f.server.GracefulStop()

	_, err := f.do(ctx, "x")
	require.Equal(t, codes.Canceled, status.Code(err))
}

func TestCalls_ofManyGoroutinesShareAConnection(t *testing.T) {
	f := start(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			want := string(bytes.Repeat([]byte{byte('a' + i)}, 1+i*1000))
			for range 100 {
				got, err := f.do(t.Context(), want)
				if err != nil || got != want {
					t.Errorf("call %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	require.Len(t, f.server.conns, 1)
}

func TestMessage_overTheLimitIsRefusedWithoutHarm(t *testing.T) {
	f := start(t)
	err := f.Invoke(t.Context(), "/test.Service/Do", wrapperspb.Bytes(make([]byte, 2<<20)), new(wrapperspb.BytesValue))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = f.do(t.Context(), "x")
	require.NoError(t, err)
}

func TestGracefulStop_letsCallsFinishAndTakesNoMore(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	done := make(chan error)
	go func() { _, err := f.do(ctx, "wait"); done <- err }()
	<-f.began
	f.l.Close()
	f.server.GracefulStop()
	require.Zero(t, f.waiting.Load(), "it waited for the call")
	require.Equal(t, codes.DeadlineExceeded, status.Code(<-done))
	_, err := f.do(t.Context(), "x")
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestClient_reconnectsAfterTheServerCameBack(t *testing.T) {
	f := start(t)
	done := make(chan error)
	go func() { _, err := f.do(t.Context(), "wait"); done <- err }()
	<-f.began
	f.stop()
	require.Equal(t, codes.Unavailable, status.Code(<-done), "a call in progress learns of the loss")
	_, err := f.do(t.Context(), "x")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorIs(t, err, ErrCannotConnect)
	f.listen(t, f.addr)
	got, err := f.do(t.Context(), "again")
	require.NoError(t, err)
	require.Equal(t, "again", got)
}

func TestClose_endsCallsInProgress(t *testing.T) {
	f := start(t)
	done := make(chan error)
	go func() { _, err := f.do(t.Context(), "wait"); done <- err }()
	<-f.began
	require.NoError(t, f.Close())
	require.Equal(t, codes.Canceled, status.Code(<-done))
	_, err := f.do(t.Context(), "x")
	require.Equal(t, codes.Canceled, status.Code(err))
}

func TestOthers_areFoundNotToSpeakIt(t *testing.T) {
	for name, serve := range map[string]func(net.Listener) func(){
		"HTTP": func(l net.Listener) func() {
			s := &http.Server{Handler: http.NotFoundHandler()}
			go func() { _ = s.Serve(l) }()
			return func() { s.Close() }
		},
		"gRPC": func(l net.Listener) func() {
			s := grpc.NewServer()
			go func() { _ = s.Serve(l) }()
			return s.Stop
		},
		"one that hangs up": func(l net.Listener) func() {
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Close()
				}
			}()
			return func() { l.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer serve(l)()
			c := dialTo(l.Addr().String())
			defer c.Close()
			err = c.Invoke(t.Context(), "/test.Service/Do", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue))
			require.ErrorIs(t, err, ErrNotSpoken)
		})
	}
}

func TestServer_endsConnectionsThatSpeakNonsense(t *testing.T) {
	f := start(t)
	for name, bytes := range map[string]string{
		"no preface":         "GET / HTTP/1.1\r\n\r\n",
		"huge frame":         Preface + "\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00\x01",
		"short frame":        Preface + "\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01",
		"request of nothing": Preface + "\x00\x00\x00\x09\x01\x00\x00\x00\x00\x00\x00\x00\x01",
		"method too long":    Preface + "\x00\x00\x00\x0f\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\xffx",
	} {
		c, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		_, err = io.WriteString(c, bytes)
		require.NoError(t, err)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = io.Copy(io.Discard, c)
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%s: the connection is still open", name)
		c.Close()
	}
	_, err := f.do(t.Context(), "x")
	require.NoError(t, err)
}

func TestFrame_ofAnUnknownKindIsIgnored(t *testing.T) {
	f := start(t)
	_, err := f.do(t.Context(), "x")
	require.NoError(t, err)
	require.NoError(t, f.live.Load().send(99, 7, []byte("from the future")))
	_, err = f.do(t.Context(), "y")
	require.NoError(t, err)
}

func TestSilentServer_isGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() { // answers the preface and then reads without a word
			b := make([]byte, len(Preface))
			_, _ = io.ReadFull(there, b)
			_, _ = there.Write(b)
			_, _ = io.Copy(io.Discard, there)
		}()
		c := NewClient(ClientOptions{Codec: codec, MaxMessage: 1 << 20, Dial: func(context.Context) (net.Conn, error) { return here, nil }})
		begin := time.Now()
		err := c.Invoke(context.Background(), "/test.Service/Do", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.InDelta(t, deadAfter.Seconds(), time.Since(begin).Seconds(), pingAfter.Seconds())
		require.NoError(t, c.Close())
	})
}

func TestIdleConnection_isKeptAliveByPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		s := NewServer(ServerOptions{Codec: codec, MaxMessage: 1 << 20})
		s.RegisterService((&service{}).desc(), nil)
		l := &oneConn{c: make(chan net.Conn, 1)}
		l.c <- there
		go func() { _ = s.Serve(l) }()
		c := NewClient(ClientOptions{Codec: codec, MaxMessage: 1 << 20, Dial: func(context.Context) (net.Conn, error) { return here, nil }})
		for range 2 {
			require.NoError(t, c.Invoke(context.Background(), "/test.Service/Do", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)))
			time.Sleep(10 * deadAfter) // virtual time
		}
		require.NoError(t, c.Close())
		close(l.c)
		s.Stop()
	})
}

// oneConn is a listener with the connections of a channel.
type oneConn struct{ c chan net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l.c; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func FuzzParseRequest(f *testing.F) {
	f.Add(append(appendRequestHead(nil, time.Second, "/a/b"), "message"...))
	f.Add([]byte{0, 0, 0, 0, 9, 'x'})
	f.Fuzz(func(t *testing.T, body []byte) {
		timeout, method, message, err := parseRequest(body)
		if err != nil {
			return
		}
		again := append(appendRequestHead(nil, timeout, string(method)), message...)
		if timeout < 1<<31*time.Millisecond && !bytes.Equal(again, body) {
			t.Fatalf("%x came back as %x", body, again)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	s := NewServer(ServerOptions{Codec: codec, MaxMessage: 1 << 20})
	s.RegisterService((&service{}).desc(), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	c := dialTo(l.Addr().String())
	m, out := wrapperspb.Bytes(make([]byte, 256)), new(wrapperspb.BytesValue)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Invoke(context.Background(), "/test.Service/Do", m, out); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	l.Close()
	s.Stop()
}
