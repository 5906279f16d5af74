package matching

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// owner is the shell of one partition: a goroutine that runs its core, and the
// queue of calls to it.
type owner struct {
	engine *Engine
	id     PartitionID
	key    string // its key in the store
	bucket shard.BucketID

	// loaded is closed when the core is there or loading failed with loadErr.
	loaded  chan struct{}
	loadErr error
	uid     uint64
	rangeID uint64
	limits  Limits
	// settings are the queue's, for callers; the core has its own copy.
	settings atomic.Pointer[settings]

	mu      sync.Mutex
	calls   []any // from outside
	inner   []any // from what the goroutine itself has started
	stopped bool  // no more calls
	signal  chan struct{}

	exited   chan struct{}
	lastUsed int64 // unix nanoseconds of the last call that counts as use; under mu

	// counts are the queue's, from its row or its root; scaler is a root's that
	// decides them.
	counts atomic.Pointer[v1.PartitionCounts]
	scaler atomic.Pointer[scaler]
	past   atomic.Pointer[pastCounts] // nil for none
	// countsAt is when the partition last looked for newer counts; steady clock.
	countsAt    atomic.Int64
	waiting     atomic.Int64 // polls that wait, here or elsewhere
	working     atomic.Bool  // there are tasks that are not dead
	backlog     atomic.Int64 // tasks that are ready
	polledAt    atomic.Int64 // when a poll last came or went; steady clock
	lookedAfter int64        // of the janitor only
	refreshed   int64        // when the queue's row was last read; of the janitor only
	hops        context.Context
	endHops     context.CancelFunc
	offers      context.Context // over when the partition is to be unloaded
	endOffers   context.CancelFunc
	metrics     ownerMetrics // of the goroutine only
	fault       error        // why the partition is being dropped; of the goroutine only
}

// errUnloaded says that the partition left memory before it took the call; the
// engine loads it again.
var errUnloaded = errors.New("matching: partition unloaded")

// Events for the goroutine besides calls.
type (
	cancelPoll  struct{ poll *pollCall }
	written     struct{ batch *batch }
	writeFailed struct {
		batch *batch
		err   error
	}
	readFailed struct{ err error }
	lostRange  struct{} // somebody else has taken the partition
	configure  struct{ settings settings }
	// countsChanged says that the queue has another number of partitions.
	countsChanged struct{}
	stop          struct{}
)

// submit hands an event to the goroutine.
func (o *owner) submit(ev any, use bool) error {
	o.mu.Lock()
	if o.stopped {
		o.mu.Unlock()
		return errUnloaded
	}
	if len(o.calls) >= o.limits.PendingCalls {
		switch ev.(type) {
		case cancelPoll, offerOver: // they make room
		default:
			o.mu.Unlock()
			return reason.New(codes.ResourceExhausted, reason.Overloaded, map[string]string{"queue": o.id.Queue},
				"queue %q has %d calls waiting, which is the limit: try again later or slow down", o.id.Queue, o.limits.PendingCalls)
		}
	}
	if use {
		o.lastUsed = o.engine.steady()
	}
	o.calls = append(o.calls, ev)
	first := len(o.calls) == 1
	o.mu.Unlock()
	if first {
		o.ring()
	}
	return nil
}

// internal hands over what the goroutine itself has started; never refused.
func (o *owner) internal(ev any) {
	o.mu.Lock()
	o.inner = append(o.inner, ev)
	first := len(o.inner) == 1
	o.mu.Unlock()
	if first {
		o.ring()
	}
}

func (o *owner) ring() {
	select {
	case o.signal <- struct{}{}:
	default:
	}
}

// run is the goroutine.
func (o *owner) run(c *core) {
	defer close(o.exited)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var (
		wake         = int64(math.MaxInt64) // when the timer fires
		calls, inner []any
		reading      int
	)
	for {
		// When several came at once more are about to, and a turn for all of them costs
		// little more than one for each.
		if len(inner)+len(calls) > 1 {
			runtime.Gosched()
		}
		// With too much waiting to be written, calls are left waiting too.
		full := c.pendingBytes > o.limits.PendingBytes
		o.mu.Lock()
		inner, o.inner = o.inner, inner[:0]
		if calls = calls[:0]; !full {
			calls, o.calls = o.calls, calls
		}
		stopped := o.stopped
		o.mu.Unlock()

		c.advance(o.engine.steady(), o.engine.now())
		for i, ev := range inner {
			o.handle(c, ev, &reading)
			inner[i] = nil
		}
		for i, ev := range calls {
			o.handle(c, ev, &reading)
			calls[i] = nil
		}
		if o.fault == nil {
			o.step(c, &reading)
		}
		o.engine.metrics.update(o, c)

		if (o.fault != nil || stopped && len(c.pending) == 0) && c.inFlight == 0 && reading == 0 && o.exit() {
			o.engine.metrics.unloaded(o)
			return
		}
		// The timer is set anew only when it would come too late.
		if w := c.now + int64(c.wake()); w < wake {
			wake = w
			timer.Reset(time.Duration(max(w-o.engine.steady(), 0)))
		}
		o.mu.Lock()
		idle := len(o.inner) == 0 && (len(o.calls) == 0 || c.pendingBytes > o.limits.PendingBytes)
		o.mu.Unlock()
		if !idle {
			continue
		}
		select {
		case <-o.signal: // what it was for has often been done
			continue
		default:
		}
		select {
		case <-o.signal:
		case <-timer.C:
			wake = math.MaxInt64
		}
	}
}

// step lets the core do what follows from the events, and starts the writes and
// reads that it wants.
func (o *owner) step(c *core, reading *int) {
	c.tick()
	c.match()
	c.forward()
	for !c.held() {
		b := c.take()
		if b == nil {
			break
		}
		o.write(b)
	}
	c.plan()
	for i, r := range c.reads {
		*reading++
		go o.read(r)
		c.reads[i] = nil
	}
	c.reads = c.reads[:0]
	for i, r := range c.fwd.hops {
		*reading++
		o.hop(r)
		c.fwd.hops[i] = nil
	}
	c.fwd.hops = c.fwd.hops[:0]
}

// exit ends the goroutine unless something came in meanwhile.
func (o *owner) exit() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.calls)+len(o.inner) > 0 {
		return false
	}
	o.stopped = true
	return true
}

// handle gives one event to the core.
func (o *owner) handle(c *core, ev any, reading *int) {
	switch ev := ev.(type) {
	case writeFailed:
		c.inFlight--
		for _, r := range ev.batch.replies {
			r.reply(ev.err)
		}
		o.fail(c, ev.err)
		return
	case lostRange:
		o.fail(c, errMoved)
		return
	case readFailed:
		*reading--
		o.fail(c, ev.err)
		return
	case freshTasks, scheduleRows, fetchedBodies, sweptIDs, offered:
		*reading--
	case recallDone:
		*reading--
		return
	case polledAway:
		*reading--
		c.back(ev)
		return
	case written:
		c.written(ev.batch)
		return
	}
	if o.fault != nil {
		if r, ok := ev.(replier); ok {
			r.reply(o.fault)
		}
		return
	}
	switch ev := ev.(type) {
	case freshTasks:
		c.gotFresh(ev)
	case scheduleRows:
		c.gotSchedule(ev)
	case fetchedBodies:
		c.gotBodies(ev)
	case sweptIDs:
		c.gotSweep(ev)
	case *addCall:
		c.add(ev)
	case *pollCall:
		c.fwd.polled(ev, c.now)
		c.poll(ev)
	case *offerCall:
		c.offer(ev)
	case offerOver:
		c.withdraw(ev.offer)
	case offered:
		c.offerEnded(ev)
	case rootIsLoaded:
		c.fwd.offerAt = 0
	case *cancelWorker:
		c.cancelWorker(ev)
	case cancelPoll:
		c.cancelPoll(ev.poll)
	case *endCall:
		c.end(ev)
	case *lookupCall:
		c.beginLookup(ev)
	case *barrierCall:
		c.answer(ev)
	case *removeCall:
		c.remove(ev)
	case *reviveCall:
		c.revive(ev)
	case abandonLookup:
		c.endLookup()
	case *dropCall:
		c.drop(ev)
	case *describeCall:
		c.describe(ev)
	case configure:
		c.configure(ev.settings, c.ready.rates.share)
	case countsChanged:
		c.setShare(o.share())
	case stop:
		c.close()
		o.endOffers()
	default:
		panic("matching: unknown event")
	}
}

// fail answers everything that waits with the fault; calls that come later get it
// too, until the goroutine exits and the engine loads the partition anew.
func (o *owner) fail(c *core, err error) {
	if o.fault != nil {
		return
	}
	o.fault = err
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	for _, b := range c.pending {
		for _, r := range b.replies {
			r.reply(o.fault)
		}
	}
	c.pending = nil
	for p := c.pollers.first; p != nil; p = c.pollers.first {
		c.pollers.remove(p)
		p.reply(o.fault)
	}
	for _, d := range c.describes {
		d.reply(o.fault)
	}
	c.describes = nil
	c.closing = true
	c.closeForwarding()
	c.fwd.hops = nil
	o.endHops()
}

// stop asks the goroutine to finish what it has and to exit. It returns at once.
func (o *owner) stop() {
	o.mu.Lock()
	first := !o.stopped
	o.stopped = true
	if first {
		o.inner = append(o.inner, stop{})
	}
	o.mu.Unlock()
	if first {
		o.ring()
	}
}

// write submits a batch. Its calls are answered from the engine's goroutine, to
// spare them the way round.
func (o *owner) write(b *batch) {
	o.engine.metrics.wrote(b)
	o.engine.write(o.bucket, b.args, func(_ []byte, err error) {
		if err != nil {
			o.internal(writeFailed{b, o.engine.storeError(err)})
			return
		}
		for _, r := range b.replies {
			r.reply(nil)
		}
		o.internal(written{b})
	})
}

// read runs one read that the core asked for.
func (o *owner) read(request any) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	answer, err := o.engine.readRows(ctx, o, request)
	if err != nil {
		o.internal(readFailed{o.engine.storeError(err)})
		return
	}
	o.internal(answer)
}

const readTimeout = 30 * time.Second

// do hands a call over and waits for its answer. A caller that leaves early leaves
// the call to itself: it is carried out all the same.
func (o *owner) do(ctx context.Context, ev replier, c *call) error {
	if err := o.submit(ev, true); err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errTooManyPolls(id PartitionID, limit int) error {
	return reason.New(codes.ResourceExhausted, reason.Overloaded, map[string]string{"queue": id.Queue},
		"queue %q has %d polls waiting, which is the limit: use fewer workers or more tasks per poll", id.Queue, limit)
}
