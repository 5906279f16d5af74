package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// defaultMaxReceiving is how many buckets are RECEIVING at a time.
const defaultMaxReceiving = 4096

// Receive answers a message of another replica set about transfers. It is answered by a
// master only. An error is that of the whole message; each item has a reply otherwise.
// It may be called from any goroutine, and a message may come twice.
func (s *Storage) Receive(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	if err := s.checkMessage(req); err != nil {
		return nil, err
	}
	var out []stepOutcome
	var err error
	switch req.GetKind() {
	case v1.TransferKind_TRANSFER_KIND_PREPARE:
		out, err = s.receivePrepare(ctx, req)
	case v1.TransferKind_TRANSFER_KIND_CHUNK:
		out, err = s.receiveChunks(ctx, req)
	case v1.TransferKind_TRANSFER_KIND_COMMIT:
		out, err = s.proposeItems(ctx, shard.EventActivate, req)
	case v1.TransferKind_TRANSFER_KIND_DROP:
		out, err = s.proposeItems(ctx, shard.EventDrop, req)
	case v1.TransferKind_TRANSFER_KIND_ASK:
		return s.receiveAsk(ctx, req)
	default:
		err = &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("there is no message of kind %d", req.GetKind())}
	}
	if err != nil {
		return nil, err
	}
	resp := &v1.TransferResponse{Replies: make([]*v1.TransferResponse_Reply, len(out))}
	for i, o := range out {
		it := req.GetItems()[i]
		if o.err != nil && !errors.Is(o.err, shard.TransferIsOver) {
			resp.Replies[i] = errorReply(o.err)
			continue
		}
		row := o.row
		if o.err != nil {
			row = s.BucketRow(shard.BucketID(it.GetBucket())) // its standing says why it is over
		}
		r := row.Reply(it.GetTransfer())
		resp.Replies[i] = &v1.TransferResponse_Reply{Standing: uint32(r.Standing), Transfer: r.Transfer,
			Chunks: r.Taken.Chunks, Rows: r.Taken.Rows, Sum: r.Taken.Sum}
	}
	return resp, nil
}

func (s *Storage) checkMessage(req *v1.TransferRequest) error {
	bad := func(code shard.Code, format string, args ...any) error {
		return &shard.Error{Code: code, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case req.GetTo() != s.opts.ReplicaSet:
		return bad(shard.NoSuchReplicaSet, "the message is for replica set %q", req.GetTo())
	case req.GetFrom() == "" || len(req.GetFrom()) > maxNameLength:
		return bad(shard.InvalidArguments, "the message does not say where it is from")
	case req.GetFrom() == s.opts.ReplicaSet:
		return bad(shard.MoveToSelf, "the message is from this replica set")
	case req.GetBucketCount() != s.opts.BucketCount:
		return bad(shard.InvalidConfig, "the message is from a cluster with bucket_count %d, here it is %d", req.GetBucketCount(), s.opts.BucketCount)
	case req.GetClusterId() != "" && s.ClusterID() != "" && req.GetClusterId() != s.ClusterID():
		return bad(shard.InvalidConfig, "the message is from cluster %s, this is %s", req.GetClusterId(), s.ClusterID())
	case len(req.GetItems()) > maxList:
		return bad(shard.InvalidArguments, "the message is about %d buckets, %d are the most", len(req.GetItems()), maxList)
	}
	seen := make(map[uint32]bool, len(req.GetItems()))
	for _, it := range req.GetItems() {
		if err := s.checkBucket(shard.BucketID(it.GetBucket())); err != nil {
			return err
		}
		if seen[it.GetBucket()] {
			return bad(shard.InvalidArguments, "the message names bucket %d twice", it.GetBucket())
		}
		seen[it.GetBucket()] = true
	}
	if st := s.Status().State; st != engine.Master {
		return bad(shard.NonMaster, "this member is %v", st)
	}
	return nil
}

func (s *Storage) proposeItems(ctx context.Context, kind shard.EventKind, req *v1.TransferRequest) ([]stepOutcome, error) {
	st := step{kind: kind, peer: req.GetFrom(), items: make([]stepItem, len(req.GetItems()))}
	for i, it := range req.GetItems() {
		st.items[i] = stepItem{shard.BucketID(it.GetBucket()), it.GetTransfer(), it.GetReadOnly()}
	}
	out, err := s.propose(ctx, st)
	if err == nil {
		s.chores.heard(st.items)
	}
	return out, err
}

func (s *Storage) receivePrepare(ctx context.Context, req *v1.TransferRequest) ([]stepOutcome, error) {
	if s.Locked() {
		return nil, &shard.Error{Code: shard.ReplicaSetIsLocked, ReplicaSet: s.opts.ReplicaSet}
	}
	if s.opts.Link != nil && !slices.Contains(s.opts.Link.ReplicaSets(), req.GetFrom()) && !slices.Contains(s.KnownReplicaSets(), req.GetFrom()) {
		return nil, &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("replica set %q is not known here", req.GetFrom())}
	}
	if n := s.BucketCounts()[shard.Receiving] + len(req.GetItems()); n > s.opts.MaxReceiving {
		return nil, &shard.Error{Code: shard.TooManyReceiving, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("%d would be on their way, %d may be", n, s.opts.MaxReceiving)}
	}
	// References hold back moves to here too: a call over all buckets must meet each once.
	end, err := s.refs.beginMove()
	if err != nil {
		return nil, err
	}
	defer end()
	return s.proposeItems(ctx, shard.EventReceive, req)
}

// receiveChunks logs the chunks of many buckets at once.
func (s *Storage) receiveChunks(ctx context.Context, req *v1.TransferRequest) ([]stepOutcome, error) {
	items := make([]stepItem, len(req.GetItems()))
	out := make([]stepOutcome, len(items))
	errs := make([]error, len(items))
	var group sync.WaitGroup
	for i, it := range req.GetItems() {
		b, transfer, seq := shard.BucketID(it.GetBucket()), it.GetTransfer(), it.GetSeq()
		items[i] = stepItem{bucket: b, transfer: transfer}
		args := chunkArgs(b, transfer, seq, it.GetRows())
		err := s.chores.arrivals.enter(ctx, b, transfer, seq, func() shard.Row { return s.table.row(b) }, func() {
			group.Add(1)
			s.eng.Propose(engine.Command{Function: fnChunk, Args: args}, func(result []byte, err error) {
				defer group.Done()
				if err == nil {
					var one []stepOutcome
					if one, err = s.decodeOutcomes(items[i:i+1], result); err == nil {
						out[i] = one[0]
					}
				}
				if errs[i] = err; err != nil {
					s.chores.arrivals.failed(b, transfer, seq)
				}
			})
		})
		if err != nil {
			return nil, err
		}
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.chores.heard(items)
	for i, err := range errs {
		var e *shard.Error
		switch {
		case err == nil:
		case errors.Is(err, shard.BucketReceiveData) && s.missesChunk(req.GetItems()[i]):
			return nil, early(items[i].bucket, items[i].transfer, req.GetItems()[i].GetSeq())
		case errors.As(err, &e) && (e.Code == shard.TransferIsOver || e.Code == shard.BucketReceiveData || e.Code == shard.WrongBucket || e.Code == shard.InvalidArguments):
			out[i].err = err
		default:
			return nil, err
		}
	}
	return out, nil
}

// missesChunk says whether a chunk was refused because one before it is not in the log.
func (s *Storage) missesChunk(it *v1.TransferRequest_Item) bool {
	row := s.table.row(shard.BucketID(it.GetBucket()))
	return row.State == shard.Receiving && row.Transfer == it.GetTransfer() && row.Taken.Chunks < it.GetSeq()
}

// receiveAsk says what became of transfers.
func (s *Storage) receiveAsk(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	if err := s.barrier(ctx); err != nil {
		return nil, err
	}
	resp := &v1.TransferResponse{Replies: make([]*v1.TransferResponse_Reply, len(req.GetItems()))}
	for i, it := range req.GetItems() {
		row := s.table.row(shard.BucketID(it.GetBucket()))
		v := row.Verdict(it.GetTransfer())
		resp.Replies[i] = &v1.TransferResponse_Reply{Verdict: uint32(v), Transfer: row.Transfer}
	}
	return resp, nil
}

// barrier returns when this member is known to be master and has applied everything.
func (s *Storage) barrier(ctx context.Context) error {
	if b, ok := s.eng.(interface{ ReadBarrier(context.Context) error }); ok {
		return b.ReadBarrier(ctx)
	}
	_, err := s.system(ctx, fnNothing, nil)
	return err
}

func errorReply(err error) *v1.TransferResponse_Reply {
	var e *shard.Error
	if !errors.As(err, &e) {
		e = &shard.Error{Code: shard.StoreFailed, Reason: err.Error()}
	}
	return &v1.TransferResponse_Reply{Error: &v1.StorageError{Code: int32(e.Code), Bucket: uint32(e.Bucket), ReplicaSet: e.ReplicaSet, Destination: e.Destination, Master: e.Master, Reason: e.Reason}}
}

func replyError(b shard.BucketID, from string, r *v1.TransferResponse_Reply) error {
	e := r.GetError()
	out := &shard.Error{Code: shard.Code(e.GetCode()), Bucket: b, ReplicaSet: e.GetReplicaSet(), Destination: e.GetDestination(), Master: e.GetMaster(), Reason: e.GetReason()}
	if out.ReplicaSet == "" {
		out.ReplicaSet = from
	}
	return out
}

func reply(r *v1.TransferResponse_Reply) shard.Reply {
	return shard.Reply{Standing: shard.Standing(r.GetStanding()), Transfer: r.GetTransfer(),
		Taken: shard.Progress{Chunks: r.GetChunks(), Rows: r.GetRows(), Sum: r.GetSum()}}
}
