package raftrpc

import (
	"context"
	"io"
	"sync"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// server answers the calls of other members.
type server struct {
	v1.UnimplementedRaftServiceServer
	t *Transport
}

// check refuses a message that is not for this member.
func (s *server) check(m *v1.RaftSender) (Host, error) {
	h := s.t.attached()
	if h == nil || s.t.ctx.Err() != nil {
		return nil, reason.New(codes.Unavailable, reason.NotReady, nil, "member %s is not running", s.t.opts.ID)
	}
	refuse := func(format string, args ...any) error {
		return reason.New(codes.FailedPrecondition, reason.InvalidRequest, nil, format, args...)
	}
	switch {
	case m.GetFrom() == "" || len(m.GetFrom()) > maxName:
		return nil, refuse("a message between members must say who sends it")
	case m.GetReplicaSet() != s.t.opts.ReplicaSet:
		return nil, refuse("this is a member of replica set %q, and the message is for %q", s.t.opts.ReplicaSet, m.GetReplicaSet())
	case m.GetTo() != s.t.opts.ID:
		return nil, refuse("this is member %q, and the message is for %q; is an address in use by another member?", s.t.opts.ID, m.GetTo())
	case m.GetFrom() == s.t.opts.ID:
		return nil, refuse("another node calls itself %q too; each member needs a name of its own", s.t.opts.ID)
	}
	if theirs, mine := m.GetClusterId(), h.ClusterID(); theirs != "" && mine != "" && theirs != mine {
		return nil, refuse("this member belongs to cluster %s, and the message comes from cluster %s", mine, theirs)
	}
	return h, nil
}

// adopt takes over the cluster id of the master.
func adopt(h Host, m *v1.RaftSender) error {
	if m.GetClusterId() == "" {
		return nil
	}
	if err := h.Adopt(m.GetClusterId()); err != nil {
		return reason.New(codes.FailedPrecondition, reason.InvalidRequest, nil, "%v", err)
	}
	return nil
}

// ask hands a message to Raft and waits for the answer.
func (s *server) ask(ctx context.Context, command any, r io.Reader) (any, error) {
	ch, err := s.t.hand(ctx, command, r)
	if err == nil {
		select {
		case a := <-ch:
			if a.Error != nil {
				return nil, status.Error(codes.Unknown, a.Error.Error())
			}
			return a.Response, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.t.ctx.Done():
			err = errClosed
		}
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, status.Error(codes.Unavailable, err.Error())
}

func (s *server) Heartbeat(ctx context.Context, req *v1.HeartbeatRequest) (*v1.HeartbeatResponse, error) {
	h, err := s.check(req.GetSender())
	if err != nil {
		return nil, err
	}
	from := req.GetSender().GetFrom()
	cmd := &raft.AppendEntriesRequest{RPCHeader: header(from), Term: req.GetTerm()}
	var answer any
	if beat := s.t.beat.Load(); beat != nil && h.Keepalive(req.GetTerm()) {
		// Beside Raft's own goroutine, which may be at the disk.
		ch := make(chan raft.RPCResponse, 1)
		(*beat)(raft.RPC{Command: cmd, RespChan: ch})
		a := <-ch
		if a.Error != nil {
			return nil, status.Error(codes.Unknown, a.Error.Error())
		}
		answer = a.Response
	} else if answer, err = s.ask(ctx, cmd, nil); err != nil {
		return nil, err
	}
	r, ok := answer.(*raft.AppendEntriesResponse)
	if !ok {
		return nil, errAnswer
	}
	return &v1.HeartbeatResponse{Term: r.Term, LastIndex: r.LastLog, Success: r.Success, NoVoice: !h.Voice()}, nil
}

var errAnswer = status.Error(codes.Internal, "Raft gave an answer of another kind")

func (s *server) RequestVote(ctx context.Context, req *v1.RequestVoteRequest) (*v1.RequestVoteResponse, error) {
	h, err := s.check(req.GetSender())
	if err != nil {
		return nil, err
	}
	if !h.Voice() {
		return nil, reason.New(codes.FailedPrecondition, reason.NotReady, nil, "%v", errNoVoice)
	}
	from := req.GetSender().GetFrom()
	if req.GetPreVote() {
		a, err := s.ask(ctx, &raft.RequestPreVoteRequest{
			RPCHeader: header(from), Term: req.GetTerm(), LastLogIndex: req.GetLastIndex(), LastLogTerm: req.GetLastTerm(),
		}, nil)
		if err != nil {
			return nil, err
		}
		r, ok := a.(*raft.RequestPreVoteResponse)
		if !ok {
			return nil, errAnswer
		}
		return &v1.RequestVoteResponse{Term: r.Term, Granted: r.Granted}, nil
	}
	a, err := s.ask(ctx, &raft.RequestVoteRequest{
		RPCHeader: header(from), Term: req.GetTerm(),
		LastLogIndex: req.GetLastIndex(), LastLogTerm: req.GetLastTerm(), LeadershipTransfer: req.GetHandOver(),
	}, nil)
	if err != nil {
		return nil, err
	}
	r, ok := a.(*raft.RequestVoteResponse)
	if !ok {
		return nil, errAnswer
	}
	return &v1.RequestVoteResponse{Term: r.Term, Granted: r.Granted}, nil
}

func (s *server) TimeoutNow(ctx context.Context, req *v1.TimeoutNowRequest) (*v1.TimeoutNowResponse, error) {
	h, err := s.check(req.GetSender())
	if err != nil {
		return nil, err
	}
	if !h.Voice() {
		return nil, reason.New(codes.FailedPrecondition, reason.NotReady, nil, "%v", errNoVoice)
	}
	if _, err := s.ask(ctx, &raft.TimeoutNowRequest{RPCHeader: header(req.GetSender().GetFrom())}, nil); err != nil {
		return nil, err
	}
	return &v1.TimeoutNowResponse{}, nil
}

// AppendEntries hands requests to Raft as they come, and sends its answers in order.
func (s *server) AppendEntries(stream v1.RaftService_AppendEntriesServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h, err := s.check(first.GetSender())
	if err != nil {
		return err
	}
	if err := adopt(h, first.GetSender()); err != nil {
		return err
	}
	from := first.GetSender().GetFrom()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	answers := make(chan (<-chan raft.RPCResponse), s.t.opts.MaxInFlight)
	var sending sync.WaitGroup
	sending.Go(func() {
		for ch := range answers {
			if err := s.sendAnswer(ctx, stream, ch); err != nil {
				cancel(err)
				for range answers { // lets the receiver below go on to its end
				}
				return
			}
		}
	})
	err = s.receiveEntries(ctx, stream, h, from, first, answers)
	close(answers)
	sending.Wait()
	if cause := context.Cause(ctx); cause != nil && stream.Context().Err() == nil {
		return cause
	}
	return err
}

func (s *server) receiveEntries(ctx context.Context, stream v1.RaftService_AppendEntriesServer, h Host, from string, msg *v1.AppendEntriesRequest, answers chan<- (<-chan raft.RPCResponse)) error {
	j := joiner{max: s.t.opts.MaxRequestBytes}
	for {
		req, err := j.add(from, msg)
		if err != nil {
			return reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "%v", err)
		}
		if req != nil {
			h.Heard(req.Term, req.LeaderCommitIndex)
			trim(h, req)
			ch, err := s.t.hand(ctx, req, nil)
			if err != nil {
				return status.Error(codes.Unavailable, err.Error())
			}
			select {
			case answers <- ch:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if msg, err = stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// trim leaves out of a request what is so old that Raft cannot look it up here any more, and
// would refuse. It is applied, so it is what every master has.
func trim(h Host, req *raft.AppendEntriesRequest) {
	index, term := h.Floor(req.PrevLogEntry)
	if index <= req.PrevLogEntry {
		return
	}
	n := 0
	for n < len(req.Entries) && req.Entries[n].Index <= index {
		n++
	}
	if n == 0 && len(req.Entries) > 0 {
		return // entries that do not follow the one before them; Raft refuses them
	}
	req.Entries = req.Entries[n:]
	req.PrevLogEntry, req.PrevLogTerm = index, term
}

func (s *server) sendAnswer(ctx context.Context, stream v1.RaftService_AppendEntriesServer, ch <-chan raft.RPCResponse) error {
	var a raft.RPCResponse
	select {
	case a = <-ch:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.t.ctx.Done():
		return status.Error(codes.Unavailable, errClosed.Error())
	}
	if a.Error != nil {
		return status.Error(codes.Unknown, a.Error.Error())
	}
	r, ok := a.Response.(*raft.AppendEntriesResponse)
	if !ok {
		return errAnswer
	}
	return stream.Send(&v1.AppendEntriesResponse{Term: r.Term, LastIndex: r.LastLog, Success: r.Success, NoRetryBackoff: r.NoRetryBackoff})
}
