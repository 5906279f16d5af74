package grpcretry

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/switchyard-dev/switchyard/retry"
)

// backup is a second attempt beside the first.
type backup struct {
	u     *unary
	ctx   context.Context
	stop  context.CancelFunc // ends the first attempt
	first *retry.Attempt

	done  chan struct{} // closed when the fields below are final
	sent  bool
	err   error
	reply proto.Message
	adopt func() // hands headers and trailers to the caller
}

// hedged makes an attempt that may get a backup.
func (u *unary) hedged(ctx context.Context, a *retry.Attempt, now time.Duration) error {
	h := u.m.hedger
	delay := h.Begin(now)
	reply, ok := u.reply.(proto.Message)
	if !ok || delay == retry.NoHedge {
		err := u.invoke(numbered(ctx, a), u.m.name, u.req, u.reply, u.cc, u.opts...)
		u.record(now, err)
		return err
	}
	firstCtx, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	backupCtx, stopBackup := context.WithCancel(ctx)
	defer stopBackup()
	b := &backup{u: u, ctx: backupCtx, stop: stopFirst, first: a, done: make(chan struct{})}
	like := reply.ProtoReflect().Type() // not in the backup: the first attempt writes to the message
	timer := time.AfterFunc(delay, func() { b.run(like) })
	err := u.invoke(numbered(firstCtx, a), u.m.name, u.req, u.reply, u.cc, u.opts...)
	if timer.Stop() {
		u.record(now, err) // it ended before a backup was due, and that is final
		return err
	}
	if err == nil {
		u.record(now, nil)
		return nil // the backup ends by itself and touches nothing of the caller's
	}
	<-b.done // ends with ctx at the latest
	if !b.sent || b.err != nil {
		u.record(now, err)
		return err
	}
	// The first attempt has returned, so nobody else writes the reply any more.
	u.record(now, nil)
	u.m.retrier.Observer().Attempt(retry.Ignored, u.c.clock()-now)
	u.m.retrier.Observer().Count(retry.CountHedgesWon)
	proto.Reset(reply)
	proto.Merge(reply, b.reply)
	b.adopt()
	return nil
}

// record takes a latency into account if it says how long answers take: that of
// answers, of attempts that ran out of time, and of those given up for a better one.
func (u *unary) record(began time.Duration, err error) {
	switch status.Code(err) {
	case codes.OK, codes.DeadlineExceeded, codes.Canceled:
		now := u.c.clock()
		u.m.hedger.Record(now, now-began)
	}
}

func (b *backup) run(like protoreflect.MessageType) {
	defer close(b.done)
	u := b.u
	began := u.c.clock()
	observer := u.m.retrier.Observer()
	if b.ctx.Err() != nil {
		return // the first attempt ended in the same moment
	}
	if !u.m.hedger.Send(began) {
		observer.Count(retry.CountHedgeBudgetExhausted)
		return
	}
	b.sent = true
	observer.Count(retry.CountHedges)
	a := &retry.Attempt{Number: b.first.Number, Avoid: b.first.AvoidToo(b.first.Avoid)}
	// A message of its own: the first attempt may write to the caller's until it has
	// returned.
	b.reply = like.New().Interface()
	opts, adopt := private(u.opts)
	b.adopt = adopt
	b.err = u.invoke(numbered(b.ctx, a), u.m.name, u.req, b.reply, u.cc, opts...)
	now := u.c.clock()
	if b.err == nil {
		b.stop()
		u.m.hedger.Record(now, now-began)
		return
	}
	class, _ := u.m.classify(b.ctx, b.err, nil, a, false)
	observer.Attempt(class, now-began)
}

// private replaces call options that write to the caller's variables by ones that
// write to variables of their own; adopt copies them over. Options that run the
// caller's code at the end are left out: they run for the first attempt.
func private(opts []grpc.CallOption) (out []grpc.CallOption, adopt func()) {
	var copies []func()
	out = make([]grpc.CallOption, 0, len(opts))
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			var md metadata.MD
			copies = append(copies, func() { *o.HeaderAddr = md })
			out = append(out, grpc.Header(&md))
		case grpc.TrailerCallOption:
			var md metadata.MD
			copies = append(copies, func() { *o.TrailerAddr = md })
			out = append(out, grpc.Trailer(&md))
		case grpc.PeerCallOption:
			var p peer.Peer
			copies = append(copies, func() { *o.PeerAddr = p })
			out = append(out, grpc.Peer(&p))
		case grpc.OnFinishCallOption:
		default:
			out = append(out, o)
		}
	}
	return out, func() {
		for _, f := range copies {
			f()
		}
	}
}
