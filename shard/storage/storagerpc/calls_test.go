package storagerpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	write = v1.StorageCallKind_STORAGE_CALL_KIND_WRITE
	reads = v1.StorageCallKind_STORAGE_CALL_KIND_READ
)

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testTime); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in %v not: %s", testTime, what)
		}
	}
}

// functions returns a registry with functions for tests: "echo" returns its arguments, as
// "look" does as a read; "fail" returns an error of the store, "reason" one with a reason,
// "plain" any error; "hang" and "hold" wait until the channel is closed, the one as a read, the
// other as a write.
func functions(hang <-chan struct{}, hanging *atomic.Int64) *storage.Registry {
	reg := storage.NewRegistry()
	reg.Register("echo", func(_ *storage.Tx, args []byte) ([]byte, error) { return bytes.Clone(args), nil })
	reg.RegisterRead("look", func(_ *storage.View, args []byte) ([]byte, error) { return bytes.Clone(args), nil })
	reg.Register("fail", func(*storage.Tx, []byte) ([]byte, error) { return nil, theError })
	reg.Register("reason", func(*storage.Tx, []byte) ([]byte, error) {
		return nil, reason.New(codes.NotFound, reason.QueueNotFound, map[string]string{"queue": "q"}, "no queue q")
	})
	reg.Register("plain", func(*storage.Tx, []byte) ([]byte, error) { return nil, errors.New("it broke") })
	wait := func() {
		hanging.Add(1)
		<-hang
		hanging.Add(-1)
	}
	reg.RegisterRead("hang", func(*storage.View, []byte) ([]byte, error) { wait(); return nil, nil })
	reg.Register("hold", func(*storage.Tx, []byte) ([]byte, error) { wait(); return nil, nil })
	reg.Register("large", func(*storage.Tx, []byte) ([]byte, error) { return make([]byte, MaxArgs+1), nil })
	return reg
}

var theError = &shard.Error{
	Code: shard.WrongBucket, Bucket: 7, ReplicaSet: "a", Destination: "b", Master: "a2", Reason: "because",
	Err: &shard.Error{Code: shard.StoreFailed, Err: errors.New("the disk")},
}

func newFunctions(t testing.TB, server ServerOptions, client ClientOptions) (s *Server, c *Client, release func(), hanging *atomic.Int64) {
	t.Helper()
	hang := make(chan struct{})
	hanging = new(atomic.Int64)
	server.Storage = newStorage(t, "", functions(hang, hanging))
	s, address := serve(t, server)
	var once sync.Once
	release = func() { once.Do(func() { close(hang) }) }
	t.Cleanup(release)
	return s, dial(t, address, client), release, hanging
}

func TestCalls_carryArgumentsAndResults(t *testing.T) {
	ctx := testContext(t)
	_, c, _, _ := newFunctions(t, ServerOptions{}, ClientOptions{})
	for _, size := range []int{0, 1, 1000, batchBytes, 5 << 20, MaxArgs} {
		args := bytes.Repeat([]byte{byte(size + 1)}, size)
		for _, f := range []struct {
			kind v1.StorageCallKind
			fn   string
		}{{write, "echo"}, {reads, "look"}} {
			if size == MaxArgs && f.kind == write {
				continue // once is enough of what takes so long
			}
			result, err := c.Call(ctx, f.kind, 3, f.fn, args)
			if err != nil || !bytes.Equal(result, args) {
				t.Fatalf("%s of %d bytes: %d bytes came back, %v", f.fn, size, len(result), err)
			}
		}
	}
	if _, err := c.Call(ctx, write, 3, "echo", make([]byte, MaxArgs+1)); !errors.Is(err, shard.ArgumentsTooLarge) {
		t.Errorf("too large arguments: %v", err)
	}
	if _, err := c.Call(ctx, write, 3, "large", nil); !errors.Is(err, shard.FunctionFailed) {
		t.Errorf("a too large result: %v", err)
	}
	if _, err := c.Call(ctx, v1.StorageCallKind_STORAGE_CALL_KIND_UNSPECIFIED, 3, "echo", nil); !errors.Is(err, shard.InvalidArguments) {
		t.Errorf("no kind: %v", err)
	}
}

func TestCalls_manyCallersShareAStream(t *testing.T) {
	ctx := testContext(t)
	_, c, _, _ := newFunctions(t, ServerOptions{}, ClientOptions{})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for k := range 40 {
				want := fmt.Sprintf("%d of %d", k, i)
				kind, fn := write, "echo"
				if k%2 == 1 {
					kind, fn = reads, "look"
				}
				if got, err := c.Call(ctx, kind, shard.BucketID(i%buckets+1), fn, []byte(want)); err != nil || string(got) != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

func TestCalls_errorsCrossTheWireUnchanged(t *testing.T) {
	ctx := testContext(t)
	_, c, _, _ := newFunctions(t, ServerOptions{}, ClientOptions{})
	_, err := c.Call(ctx, write, 3, "fail", nil)
	var e *shard.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	if e.Code != theError.Code || e.Bucket != 7 || e.ReplicaSet != "a" || e.Destination != "b" || e.Master != "a2" || e.Reason != "because" ||
		!errors.Is(err, shard.StoreFailed) || err.Error() != theError.Error() {
		t.Errorf("got %+v, want %+v", e, theError)
	}
	_, err = c.Call(ctx, write, 3, "reason", nil)
	if r := reason.From(err); r.Reason() != reason.QueueNotFound || r.Code() != codes.NotFound || r.Meta()["queue"] != "q" {
		t.Errorf("an error with a reason: %v", r)
	}
	var remote *RemoteError
	if _, err = c.Call(ctx, write, 3, "plain", nil); !errors.As(err, &remote) || err.Error() != "it broke" {
		t.Errorf("any error: %v", err)
	}
	if _, err = c.Call(ctx, write, 3, "nothing", nil); !errors.Is(err, shard.FunctionNotFound) {
		t.Errorf("no function: %v", err)
	}
	if _, err = c.Call(ctx, reads, 99, "look", nil); !errors.Is(err, shard.WrongBucket) {
		t.Errorf("no bucket: %v", err)
	}
}

func TestEncodeError_keepsWhatIsKnown(t *testing.T) {
	for _, err := range []error{
		theError,
		fmt.Errorf("around: %w", theError),
		context.DeadlineExceeded,
		fmt.Errorf("around: %w", context.Canceled),
		errors.New("plain"),
		&shard.Error{Code: shard.StoreFailed, Err: context.DeadlineExceeded},
	} {
		got := DecodeError(EncodeError(err))
		if got.Error() != err.Error() {
			t.Errorf("%q became %q", err, got)
		}
		for _, target := range []error{shard.WrongBucket, shard.StoreFailed, context.DeadlineExceeded, context.Canceled} {
			if errors.Is(got, target) != errors.Is(err, target) {
				t.Errorf("%q: errors.Is(%v) is %v", err, target, errors.Is(got, target))
			}
		}
		// As a status of a unary call.
		if back := fromStatus(statusOf(err)); errors.Is(err, shard.WrongBucket) != errors.Is(back, shard.WrongBucket) {
			t.Errorf("%q became %q as a status", err, back)
		}
	}
	if DecodeError(EncodeError(nil)) != nil || statusOf(nil) != nil || fromStatus(nil) != nil {
		t.Error("no error became one")
	}
	// However deep, it is bounded.
	deep := errors.New(strings.Repeat("x", 1<<20))
	for range 100 {
		deep = &shard.Error{Code: shard.StoreFailed, Err: deep}
	}
	if got := DecodeError(EncodeError(deep)); !errors.Is(got, shard.StoreFailed) || len(got.Error()) > 1<<16 {
		t.Errorf("a deep error has %d bytes", len(got.Error()))
	}
}

func TestCalls_slowReadsDoNotHoldUpOthers(t *testing.T) {
	ctx := testContext(t)
	_, c, release, hanging := newFunctions(t, ServerOptions{Readers: 4}, ClientOptions{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := c.Call(ctx, reads, 1, "hang", nil); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "three reads hang", func() bool { return hanging.Load() == 3 })
	for range 50 {
		if _, err := c.Call(ctx, reads, 1, "look", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(ctx, write, 1, "echo", nil); err != nil {
			t.Fatal(err)
		}
	}
	release()
	wg.Wait()
}

func TestCalls_serverStopsReadingAtItsLimit(t *testing.T) {
	ctx := testContext(t)
	s, c, release, hanging := newFunctions(t, ServerOptions{MaxCalls: 8, Readers: 8}, ClientOptions{MaxCalls: 100})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Call(ctx, reads, 1, "hang", nil); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "as many as may hang", func() bool { return hanging.Load() == 8 })
	eventually(t, "all are on their way", func() bool {
		x, err := c.stream()
		if err != nil {
			t.Fatal(err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.calls) == 100
	})
	// The client takes no more than it may, and says so at once.
	eventually(t, "the client is full", func() bool {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := c.Call(short, reads, 1, "hang", nil)
		return errors.Is(err, shard.Overloaded)
	})
	outcome := make(chan error, 1)
	c.WriteAsync(1, "echo", nil, func(_ []byte, err error) { outcome <- err })
	if err := <-outcome; !errors.Is(err, shard.Overloaded) {
		t.Errorf("an asynchronous write: %v", err)
	}
	if n := hanging.Load(); n != 8 {
		t.Errorf("%d calls run, the limit is 8", n)
	}
	_ = s
	release()
	wg.Wait()
}

func TestCalls_aCallerThatLeavesFreesTheServer(t *testing.T) {
	_, c, release, hanging := newFunctions(t, ServerOptions{Readers: 1}, ClientOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	outcome := make(chan error, 2)
	for range 2 { // one runs, one waits for the reader
		go func() {
			_, err := c.Call(ctx, reads, 1, "hang", nil)
			outcome <- err
		}()
	}
	eventually(t, "one hangs", func() bool { return hanging.Load() == 1 })
	cancel()
	for range 2 {
		if err := <-outcome; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	// A write goes on without its caller, and the caller knows that.
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := c.Call(ctx, write, 1, "hold", nil)
		outcome <- err
	}()
	eventually(t, "the write hangs", func() bool { return hanging.Load() == 2 })
	cancel()
	var conn *ConnError
	if err := <-outcome; !errors.Is(err, context.Canceled) || !errors.As(err, &conn) || !conn.Sent {
		t.Errorf("a write: %v", err)
	}
	release()
	if _, err := c.Call(testContext(t), reads, 1, "look", nil); err != nil {
		t.Error(err)
	}
}

func TestDrain_answersWhatItHasAndRefusesTheRest(t *testing.T) {
	ctx := testContext(t)
	s, c, release, hanging := newFunctions(t, ServerOptions{}, ClientOptions{})
	taken := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, write, 1, "hold", nil)
		taken <- err
	}()
	eventually(t, "a call runs", func() bool { return hanging.Load() == 1 })
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	<-s.drained
	// A call that comes now was not done, and its caller can be sure of it.
	refused := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, write, 1, "echo", nil)
		refused <- err
	}()
	release()
	if err := <-taken; err != nil {
		t.Errorf("a call that had begun: %v", err)
	}
	if err := <-refused; !errors.Is(err, shard.StorageIsDisabled) {
		t.Errorf("a call that came late: %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestClient_nobodyThere(t *testing.T) {
	s, address := serve(t, ServerOptions{Storage: newStorage(t, "", storage.NewRegistry())})
	c := dial(t, address, ClientOptions{})
	if _, err := c.Call(testContext(t), write, 1, storage.KVPut, storage.KVPutArgs(1, []byte("k"), nil)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	var conn *ConnError
	_, err := c.Call(testContext(t), write, 1, storage.KVPut, storage.KVPutArgs(1, []byte("k"), nil))
	// The client may not have noticed yet, and have sent it: then it cannot know more.
	if !errors.Is(err, shard.StorageIsDisabled) && !errors.As(err, &conn) {
		t.Errorf("a closed server: %v", err)
	}
	nobody := dial(t, "127.0.0.1:1", ClientOptions{})
	if _, err := nobody.Call(testContext(t), write, 1, storage.KVPut, nil); !errors.As(err, &conn) || conn.Sent {
		t.Errorf("no server: %v", err)
	}
	if err := nobody.Watch(testContext(t), func(*v1.DiscoverResponse) error { return nil }); !errors.As(err, &conn) {
		t.Errorf("Watch: %v", err)
	}
	if err := nobody.View(testContext(t), reads, 1, func(*storage.View) error { return nil }); !errors.As(err, &conn) {
		t.Errorf("View: %v", err)
	}
	if err := nobody.Close(); err != nil {
		t.Error(err)
	}
	if _, err := nobody.Call(testContext(t), write, 1, storage.KVPut, nil); !errors.As(err, &conn) || conn.Sent {
		t.Errorf("after Close: %v", err)
	}
}
