package router

import (
	"context"
	"errors"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// request is a call or a view, on its way through as many tries as it takes.
type request struct {
	bucket shard.BucketID
	mode   Mode
	fn     string
	args   []byte
	// again: a write may be repeated though it is unknown whether it took effect.
	again bool
	// view is called with the rows when it is a view.
	view func(*storage.View) error
}

// Call runs a function on a bucket and waits for its result. Within ctx it finds the replica
// set and its master, waits out a move of the bucket and follows it. Reads are repeated when a
// member is lost. A write whose outcome is unknown is not: see CallIdempotent. When ctx ends
// before the result of a write is there, args must stay as they are.
//
// The error is the function's, or a *shard.Error that says why the call could not be done
// until ctx ended.
func (r *Router) Call(ctx context.Context, b shard.BucketID, mode Mode, fn string, args []byte) (result []byte, err error) {
	return r.call(ctx, &request{bucket: b, mode: mode, fn: fn, args: args})
}

// CallIdempotent is Call of a write function that may take effect more than once without
// harm: it is repeated too when the outcome of a try is unknown.
func (r *Router) CallIdempotent(ctx context.Context, b shard.BucketID, fn string, args []byte) (result []byte, err error) {
	return r.call(ctx, &request{bucket: b, mode: CallRW, fn: fn, args: args, again: true})
}

func (r *Router) call(ctx context.Context, q *request) (result []byte, err error) {
	if err := r.checkCall(q.bucket, q.mode); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
		defer cancel()
	}
	return r.do(ctx, q)
}

func (r *Router) checkCall(b shard.BucketID, mode Mode) error {
	if !mode.valid() {
		return &shard.Error{Code: shard.InvalidArguments, Bucket: b, Reason: mode.String() + " is not a mode"}
	}
	return r.check(b)
}

// View calls fn with a view of a bucket's rows at this moment: for readers that read much.
// The mode says whose rows; CallRW and CallMR are the master's. When the replica set is in
// this process there is no call, else the view is held there while fn runs, and each Get is a
// round trip: see storage.View.GetMany. fn runs again when the bucket moves or the member is
// lost meanwhile. A view of a member in another process should end within seconds.
func (r *Router) View(ctx context.Context, b shard.BucketID, mode Mode, fn func(*storage.View) error) error {
	if err := r.checkCall(b, mode); err != nil {
		return err
	}
	// A view in this process waits for nobody but the disk and needs no deadline.
	if s := r.routes[b].Load(); s == nil || s.whole == nil {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
			defer cancel()
		}
	}
	_, err := r.do(ctx, &request{bucket: b, mode: mode, view: fn})
	return err
}

// CallRWAsync runs a write function and calls done with its outcome. It does not wait,
// and done never runs inside it: it runs on a goroutine of the engine or the connection and
// must be quick. Commands of one goroutine are applied in the order of its calls, as long as
// they go to one master over one connection; when that is lost, later ones may be applied
// though earlier ones were not, and a caller to whom this matters makes each write check
// that the one before was done. args belongs to the router until done ran. Unlike Call it
// does not repeat anything: a bucket on the move, or a lost master, is an error for the
// caller to handle; the router learns from it for the next call.
func (r *Router) CallRWAsync(b shard.BucketID, fn string, args []byte, done func(result []byte, err error)) {
	err := r.check(b)
	var s *replicaSet
	if err == nil {
		if s = r.routes[b].Load(); s == nil {
			if s = r.look(b); s == nil {
				err = &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, Reason: "its place is not known yet"}
			}
		}
	}
	if s != nil && s.whole != nil {
		s.whole.WriteAsync(b, fn, args, done)
		return
	}
	var m *member
	if s != nil {
		if m = s.master.Load(); m == nil {
			err = s.noMaster(b)
		}
	}
	if err != nil {
		go done(nil, err)
		return
	}
	m.link.writeAsync(b, fn, args, func(result []byte, err error) {
		if err != nil {
			err = r.learn(b, s, m, err)
		}
		done(result, err)
	})
}

// learn takes from a write's error what the next call should know, and returns it in the words
// of the store.
func (r *Router) learn(b shard.BucketID, s *replicaSet, m *member, err error) error {
	if gone, sent := unreachable(err); gone {
		if sent {
			return s.unknown(b, m, err)
		}
		return s.unreachableMaster(b, m, err)
	}
	var e *shard.Error
	if errors.As(err, &e) {
		switch e.Code {
		case shard.NonMaster:
			s.hint(m, e.Master)
		case shard.WrongBucket:
			r.moved(b, s, e.Destination)
		}
	}
	return err
}

// unknown is the error when a write was sent and its result did not come.
func (s *replicaSet) unknown(b shard.BucketID, m *member, err error) error {
	return &shard.Error{Code: shard.OutcomeUnknown, Bucket: b, ReplicaSet: s.name, Master: m.ID,
		Reason: "read what it would have changed, or call it as idempotent", Err: err}
}
