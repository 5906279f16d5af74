package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/shard"
)

// completeSweeps is after how many times that every replica set said it has not a bucket the
// router believes it. During a move there are moments between two answers.
const completeSweeps = 3

// followerPauses is how much longer than the longest pause those wait who do not lead.
const followerPauses = 16

// next is what to do after a try that failed.
type next int

const (
	giveUp  next = iota
	atOnce       // try again: something was learned
	waitFor      // news of the bucket or of its replica set, or a pause
)

// do tries until the outcome is not one that passes.
func (r *Router) do(ctx context.Context, q *request) ([]byte, error) {
	b := q.bucket
	t := try{seq: r.seqs[b].Load(), set: r.routes[b].Load(), write: q.mode == CallRW && q.view == nil}
	if t.set != nil {
		if st := t.set.whole; st != nil {
			// The way that most calls take: no network, and nothing to choose.
			switch {
			case q.view != nil:
				t.err = st.View(ctx, b, q.view)
			case q.mode == CallRW:
				t.result, t.err = st.Write(ctx, b, q.fn, q.args)
			default:
				t.result, t.err = st.Read(ctx, b, q.fn, q.args)
			}
			t.member = t.set.master.Load()
		} else {
			r.once(ctx, &t, q)
		}
		if t.err == nil {
			return t.result, nil
		}
	}
	return r.insist(ctx, t, q)
}

// try is one try and what it was based on.
type try struct {
	seq    uint32 // of the news of the bucket, before it
	set    *replicaSet
	setSeq uint64
	member *member // that was asked last; nil when nobody was
	result []byte
	err    error
	write  bool
	cause  error // why the try before could not be
	sweeps int   // that were complete and did not find the bucket
	place  place
}

// insist goes on after a first try that failed, or could not be made.
func (r *Router) insist(ctx context.Context, t try, q *request) ([]byte, error) {
	b := q.bucket
	start := time.Now()
	pause := r.opts.RetryPause
	hasty := false // the last try came at once after another
	defer r.waits.leave(&t.place, b)
	for n := 1; ; n++ {
		var what next
		if t.set == nil {
			what = r.locate(ctx, &t, b)
		} else {
			what = r.judge(ctx, &t, q)
		}
		if ctx.Err() != nil {
			return nil, r.late(ctx, &t, start)
		}
		if what == giveUp || n >= r.opts.MaxTries {
			return nil, t.err
		}
		// Not twice without a pause: two who each say that the other has it would be asked
		// as fast as they answer.
		if hasty = what == atOnce && !hasty; !hasty {
			r.wait(ctx, &t, b, pause)
			if ctx.Err() != nil {
				return nil, r.late(ctx, &t, start)
			}
			pause = min(2*pause, maxPauses*r.opts.RetryPause)
		}
		t.seq, t.set, t.member = r.seqs[b].Load(), r.routes[b].Load(), nil
		if t.set == nil {
			continue
		}
		t.cause = t.err
		r.once(ctx, &t, q)
		if t.err == nil {
			if t.place.q != nil {
				r.waits.ring(b) // others need not wait any longer
			}
			return t.result, nil
		}
	}
}

// wait waits for news since the try, or for a pause. Of those who wait for one bucket one asks
// often, the others rarely.
func (r *Router) wait(ctx context.Context, t *try, b shard.BucketID, pause time.Duration) {
	news := r.waits.enter(&t.place, b)
	if !t.place.leads {
		pause = followerPauses * maxPauses * r.opts.RetryPause
	}
	var setNews <-chan struct{}
	if t.set != nil {
		setNews = t.set.news.wait()
	}
	if r.seqs[b].Load() != t.seq || t.set != nil && t.set.seq.Load() != t.setSeq {
		return
	}
	timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-news:
	case <-setNews:
	case <-ctx.Done():
	}
}

// once makes one try at a replica set, which for a read may be one at each member.
func (r *Router) once(ctx context.Context, t *try, q *request) {
	s := t.set
	t.setSeq = s.seq.Load()
	if q.mode.masterFirst() {
		r.askMaster(ctx, t, q)
		if q.mode != CallRO || t.err == nil || ctx.Err() != nil || !incapable(t.err) {
			return
		}
		switch byMaster := t.err; {
		case errors.Is(byMaster, shard.WrongBucket), errors.Is(byMaster, shard.TransferIsInProgress), errors.Is(byMaster, shard.Overloaded):
			return // other members know no better
		case r.askReplicas(ctx, t, q):
		default:
			t.err = byMaster
		}
		return
	}
	if r.askReplicas(ctx, t, q) || q.mode == CallBRO && t.member != nil {
		return
	}
	r.askMaster(ctx, t, q)
}

// askMaster asks the master, if there is one.
func (r *Router) askMaster(ctx context.Context, t *try, q *request) {
	m := t.set.master.Load()
	t.member = m
	if m == nil {
		t.err = t.set.noMaster(q.bucket)
		return
	}
	// One that is known to be lost is not asked: there are others, or there will be news.
	if up, why := m.isUp(); !up && why != nil && !errors.Is(why, shard.InvalidConfig) {
		t.err = t.set.unreachableMaster(q.bucket, m, why)
		return
	}
	t.ask(ctx, m, q, false)
}

// askReplicas asks members as the mode wants it, until one has an answer. It reports whether the
// matter is settled: there is an answer, or an error that no other member would spare.
func (r *Router) askReplicas(ctx context.Context, t *try, q *request) bool {
	var tried []*balance.Node
	for {
		p, ok := t.set.pick(q.mode, tried)
		if !ok {
			return false
		}
		m := memberOf(p.Node())
		t.ask(ctx, m, q, true)
		p.Done(verdict(ctx, t.err))
		if t.err == nil || ctx.Err() != nil || !incapable(t.err) {
			return true
		}
		tried = append(m.appendNodes(tried), p.Node())
	}
}

// ask asks one member.
func (t *try) ask(ctx context.Context, m *member, q *request, stale bool) {
	t.member = m
	switch {
	case q.view != nil:
		t.err = m.link.view(ctx, stale, q.bucket, q.view)
	case q.mode == CallRW:
		t.result, t.err = m.link.write(ctx, q.bucket, q.fn, q.args)
	default:
		t.result, t.err = m.link.read(ctx, stale, q.bucket, q.fn, q.args)
	}
}

// incapable reports whether an error is about the member, so that another may do better.
func incapable(err error) bool {
	if gone, _ := unreachable(err); gone {
		return true
	}
	var e *shard.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case shard.WrongBucket, shard.NonMaster, shard.MissingMaster, shard.TransferIsInProgress, shard.UnreachableReplicaSet,
		shard.UnreachableMaster, shard.OutOfSync, shard.StorageIsDisabled, shard.MasterNotSynced, shard.Overloaded,
		shard.StoreFailed, shard.StoreClosed, shard.OutcomeUnknown:
		return true
	}
	return false
}

// judge says what to do after a try, and puts its error into the words of the store.
func (r *Router) judge(ctx context.Context, t *try, q *request) next {
	s, m := t.set, t.member
	repeatable := q.mode != CallRW || q.again
	if gone, sent := unreachable(t.err); gone {
		if sent && !repeatable {
			t.err = s.unknown(q.bucket, m, t.err)
			return giveUp
		}
		t.err = s.unreachableMaster(q.bucket, m, t.err)
		if now := s.master.Load(); now != nil && now != m {
			return atOnce
		}
		return waitFor
	}
	var e *shard.Error
	if ctx.Err() != nil || !errors.As(t.err, &e) {
		return giveUp
	}
	switch e.Code {
	case shard.WrongBucket:
		r.moved(q.bucket, s, e.Destination)
		return atOnce
	case shard.NonMaster:
		found := m != nil && s.hint(m, e.Master)
		t.err = &shard.Error{Code: shard.MissingMaster, Bucket: q.bucket, ReplicaSet: s.name, Reason: "its members know of no master, or another member each", Err: e}
		if found {
			return atOnce
		}
		return waitFor
	case shard.TransferIsInProgress, shard.BucketIsLocked, shard.StorageIsReferenced, shard.MissingMaster, shard.MasterNotSynced,
		shard.UnreachableMaster, shard.UnreachableReplicaSet, shard.StorageIsDisabled, shard.ReplicaSetInBackoff:
		return waitFor
	case shard.StoreFailed, shard.StoreClosed, shard.OutcomeUnknown:
		// Another member may become master; the only one does not get better.
		if repeatable && len(*s.members.Load()) > 1 {
			return waitFor
		}
	}
	return giveUp
}

// locate asks everybody for a bucket whose place is not known.
func (r *Router) locate(ctx context.Context, t *try, b shard.BucketID) next {
	if r.look(b) != nil {
		return atOnce
	}
	err := &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, Err: t.err}
	if errors.Is(t.err, shard.NoRouteToBucket) {
		err.Err = nil // it is from the last time
	}
	t.err = err
	if r.opts.Topology == nil {
		return giveUp
	}
	asked, answered := r.sweep(ctx)
	if r.routes[b].Load() != nil {
		return atOnce
	}
	switch {
	case asked == 0:
		err.Reason = "no replica set is known"
	case answered < asked:
		err.Reason = fmt.Sprintf("%d of %d replica sets do not answer, and the others have it not", asked-answered, asked)
	default:
		err.Reason = fmt.Sprintf("all %d replica sets say that they have it not; if the store is bootstrapped, shard check tells more", asked)
		if t.sweeps++; t.sweeps >= completeSweeps {
			return giveUp
		}
	}
	return waitFor
}

// late is the error after ctx has ended: the cause and what to do about it.
func (r *Router) late(ctx context.Context, t *try, start time.Time) error {
	var e *shard.Error
	known := errors.As(t.err, &e)
	if known && e.Code == shard.OutcomeUnknown {
		return because(e, t.cause)
	}
	if !known && !errors.As(t.cause, &e) {
		// The first try was under way.
		if t.err == nil {
			return ctx.Err()
		}
		return t.err
	}
	c := *e
	if c.Reason != "" {
		c.Reason += "; "
	}
	c.Reason += fmt.Sprintf("gave up after %v", time.Since(start).Round(time.Millisecond))
	if a := advice[c.Code]; a != "" {
		c.Reason += ": " + a
	}
	if !known && t.write {
		return &shard.Error{Code: shard.OutcomeUnknown, Bucket: c.Bucket, ReplicaSet: c.ReplicaSet,
			Reason: "the last try did not end in time", Err: errors.Join(&c, ctx.Err())}
	}
	return because(&c, ctx.Err())
}

// because returns e with one more cause, unless it has it.
func because(e *shard.Error, cause error) error {
	if cause == nil || errors.Is(e.Err, cause) {
		return e
	}
	c := *e
	if c.Err = cause; e.Err != nil {
		c.Err = errors.Join(e.Err, cause)
	}
	return &c
}

// advice is what to do when a state that passes lasted longer than the caller.
var advice = map[shard.Code]string{
	shard.TransferIsInProgress:  "the bucket takes no writes while it changes hands; give the call more time, and look for a move that does not end",
	shard.MissingMaster:         "look whether more than half of the replica set's members are alive",
	shard.UnreachableMaster:     "look whether the master is alive and can be reached from here",
	shard.UnreachableReplicaSet: "look whether its nodes are alive and can be reached from here",
	shard.NoRouteToBucket:       "look at the replica sets that do not answer",
	shard.StorageIsDisabled:     "the node is stopping or starting",
	shard.StorageIsReferenced:   "a call over many buckets holds them",
}
