package raftrpc

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const (
	// chunkBytes is the size of a piece of a snapshot.
	chunkBytes = 256 << 10
	// installTimeout bounds how long a member may take to make its rows those of a
	// snapshot once it has all of it.
	installTimeout = 10 * time.Minute
)

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(id raft.ServerID, address raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	c, err := t.data(id, address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	guard := time.AfterFunc(t.opts.AppendTimeout, cancel)
	defer guard.Stop()
	stream, err := c.InstallSnapshot(ctx)
	if err != nil {
		return err
	}
	msg := &v1.InstallSnapshotRequest{
		Sender: t.sender(id), Term: req.Term, LastIndex: req.LastLogIndex, LastTerm: req.LastLogTerm,
		Configuration: req.Configuration, ConfigurationIndex: req.ConfigurationIndex,
		Size: uint64(req.Size), Version: uint32(req.SnapshotVersion),
	}
	for {
		err := stream.Send(msg)
		if err == io.EOF {
			break // the reason is with the answer
		}
		if err != nil {
			return err
		}
		guard.Reset(t.opts.AppendTimeout)
		// A sent message may still be in use by an interceptor, so each has a buffer of its own.
		chunk := make([]byte, chunkBytes)
		n, err := io.ReadFull(data, chunk)
		if n == 0 && err == io.EOF {
			break
		}
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		msg = &v1.InstallSnapshotRequest{Chunk: chunk[:n]}
	}
	guard.Reset(installTimeout)
	r, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	*resp = raft.InstallSnapshotResponse{RPCHeader: header(string(id)), Term: r.GetTerm(), Success: r.GetSuccess()}
	if r.GetSuccess() {
		t.sent.Add(1)
		t.progress.answer(id, req.Term, 0, req.LastLogIndex, r.GetTerm() == req.Term)
	}
	return nil
}

// InstallSnapshot hands a snapshot to Raft as it comes.
func (s *server) InstallSnapshot(stream v1.RaftService_InstallSnapshotServer) error {
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
	if first.GetSize() > math.MaxInt64 || first.GetVersion() > raft.SnapshotVersionMax || first.GetLastIndex() == 0 {
		return reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "a snapshot has a version or a size that this version of Switchyard does not know")
	}
	if err := checkConfiguration(first.GetConfiguration()); err != nil {
		return reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "the members of the group in a snapshot cannot be read: %v", err)
	}
	if applied, term := h.Applied(); first.GetLastIndex() <= applied {
		// The master lost track of what is here, such as when the answer to the snapshot got lost.
		return stream.SendAndClose(&v1.InstallSnapshotResponse{Term: term, Success: true})
	}
	done, err := h.Installing(stream.Context())
	if err != nil {
		return reason.New(codes.Unavailable, reason.NotReady, nil, "a snapshot cannot be taken now: %v", err)
	}
	defer done()
	from := first.GetSender().GetFrom()
	cmd := &raft.InstallSnapshotRequest{
		RPCHeader: header(from), SnapshotVersion: raft.SnapshotVersion(first.GetVersion()), Term: first.GetTerm(), Leader: []byte(from),
		LastLogIndex: first.GetLastIndex(), LastLogTerm: first.GetLastTerm(),
		Configuration: first.GetConfiguration(), ConfigurationIndex: first.GetConfigurationIndex(), Size: int64(first.GetSize()),
	}
	a, err := s.ask(stream.Context(), cmd, &chunks{stream: stream, left: first.GetChunk()})
	if err != nil {
		return err
	}
	r, ok := a.(*raft.InstallSnapshotResponse)
	if !ok {
		return errAnswer
	}
	if r.Success {
		s.t.received.Add(1)
	}
	return stream.SendAndClose(&v1.InstallSnapshotResponse{Term: r.Term, Success: r.Success})
}

// chunks reads the rest of a stream. When the call has ended, reading fails at once.
type chunks struct {
	stream v1.RaftService_InstallSnapshotServer
	left   []byte
}

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.left) == 0 {
		msg, err := c.stream.Recv()
		if err != nil {
			return 0, err
		}
		c.left = msg.GetChunk()
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// checkConfiguration finds out whether Raft, which panics when it cannot, will be able to
// read the members of a group.
func checkConfiguration(b []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "%v", p)
		}
	}()
	raft.DecodeConfiguration(b)
	return nil
}
