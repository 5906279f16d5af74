package matching

import (
	"math"
	"slices"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// How a partition works with its neighbours in the tree.
//
// A poll goes up: a partition with a poll and no task lends the poll to its parent,
// which leases it a task of its own.
//
// A task stays where it is. A partition with tasks and no poll offers them to its
// parent, and the offer waits there for a poll. The parent then polls the child in
// that poll's place: the child leases the task in its own log, so that an offered
// task is as durable as any other, and it is with the child that its lease ends.
//
// Offers wait in the order of their oldest task. A poll goes to whichever is older,
// the first task here or the first offer; within a second the task here is taken,
// which is nearer.
//
// One poll is lent and one offer stands at a time. Nothing that came up goes down
// again, except a poll to a child that asked for one, and nothing that came down goes
// up again.

// Forwarding bounds what partitions send to each other. The zero value of a field
// takes its default.
type Forwarding struct {
	// OfferInterval is the least time between two offers of one partition to a
	// parent on another node, when the first brought no poll that took a task. A
	// parent in the same process is as near as a child and may be asked at any time.
	// Default 100 ms.
	OfferInterval time.Duration
	// OfferRate is how many offers in a second a partition may make, to a parent on
	// another node, that do bring polls: each spares a task a wait, at the price of
	// two calls. As many may come at once. Default 100.
	OfferRate int
	// OfferHold is how long an offer stands before it is made anew. Default 60 s.
	OfferHold time.Duration
	// BacklogAge: a partition whose oldest ready task has waited longer neither
	// offers nor lends, so that all partitions are worked off alike. Default 5 s.
	BacklogAge time.Duration
	// PollerAbsence: unless no poll came here for so long. Default 200 ms.
	PollerAbsence time.Duration
	// Off switches forwarding off; for comparisons.
	Off bool
}

func (f Forwarding) withDefaults() Forwarding {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&f.OfferInterval, 100*time.Millisecond)
	if f.OfferRate <= 0 {
		f.OfferRate = 100
	}
	def(&f.OfferHold, time.Minute)
	def(&f.BacklogAge, 5*time.Second)
	def(&f.PollerAbsence, 200*time.Millisecond)
	return f
}

const (
	// olderBy is how much older the tasks of an offer must be to go before one here.
	olderBy = int64(time.Second)
	// lendPause is the pause after a lent poll came back with nothing.
	lendPause = int64(50 * time.Millisecond)
	// holdTime is how long a write is held back for a poll that is on its way here from
	// the same process, so that the task and its lease share the write.
	holdTime = int64(500 * time.Microsecond)
	// Pauses after a neighbour could not be reached double from hopPause to
	// maxHopPause.
	hopPause    = int64(100 * time.Millisecond)
	maxHopPause = int64(5 * time.Second)
)

// forwarding is the part of a core that has to do with the neighbours. Its times are
// on the steady clock unless they say otherwise.
type forwarding struct {
	options   Forwarding
	hasParent bool
	lastPoll  int64 // when a poll last came here by itself

	near      bool  // the parent was in this process, last time
	holdUntil int64 // no write before, unless the poll is here
	offering  bool  // an offer stands at the parent
	pulled    bool  // and has brought a poll that took a task
	offerAt   int64
	offerWait int64 // the pause if the next offer fails too
	paidTo    int64 // what OfferRate has let go is paid for up to here

	lent     *pollCall // a poll that is at the parent
	recalled bool      // and that was asked to come back
	lendAt   int64
	lendWait int64

	offers []*offerCall // of children, the oldest tasks first
	away   int          // polls that are somewhere else

	hops []any // requests for the shell
}

// pollRoute is what a poll needs on its way between partitions.
type pollRoute struct {
	hop       v1.Hop
	source    int32
	until     int64 // steady time at which its wait ends
	gone      bool  // at another partition
	cancelled bool  // ends when it is back
	answer    *v1.PollTasksResponse
	recall    *recallable // of a lent poll; the shell's
}

// offerCall is a child's offer; it is answered when a poll has been there for it.
type offerCall struct {
	call
	source int32
	oldest int64 // wall clock
	taken  bool
	over   bool
}

// Events from and to the shell.
type (
	// lendPoll asks for a poll at the parent in p's place; polledAway answers it.
	lendPoll struct{ p *pollCall }
	// recallPoll ends the lent poll: it comes back with what it has.
	recallPoll struct{ p *pollCall }
	// pullTasks asks for a poll at the child that made the offer; polledAway
	// answers it.
	pullTasks struct {
		p     *pollCall
		offer *offerCall
	}
	// offerTasks asks for an offer to the parent; offered answers it.
	offerTasks struct {
		tasks  int
		oldest int64 // wall clock
	}

	polledAway struct {
		p      *pollCall
		offer  *offerCall // nil for a lent poll
		local  bool
		answer *v1.PollTasksResponse
		err    error
	}
	offered struct {
		local, taken bool
		err          error
	}
	// offerOver withdraws a child's offer.
	offerOver struct{ offer *offerCall }
	// rootIsLoaded says that it makes sense to offer again.
	rootIsLoaded struct{}
)

func (f *forwarding) init(c *core, id PartitionID, options Forwarding) {
	f.options = options.withDefaults()
	_, f.hasParent = id.parent()
	f.hasParent = f.hasParent && !options.Off
	f.lastPoll = c.now
	f.offerWait, f.lendWait = hopPause, hopPause
}

// polled notes that a poll has come here, unless it was asked to.
func (f *forwarding) polled(p *pollCall, now int64) {
	if p.hop == v1.Hop_HOP_PULLED {
		f.holdUntil = 0
		return
	}
	f.lastPoll = now
}

// held says whether writes wait a moment for a poll.
func (c *core) held() bool { return c.now < c.fwd.holdUntil }

// hold has the tasks that are about to be written wait for a poll on its way.
func (c *core) hold() {
	if c.fwd.near && len(c.pending) > 0 {
		c.fwd.holdUntil = c.now + holdTime
	}
}

// servable says whether a poll, were there one, would get a task here now.
func (c *core) servable() bool {
	return !c.queue.paused && !c.closing && c.leases.len() < c.limits.Leases && c.ready.peek() != nil
}

// draining says whether the backlog here is old, so that it is to be worked off by
// the polls that come here.
func (c *core) draining() bool {
	oldest := c.ready.oldest()
	return oldest != 0 && c.wall-oldest > int64(c.fwd.options.BacklogAge) && c.now-c.fwd.lastPoll < int64(c.fwd.options.PollerAbsence)
}

// offer takes a child's offer.
func (c *core) offer(o *offerCall) {
	if c.closing {
		o.end(false)
		return
	}
	i, _ := slices.BinarySearchFunc(c.fwd.offers, o, func(a, b *offerCall) int {
		if a.oldest <= b.oldest {
			return -1
		}
		return 1
	})
	c.fwd.offers = slices.Insert(c.fwd.offers, i, o)
}

func (o *offerCall) end(taken bool) {
	if !o.over {
		o.over, o.taken = true, taken
		o.reply(nil)
	}
}

func (c *core) withdraw(o *offerCall) {
	if i := slices.Index(c.fwd.offers, o); i >= 0 {
		c.fwd.offers = slices.Delete(c.fwd.offers, i, i+1)
		o.end(false)
	}
}

// pullOffers sends waiting polls to children that have asked for them: all of them,
// or with olderOnly as long as the first offer's tasks are older than what is here.
func (c *core) pullOffers(olderOnly bool) {
	if c.queue.paused || c.closing {
		return
	}
	for i := 0; i < len(c.fwd.offers); {
		o := c.fwd.offers[i]
		if olderOnly {
			if here := c.ready.oldest(); here == 0 || here <= o.oldest+olderBy {
				return
			}
		}
		p := c.pollers.first
		for p != nil && p.hop == v1.Hop_HOP_LENT && p.source == o.source {
			p = p.next // it comes from there
		}
		if p == nil {
			if c.pollers.first == nil {
				return
			}
			i++
			continue
		}
		c.fwd.offers = slices.Delete(c.fwd.offers, i, i+1)
		c.sendAway(p)
		c.fwd.hops = append(c.fwd.hops, pullTasks{p, o})
	}
}

// sendAway takes a poll out of the line.
func (c *core) sendAway(p *pollCall) {
	c.pollers.remove(p)
	p.gone = true
	c.fwd.away++
}

// forward turns to the parent with what found nothing here. It runs after match.
func (c *core) forward() {
	f := &c.fwd
	if !f.hasParent || c.closing || c.queue.paused {
		return
	}
	wanted := c.servable() || len(f.offers) > 0
	if f.lent != nil {
		if wanted && c.pollers.n == 0 && !f.recalled {
			f.recalled = true
			f.hops = append(f.hops, recallPoll{f.lent})
			c.hold()
		}
		return
	}
	switch {
	case c.pollers.n > 0:
		c.lend()
	case wanted && !f.offering && c.now >= f.offerAt && !c.draining():
		f.offering, f.pulled = true, false
		oldest := c.ready.oldest()
		if len(f.offers) > 0 && (oldest == 0 || f.offers[0].oldest < oldest) {
			oldest = f.offers[0].oldest
		}
		f.hops = append(f.hops, offerTasks{tasks: c.ready.len() + len(f.offers), oldest: oldest})
		c.hold()
	}
}

// lend sends the first poll that may go to the parent, if no task is about to come up
// here.
func (c *core) lend() {
	if c.now < c.fwd.lendAt || c.loading() || c.draining() {
		return
	}
	for p := c.pollers.first; p != nil; p = p.next {
		if !p.noWait && p.until > c.now {
			c.sendAway(p)
			c.fwd.lent, c.fwd.recalled = p, false
			c.fwd.hops = append(c.fwd.hops, lendPoll{p})
			return
		}
	}
}

// back takes a poll that was somewhere else: it is answered with what it got there,
// or waits here again, first in line.
func (c *core) back(b polledAway) {
	p := b.p
	p.gone = false
	c.fwd.away--
	if b.offer != nil {
		b.offer.end(b.err == nil)
	} else {
		c.lentBack(b)
	}
	if len(b.answer.GetTasks()) == 0 && !p.cancelled && !c.closing {
		c.pollers.insert(p, nil) // it has waited already
		if p.noWait {
			c.noWaits = append(c.noWaits, p)
		}
		return
	}
	if len(b.answer.GetTasks()) > 0 {
		p.answer = b.answer
	}
	c.pollEnded(p)
	p.reply(nil)
}

func (c *core) lentBack(b polledAway) {
	f := &c.fwd
	f.near, f.holdUntil = b.local, 0
	switch {
	case b.err != nil:
		f.lendAt, f.lendWait = c.now+f.lendWait, min(2*f.lendWait, maxHopPause)
	case len(b.answer.GetTasks()) > 0 || f.recalled:
		f.lendWait = hopPause
	default:
		f.lendAt, f.lendWait = c.now+lendPause, hopPause
	}
	f.lent, f.recalled = nil, false
}

// offered takes the end of an offer that was made.
func (c *core) offerEnded(r offered) {
	f := &c.fwd
	f.offering, f.near, f.holdUntil = false, r.local, 0
	switch {
	case r.err != nil:
		f.offerAt, f.offerWait = c.now+f.offerWait, min(2*f.offerWait, maxHopPause)
		return
	case !r.local && r.taken && f.pulled:
		f.paidTo = max(f.paidTo, c.now-int64(time.Second)) + int64(time.Second)/int64(f.options.OfferRate)
		f.offerAt = f.paidTo
	case !r.local:
		f.offerAt = c.now + int64(f.options.OfferInterval)
	case !r.taken, !f.pulled && c.servable():
		f.offerAt = c.now + lendPause // nobody came, or whoever came could take nothing
	}
	f.offerWait = hopPause
}

// cancelAway makes a poll that is somewhere else end when it is back.
func (c *core) cancelAway(p *pollCall) {
	p.cancelled = true
	if c.fwd.lent == p && !c.fwd.recalled {
		c.fwd.recalled = true
		c.fwd.hops = append(c.fwd.hops, recallPoll{p})
	}
}

// closeForwarding ends what waits here for others, and calls back what is away.
func (c *core) closeForwarding() {
	for _, o := range c.fwd.offers {
		o.end(false)
	}
	c.fwd.offers = nil
	if c.fwd.lent != nil {
		c.cancelAway(c.fwd.lent)
	}
}

// forwardWake is when forward may want to act though nothing happens meanwhile.
func (c *core) forwardWake() int64 {
	f := &c.fwd
	if f.holdUntil > c.now {
		return f.holdUntil
	}
	if !f.hasParent || f.lent != nil || c.closing {
		return math.MaxInt64
	}
	at := int64(math.MaxInt64)
	switch {
	case c.pollers.n > 0:
		if at = f.lendAt; c.draining() {
			at = max(at, f.lastPoll+int64(f.options.PollerAbsence))
		}
		if at <= c.now {
			at = math.MaxInt64
		}
	case c.pollers.n == 0 && !f.offering && c.ready.len()+len(f.offers) > 0:
		at = f.offerAt
		if c.draining() {
			at = max(at, f.lastPoll+int64(f.options.PollerAbsence))
		}
		if at <= c.now {
			at = math.MaxInt64 // it waits for something else
		}
	}
	return at
}

// pollBegan and pollEnded keep the history of pollers. A poll waits where its poller
// put it; where it was forwarded to, the poller has been seen, no more.

func (c *core) pollBegan(p *pollCall) {
	c.history.began(p.identity, c.now)
	if p.hop != v1.Hop_HOP_UNSPECIFIED {
		c.history.ended(p.identity, c.now)
	}
}

func (c *core) pollEnded(p *pollCall) {
	if p.hop == v1.Hop_HOP_UNSPECIFIED {
		c.history.ended(p.identity, c.now)
	}
	c.fwd.pulled = c.fwd.pulled || p.hop == v1.Hop_HOP_PULLED && len(p.granted) > 0
}
