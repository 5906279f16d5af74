package raftrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// missesBeforeRedial is how many heartbeats in a row must time out before the
// connections are taken to be dead.
const missesBeforeRedial = 2

// peer is another member as this one reaches it.
type peer struct {
	t  *Transport
	id raft.ServerID

	mu      sync.Mutex
	address string
	control *grpc.ClientConn // heartbeats and votes
	data    *grpc.ClientConn // entries and snapshots
	misses  int
}

// peer returns the member id, which the group knows under address.
func (t *Transport) peer(id raft.ServerID, address raft.ServerAddress) (*peer, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, errClosed
	}
	p := t.peers[id]
	if p == nil {
		p = &peer{t: t, id: id}
		t.peers[id] = p
	}
	t.mu.Unlock()
	a := t.opts.Resolve(string(id))
	if a == "" {
		a = string(address)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.control != nil && p.address == a {
		return p, nil
	}
	p.dropLocked()
	if t.ctx.Err() != nil {
		return nil, errClosed
	}
	for _, lane := range []**grpc.ClientConn{&p.control, &p.data} {
		c, err := t.dial(a)
		if err != nil {
			p.dropLocked()
			return nil, fmt.Errorf("member %s at %q: %w", id, a, err)
		}
		*lane = c
	}
	p.address = a
	return p, nil
}

// dial makes a connection, which is set up when it is used first.
func (t *Transport) dial(address string) (*grpc.ClientConn, error) {
	opts := append([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			// A member that was restarted must be found again at once.
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	}, t.opts.DialOptions...)
	return grpc.NewClient("passthrough:///"+address, opts...)
}

func (p *peer) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked()
}

func (p *peer) dropLocked() {
	for _, lane := range []**grpc.ClientConn{&p.control, &p.data} {
		if *lane != nil {
			_ = (*lane).Close()
			*lane = nil
		}
	}
	p.misses = 0
}

// client returns the stub of one of the lanes; nil when the connections were dropped a
// moment ago.
func (p *peer) client(lane **grpc.ClientConn) (v1.RaftServiceClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *lane == nil {
		return nil, errDropped
	}
	return v1.NewRaftServiceClient(*lane), nil
}

var errDropped = errors.New("the connection to the member is being made anew")

// heard notes the outcome of a heartbeat.
func (p *peer) heard(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if status.Code(err) != codes.DeadlineExceeded {
		p.misses = 0
		return
	}
	if p.misses++; p.misses >= missesBeforeRedial {
		p.dropLocked()
	}
}

// control calls do with the lane for short messages.
func (t *Transport) control(id raft.ServerID, address raft.ServerAddress, timeout time.Duration, do func(context.Context, v1.RaftServiceClient) error) (*peer, error) {
	p, err := t.peer(id, address)
	if err != nil {
		return nil, err
	}
	c, err := p.client(&p.control)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return p, do(ctx, c)
}

// Heartbeat asks a member whether it takes this one for the master of that term, and
// notes the answer for Confirmed. It may be called beside Raft's own heartbeats.
func (t *Transport) Heartbeat(id string, address string, term uint64) error {
	_, err := t.heartbeat(raft.ServerID(id), raft.ServerAddress(address), term)
	return err
}

func (t *Transport) heartbeat(id raft.ServerID, address raft.ServerAddress, term uint64) (*v1.HeartbeatResponse, error) {
	if t.hangs() {
		return nil, errHangs
	}
	stamp := t.progress.begin()
	var resp *v1.HeartbeatResponse
	p, err := t.control(id, address, t.opts.HeartbeatTimeout, func(ctx context.Context, c v1.RaftServiceClient) (err error) {
		resp, err = c.Heartbeat(ctx, &v1.HeartbeatRequest{Sender: t.sender(id), Term: term})
		return err
	})
	if p != nil {
		p.heard(err)
	}
	if err != nil {
		return nil, err
	}
	t.progress.answer(id, term, stamp, 0, resp.GetSuccess() && resp.GetTerm() == term && !resp.GetNoVoice())
	return resp, nil
}

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, address raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if len(req.Entries) == 0 && req.PrevLogEntry == 0 && req.LeaderCommitIndex == 0 {
		r, err := t.heartbeat(id, address, req.Term)
		if err != nil {
			return err
		}
		*resp = raft.AppendEntriesResponse{RPCHeader: header(string(id)), Term: r.GetTerm(), LastLog: r.GetLastIndex(), Success: r.GetSuccess()}
		return nil
	}
	limit(req)
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.AppendTimeout)
	defer cancel()
	// Raft waits longer after each failure, up to ten seconds. A member that comes back must
	// not wait that long, so what fails because it cannot be reached is tried again here.
	for {
		if t.hangs() {
			return errHangs
		}
		err := t.appendOnce(ctx, id, address, req, resp)
		if err == nil || !unreachable(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(reachPause):
		case <-ctx.Done():
			return err
		}
	}
}

// reachPause is the pause between two tries to reach a member with entries.
const reachPause = 50 * time.Millisecond

// unreachable tells whether a call failed because there is no connection.
func unreachable(err error) bool {
	code := status.Code(err)
	return errors.Is(err, errDropped) || code == codes.Unavailable || code == codes.Canceled
}

// appendOnce sends a request with entries on a stream of its own.
func (t *Transport) appendOnce(ctx context.Context, id raft.ServerID, address raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := t.openEntries(ctx, id, address)
	if err != nil {
		return err
	}
	if err := t.sendEntries(stream, id, true, req); err != nil {
		return err
	}
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	t.appended(id, req, r, resp)
	return stream.CloseSend()
}

// openEntries opens a stream of entries to a member.
func (t *Transport) openEntries(ctx context.Context, id raft.ServerID, address raft.ServerAddress) (v1.RaftService_AppendEntriesClient, error) {
	c, err := t.data(id, address)
	if err != nil {
		return nil, err
	}
	return c.AppendEntries(ctx)
}

// data returns the stub of a member's lane for entries and snapshots.
func (t *Transport) data(id raft.ServerID, address raft.ServerAddress) (v1.RaftServiceClient, error) {
	p, err := t.peer(id, address)
	if err != nil {
		return nil, err
	}
	return p.client(&p.data)
}

// sendEntries sends one request; first says that it is the first one of the stream.
func (t *Transport) sendEntries(stream v1.RaftService_AppendEntriesClient, id raft.ServerID, first bool, req *raft.AppendEntriesRequest) error {
	err := split(req, func(msg *v1.AppendEntriesRequest) error {
		if first {
			msg.Sender, first = t.sender(id), false
		}
		return stream.Send(msg)
	})
	if err == nil {
		return nil
	}
	// A failed Send says only that the stream has ended; the reason is with the receiver.
	if _, rerr := stream.Recv(); rerr != nil {
		return rerr
	}
	return err
}

// appended notes the answer to a request with entries.
func (t *Transport) appended(id raft.ServerID, req *raft.AppendEntriesRequest, r *v1.AppendEntriesResponse, resp *raft.AppendEntriesResponse) {
	*resp = raft.AppendEntriesResponse{
		RPCHeader: header(string(id)), Term: r.GetTerm(), LastLog: r.GetLastIndex(),
		Success: r.GetSuccess(), NoRetryBackoff: r.GetNoRetryBackoff(),
	}
	match := req.PrevLogEntry
	if n := len(req.Entries); n > 0 {
		match = req.Entries[n-1].Index
	}
	// No stamp: a member without a voice answers here too.
	t.progress.answer(id, req.Term, 0, match, resp.Success && resp.Term == req.Term)
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, address raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	r, err := t.vote(id, address, &v1.RequestVoteRequest{
		Term: req.Term, LastIndex: req.LastLogIndex, LastTerm: req.LastLogTerm, HandOver: req.LeadershipTransfer,
	})
	if err == nil {
		*resp = raft.RequestVoteResponse{RPCHeader: header(string(id)), Term: r.GetTerm(), Granted: r.GetGranted()}
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, address raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	r, err := t.vote(id, address, &v1.RequestVoteRequest{
		Term: req.Term, LastIndex: req.LastLogIndex, LastTerm: req.LastLogTerm, PreVote: true,
	})
	if err == nil {
		*resp = raft.RequestPreVoteResponse{RPCHeader: header(string(id)), Term: r.GetTerm(), Granted: r.GetGranted()}
	}
	return err
}

func (t *Transport) vote(id raft.ServerID, address raft.ServerAddress, req *v1.RequestVoteRequest) (r *v1.RequestVoteResponse, err error) {
	if h := t.attached(); h == nil || !h.Voice() {
		return nil, errNoVoice
	}
	if t.hangs() {
		return nil, errHangs
	}
	_, err = t.control(id, address, t.opts.VoteTimeout, func(ctx context.Context, c v1.RaftServiceClient) (err error) {
		req.Sender = t.sender(id)
		r, err = c.RequestVote(ctx, req)
		return err
	})
	return r, err
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, address raft.ServerAddress, _ *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	_, err := t.control(id, address, t.opts.VoteTimeout, func(ctx context.Context, c v1.RaftServiceClient) error {
		_, err := c.TimeoutNow(ctx, &v1.TimeoutNowRequest{Sender: t.sender(id)})
		return err
	})
	resp.RPCHeader = header(string(id))
	return err
}
