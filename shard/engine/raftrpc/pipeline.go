package raftrpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// pipeline is a raft.AppendPipeline: many requests with entries under way to one member.
type pipeline struct {
	t      *Transport
	id     raft.ServerID
	stream v1.RaftService_AppendEntriesClient
	cancel context.CancelFunc
	first  bool

	under chan *future // sent, and not answered yet
	done  chan raft.AppendFuture
	ended chan struct{} // closed when no more answers come
	guard *time.Timer   // ends the stream when no answer comes for too long

	mu    sync.Mutex
	bytes int64
	room  chan struct{} // gets a token when bytes shrinks
}

// future is one request under way.
type future struct {
	req   *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	start time.Time
	size  int64
}

// Error implements raft.AppendFuture. Only answered requests are handed on.
func (f *future) Error() error                          { return nil }
func (f *future) Start() time.Time                      { return f.start }
func (f *future) Request() *raft.AppendEntriesRequest   { return f.req }
func (f *future) Response() *raft.AppendEntriesResponse { return f.resp }

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, address raft.ServerAddress) (raft.AppendPipeline, error) {
	ctx, cancel := context.WithCancel(t.ctx)
	stream, err := t.openEntries(ctx, id, address)
	if err != nil {
		cancel()
		return nil, err
	}
	l := &pipeline{
		t: t, id: id, stream: stream, cancel: cancel, first: true,
		under: make(chan *future, t.opts.MaxInFlight), done: make(chan raft.AppendFuture, t.opts.MaxInFlight),
		ended: make(chan struct{}), room: make(chan struct{}, 1),
	}
	l.guard = time.AfterFunc(time.Hour, cancel)
	l.guard.Stop()
	go l.receive()
	return l, nil
}

var errPipeline = errors.New("the stream of entries to the member has ended")

// AppendEntries implements raft.AppendPipeline. Raft calls it from one goroutine.
func (l *pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if l.t.hangs() {
		return nil, errHangs
	}
	f := &future{req: req, resp: resp, size: limit(req), start: time.Now()}
	for !l.admit(f.size) {
		select {
		case <-l.room:
		case <-l.ended:
			return nil, errPipeline
		}
	}
	select {
	case l.under <- f:
	case <-l.ended:
		return nil, errPipeline
	}
	first := l.first
	l.first = false
	err := split(req, func(msg *v1.AppendEntriesRequest) error {
		if first {
			msg.Sender, first = l.t.sender(l.id), false
		}
		return l.stream.Send(msg)
	})
	if err != nil {
		l.cancel()
		return nil, errPipeline
	}
	return f, nil
}

// admit counts a request as under way when there is room for it.
func (l *pipeline) admit(size int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes > 0 && l.bytes+size > l.t.opts.MaxInFlightBytes {
		return false
	}
	if l.bytes == 0 {
		l.guard.Reset(l.t.opts.AppendTimeout)
	}
	l.bytes += size + 1
	return true
}

// answered makes room again, and gives the next answer its time.
func (l *pipeline) answered(size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes -= size + 1; l.bytes > 0 {
		l.guard.Reset(l.t.opts.AppendTimeout)
	} else {
		l.guard.Stop()
	}
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// receive takes the answers. After an error nothing is handed on: Raft would take it for
// a sign of life. It notices with the next request.
func (l *pipeline) receive() {
	defer close(l.ended)
	defer l.cancel()
	for {
		r, err := l.stream.Recv()
		if err != nil {
			l.t.opts.Logger.Debug("the stream of entries to a member has ended", "member", l.id, "error", err)
			return
		}
		var f *future
		select {
		case f = <-l.under:
		default:
			l.t.opts.Logger.Error("a member answered a request that it was not sent", "member", l.id)
			return
		}
		l.answered(f.size)
		l.t.appended(l.id, f.req, r, f.resp)
		select {
		case l.done <- f:
		case <-l.stream.Context().Done():
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (l *pipeline) Consumer() <-chan raft.AppendFuture { return l.done }

// Close implements raft.AppendPipeline.
func (l *pipeline) Close() error {
	l.cancel()
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guard.Stop()
	return nil
}
