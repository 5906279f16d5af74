package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// Limits and times of moves.
const (
	// chunkBytes is about the size of a message with rows.
	chunkBytes = 512 << 10
	// window is how many messages with rows are under way at once, and chunksAhead how many are
	// read before they are needed.
	window      = 2
	chunksAhead = 2
	// A round is small enough for the pause when it has at most so many keys. After
	// maxRounds the pause comes anyway, unless a round is still larger than hopelessKeys.
	smallRound   = 64
	maxRounds    = 30
	hopelessKeys = 20_000
	// messageTime bounds a message with all its repetitions; while a bucket is copied a
	// transfer goes on so long without an answer.
	messageTime = 10 * time.Second
	retryPause  = 20 * time.Millisecond
	// defaultPauseTime is how long the writes of a bucket may wait before its move is
	// called off.
	defaultPauseTime = 1500 * time.Millisecond
)

// Link reaches the masters of other replica sets.
type Link interface {
	// Transfer brings a message to the master of replica set req.To. An error with NON_MASTER or
	// UNREACHABLE_MASTER may pass; the message is sent again.
	Transfer(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error)
	// ReplicaSets returns the names of all replica sets that are known, this one included or not.
	ReplicaSets() []string
}

// send is a list of buckets on its way.
type send struct {
	s      *Storage
	to     string
	moves  []*move // those that have not failed
	failed map[shard.BucketID]error
	// pace is how fast rows are copied, nil once hurry was called.
	pace   *pacer
	hurry  func()
	copied *heldView // what was sent of the keys that no round has sent since
}

// move is one bucket of a list.
type move struct {
	bucket  shard.BucketID
	row     shard.Row // after EventSend
	capture *capture
	given   shard.Progress
	started time.Time
	taken   shard.Reply // the destination's last word
	phase   string
	// trouble is why its last message had to be sent again, or empty.
	trouble string
	// sent is what the destination has of the keys that rounds have sent, and sentBytes
	// about what that takes.
	sent      map[string]sentRow
	sentBytes int
}

// sentRow is a row as it was sent last: what it adds to the sum, if it is there.
type sentRow struct {
	hash  uint64
	there bool
}

// SendBuckets moves buckets to another replica set and returns when each has arrived or
// failed, with the errors of those that failed: they are where they were. err says that
// nothing was begun. The buckets are read and written meanwhile; see package shard. When
// ctx ends, moves that are not SENT are called off.
func (s *Storage) SendBuckets(ctx context.Context, buckets []shard.BucketID, destination string) (failed map[shard.BucketID]error, err error) {
	if err := s.checkSend(buckets, destination); err != nil {
		return nil, err
	}
	end, err := s.refs.beginMove()
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.moving.track(cancel)()
	sd := &send{s: s, to: destination, failed: map[shard.BucketID]error{}}
	if err := sd.run(ctx, buckets); err != nil {
		return nil, err
	}
	return sd.failed, nil
}

func (s *Storage) checkSend(buckets []shard.BucketID, destination string) error {
	bad := func(code shard.Code, format string, args ...any) error {
		return &shard.Error{Code: code, ReplicaSet: s.opts.ReplicaSet, Destination: destination, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.opts.Link == nil:
		return bad(shard.NoSuchReplicaSet, "this storage has no way to other replica sets")
	case len(buckets) == 0 || len(buckets) > maxList:
		return bad(shard.InvalidArguments, "%d buckets to send; 1 to %d can be", len(buckets), maxList)
	case destination == s.opts.ReplicaSet:
		return bad(shard.MoveToSelf, "")
	case !slices.Contains(s.opts.Link.ReplicaSets(), destination):
		return bad(shard.NoSuchReplicaSet, "no replica set of that name is known here")
	case s.Locked():
		return bad(shard.ReplicaSetIsLocked, "")
	}
	seen := make(map[shard.BucketID]bool, len(buckets))
	for _, b := range buckets {
		if err := s.checkBucket(b); err != nil {
			return err
		}
		if seen[b] {
			return bad(shard.InvalidArguments, "bucket %d is named twice", b)
		}
		seen[b] = true
	}
	return nil
}

// run moves the buckets as far as each of them gets. An error says that nothing was begun.
func (sd *send) run(ctx context.Context, buckets []shard.BucketID) error {
	s := sd.s
	captures := s.captures.want(buckets)
	defer s.captures.end(captures)
	st := step{kind: shard.EventSend, peer: sd.to}
	for _, b := range buckets {
		if captures[b] == nil {
			sd.failed[b] = &shard.Error{Code: shard.TransferIsInProgress, Bucket: b, ReplicaSet: s.opts.ReplicaSet}
			continue
		}
		st.items = append(st.items, stepItem{bucket: b})
	}
	out, err := s.propose(ctx, st)
	if err != nil {
		s.wake()
		return err
	}
	for i, o := range out {
		b := st.items[i].bucket
		if o.err != nil {
			sd.failed[b] = o.err
			continue
		}
		m := &move{bucket: b, row: o.row, capture: captures[b], started: time.Now(), phase: "copy", sent: map[string]sentRow{}}
		sd.moves = append(sd.moves, m)
	}
	all := slices.Clone(sd.moves) // those that fail are taken out of sd.moves
	s.moving.add(all)
	defer s.moving.remove(all)
	defer func() {
		sd.copied.close()
	}()
	pace := &s.moving.pace
	end := pace.begin(func(ctx context.Context) error { _, err := s.system(ctx, fnNothing, nil); return err })
	defer end()
	sd.pace, sd.hurry = pace, func() {
		sd.pace = nil
		end()
	}
	for _, stage := range []func(context.Context) error{sd.prepare, sd.copy, sd.rounds, sd.finish} {
		if len(sd.moves) == 0 {
			return nil
		}
		if err := stage(ctx); err != nil {
			sd.abort(sd.moves, err)
			sd.moves = nil
		}
	}
	return nil
}

// message makes a message about moves.
func (sd *send) message(kind v1.TransferKind, moves []*move) *v1.TransferRequest {
	req := sd.s.message(kind, sd.to)
	req.Items = make([]*v1.TransferRequest_Item, len(moves))
	for i, m := range moves {
		req.Items[i] = &v1.TransferRequest_Item{Bucket: uint32(m.bucket), Transfer: m.row.Transfer, ReadOnly: m.row.State == shard.ReadOnly}
	}
	return req
}

func (s *Storage) message(kind v1.TransferKind, to string) *v1.TransferRequest {
	return &v1.TransferRequest{Kind: kind, From: s.opts.ReplicaSet, To: to, ClusterId: s.ClusterID(), BucketCount: s.opts.BucketCount}
}

// deliver brings a message to its receiver, again while that may help and patience is not over.
// failed, if not nil, is told of every try that failed.
func (s *Storage) deliver(ctx context.Context, req *v1.TransferRequest, patience time.Duration, failed func(error)) (*v1.TransferResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, messageTime)
	defer cancel()
	first := time.Now()
	for {
		// One attempt may not eat all the patience there is without another.
		try, cancelTry := context.WithTimeout(ctx, max(patience-time.Since(first), retryPause))
		resp, err := s.opts.Link.Transfer(try, req)
		cancelTry()
		if err == nil && len(resp.GetReplies()) != len(req.GetItems()) {
			return nil, &shard.Error{Code: shard.BucketReceiveData, Destination: req.GetTo(), Reason: "it does not answer what it was asked"}
		}
		if err == nil || !passing(err) && !errors.Is(err, context.DeadlineExceeded) || time.Since(first)+retryPause >= patience {
			return resp, err
		}
		if failed != nil {
			failed(err)
		}
		t := time.NewTimer(retryPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

// passing says whether an error of a message may be gone when it is sent again.
func passing(err error) bool {
	for _, c := range []shard.Code{shard.NonMaster, shard.MissingMaster, shard.UnreachableMaster, shard.UnreachableReplicaSet, shard.MasterNotSynced, shard.Overloaded, shard.OutcomeUnknown,
		// A member that stops: soon another one is master.
		shard.StorageIsDisabled, shard.StoreClosed} {
		if errors.Is(err, c) {
			return true
		}
	}
	return false
}

// exchange sends a message and notes the replies; moves whose reply is bad are aborted.
func (sd *send) exchange(ctx context.Context, req *v1.TransferRequest, moves []*move, patience time.Duration) error {
	resp, err := sd.s.deliver(ctx, req, patience, sd.trouble(moves))
	return sd.note(resp, err, moves)
}

// trouble notes errors of messages about moves, for those who look at them.
func (sd *send) trouble(moves []*move) func(error) {
	return func(err error) {
		sd.s.moving.mu.Lock()
		defer sd.s.moving.mu.Unlock()
		for _, m := range moves {
			m.trouble = err.Error()
		}
	}
}

// note notes the replies to a message.
func (sd *send) note(resp *v1.TransferResponse, err error, moves []*move) error {
	if err != nil {
		return err
	}
	sd.s.moving.mu.Lock()
	for _, m := range moves {
		m.trouble = ""
	}
	sd.s.moving.mu.Unlock()
	for i, m := range moves {
		r := resp.GetReplies()[i]
		if r.GetError() != nil {
			sd.abort([]*move{m}, replyError(m.bucket, sd.to, r))
			continue
		}
		m.taken = reply(r)
		if m.taken.Standing != shard.ReplyReceiving {
			sd.abort([]*move{m}, &shard.Error{Code: shard.TransferIsOver, Bucket: m.bucket, Destination: sd.to,
				Reason: fmt.Sprintf("transfer %d: the destination says %v", m.row.Transfer, m.taken.Standing)})
		}
	}
	sd.drop()
	return nil
}

// drop takes those that failed out of the list.
func (sd *send) drop() {
	sd.moves = slices.DeleteFunc(sd.moves, func(m *move) bool { return sd.failed[m.bucket] != nil })
}

// prepare makes the destination RECEIVING.
func (sd *send) prepare(ctx context.Context) error {
	return sd.exchange(ctx, sd.message(v1.TransferKind_TRANSFER_KIND_PREPARE, sd.moves), slices.Clone(sd.moves), messageTime)
}

// batch is a message with rows, and the moves of its items.
type batch struct {
	req   *v1.TransferRequest
	moves []*move
	size  int
}

// stream reads rows by produce, which hands chunks to its argument, and sends them meanwhile.
func (sd *send) stream(ctx context.Context, patience time.Duration, produce func(ctx context.Context, give func(m *move, c *chunkMaker) error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches := make(chan *batch, chunksAhead)
	var produced error
	var group sync.WaitGroup
	group.Go(func() {
		defer close(batches)
		var b *batch
		flush := func() error {
			if b == nil {
				return nil
			}
			select {
			case batches <- b:
				b = nil
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		produced = produce(ctx, func(m *move, c *chunkMaker) error {
			if c.empty() {
				return nil
			}
			// A bucket stands once in a message.
			if b != nil && (b.size+len(c.b) > chunkBytes || slices.Contains(b.moves, m)) {
				if err := flush(); err != nil {
					return err
				}
			}
			if b == nil {
				b = &batch{req: sd.s.message(v1.TransferKind_TRANSFER_KIND_CHUNK, sd.to)}
			}
			b.req.Items = append(b.req.Items, &v1.TransferRequest_Item{
				Bucket: uint32(m.bucket), Transfer: m.row.Transfer, Seq: m.given.Chunks, Rows: c.b})
			b.moves = append(b.moves, m)
			b.size += len(c.b)
			m.given.Chunks++
			return nil
		})
		if produced == nil {
			produced = flush()
		}
	})
	// Several messages are under way at once; their answers are looked at in their order.
	var flights []*flight
	var err error
	land := func() {
		f := flights[0]
		flights = flights[1:]
		<-f.done
		if err != nil {
			return
		}
		if err = sd.note(f.resp, f.err, f.b.moves); err != nil {
			cancel()
			return
		}
		if sd.pace != nil {
			sd.pace.arrived(time.Now(), f.took)
		}
	}
	for b := range batches {
		if err != nil {
			continue // empties the channel
		}
		if len(flights) >= window {
			land()
		}
		if err != nil {
			continue
		}
		if sd.pace != nil {
			sd.pace.wait(ctx, b.size, sd.s.opts.CopyRate)
		}
		flights = append(flights, sd.launch(ctx, b, patience))
	}
	for len(flights) > 0 {
		land()
	}
	group.Wait()
	if err == nil {
		err = produced
	}
	return err
}

// flight is a batch under way.
type flight struct {
	b    *batch
	done chan struct{} // closed when the rest is there
	resp *v1.TransferResponse
	err  error
	took time.Duration
}

func (sd *send) launch(ctx context.Context, b *batch, patience time.Duration) *flight {
	f := &flight{b: b, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		began := time.Now()
		f.resp, f.err = sd.s.deliver(ctx, b.req, patience, sd.trouble(b.moves))
		f.took = time.Since(began)
	}()
	return f
}

// copy sends all rows as they are at one moment.
func (sd *send) copy(ctx context.Context) error {
	view, err := sd.s.hold(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	sd.copied = view
	moves := slices.Clone(sd.moves)
	return sd.stream(ctx, messageTime, func(ctx context.Context, give func(*move, *chunkMaker) error) error {
		for _, m := range moves {
			c := newChunk(&m.given, true, 0)
			var stop error
			x := readBucket(view, m.bucket)
			err := x.scan("", "", func(key, value []byte) bool {
				if len(c.b)+len(key)+len(value) > chunkBytes && !c.empty() {
					if stop = give(m, &c); stop != nil {
						return false
					}
					c = newChunk(&m.given, true, chunkBytes+4096)
				}
				c.there(key, value)
				return true
			})
			if err = errors.Join(err, stop); err != nil {
				return err
			}
			if err := give(m, &c); err != nil {
				return err
			}
		}
		return nil
	})
}

// finish seals the buckets, sends the last writes and hands over.
func (sd *send) finish(ctx context.Context) error {
	s := sd.s
	// Writes wait from here on: nothing may be slower than it must.
	sd.hurry()
	pause, cancel := context.WithTimeout(ctx, s.opts.PauseTime)
	defer cancel()
	sd.phase("pause")
	if err := sd.log(pause, shard.EventSeal); err != nil {
		return err
	}
	changes, _, err := sd.changes()
	if err != nil {
		return err
	}
	if err := sd.delta(pause, changes, s.opts.PauseTime); err != nil {
		return err
	}
	for _, m := range slices.Clone(sd.moves) {
		if _, err := s.table.row(m.bucket).Confirm(m.bucket, m.row.Transfer, m.given, m.taken); err != nil {
			sd.abort([]*move{m}, err)
		}
	}
	if sd.drop(); len(sd.moves) == 0 {
		return nil
	}
	if err := sd.log(pause, shard.EventSent); err != nil {
		// It may be SENT or not: the chores find out.
		return err
	}
	sd.phase("commit")
	s.wake()
	return sd.commit(ctx)
}

func (sd *send) phase(p string) {
	sd.s.moving.mu.Lock()
	defer sd.s.moving.mu.Unlock()
	for _, m := range sd.moves {
		m.phase = p
	}
}

// log proposes an event for all moves; those for which it fails are aborted.
func (sd *send) log(ctx context.Context, kind shard.EventKind) error {
	moves := slices.Clone(sd.moves)
	st := step{kind: kind}
	for _, m := range moves {
		st.items = append(st.items, stepItem{bucket: m.bucket, transfer: m.row.Transfer})
	}
	out, err := sd.s.propose(ctx, st)
	if err != nil {
		return err
	}
	for i, o := range out {
		if o.err != nil {
			sd.abort([]*move{moves[i]}, o.err)
		}
	}
	sd.drop()
	return nil
}

// commit tells the destination that the buckets are its own, and waits until it knows. After
// this long the chores go on with it.
func (sd *send) commit(ctx context.Context) error {
	resp, err := sd.s.deliver(ctx, sd.message(v1.TransferKind_TRANSFER_KIND_COMMIT, sd.moves), messageTime, sd.trouble(slices.Clone(sd.moves)))
	for i, m := range sd.moves {
		switch {
		case err != nil:
			sd.failed[m.bucket] = fmt.Errorf("the bucket has left %s, and %s does not say yet that it has it: %w", sd.s.opts.ReplicaSet, sd.to, err)
		case resp.GetReplies()[i].GetError() != nil:
			sd.failed[m.bucket] = replyError(m.bucket, sd.to, resp.GetReplies()[i])
		default:
			sd.s.chores.took(m.bucket, m.row.Transfer)
		}
	}
	sd.moves = nil
	sd.s.wake()
	return nil
}

// abort calls moves off. The reason is that of the first call.
func (sd *send) abort(moves []*move, why error) {
	st := step{kind: shard.EventAbort}
	for _, m := range moves {
		if sd.failed[m.bucket] != nil {
			continue
		}
		sd.failed[m.bucket] = why
		st.items = append(st.items, stepItem{bucket: m.bucket, transfer: m.row.Transfer})
	}
	if len(st.items) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), messageTime)
	defer cancel()
	if _, err := sd.s.propose(ctx, st); err != nil {
		sd.s.opts.Logger.Warn("a move could not be called off yet", "replica_set", sd.s.opts.ReplicaSet, "destination", sd.to, "buckets", len(st.items), "err", err)
	}
	// The destination is told by the chores, or asks.
	sd.s.wake()
}
