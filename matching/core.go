package matching

import (
	"bytes"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"time"
)

// Limits bounds what one partition takes on. The zero value of a field takes its
// default.
type Limits struct {
	// Leases is the most tasks in workers' hands at a time; further polls wait.
	// Default 100,000.
	Leases int
	// WaitingPolls is the most polls that wait at a time; one more is refused
	// as overloaded. Default 10,000.
	WaitingPolls int
	// WindowTasks and WindowBytes bound the ready tasks that are held in memory;
	// the rest stays in the store. Defaults 8192 and 16 MiB.
	WindowTasks int
	WindowBytes int
	// ScheduleWindow is the most delayed tasks whose time is held in memory.
	// Default 8192.
	ScheduleWindow int
	// BatchBytes is about the most that one write carries. Default 2 MiB.
	BatchBytes int
	// WritesInFlight is the most writes under way at a time. Default 4.
	WritesInFlight int
	// PendingCalls is the most calls that wait for the partition; one more is
	// refused as overloaded. Default 10,000.
	PendingCalls int
	// PendingBytes is about the most that waits to be written before calls are
	// left waiting. Default 32 MiB.
	PendingBytes int
	// PollBytes is about the most that one poll returns. Default 4 MiB.
	PollBytes int
	// RecentIDs is how many of the latest task ids are held in memory to tell a
	// repeated add without a look into the store. Default 131,072.
	RecentIDs int
	// Pollers is the most pollers that the history remembers. Default 1000.
	Pollers int
	// FairnessKeys is how many keys' places are remembered exactly; those of further
	// ones are remembered about. Default 10,000.
	FairnessKeys int
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Leases, 100_000)
	def(&l.WaitingPolls, 10_000)
	def(&l.WindowTasks, 8192)
	def(&l.WindowBytes, 16<<20)
	def(&l.ScheduleWindow, 8192)
	def(&l.BatchBytes, 2<<20)
	def(&l.WritesInFlight, 4)
	def(&l.PendingCalls, 10_000)
	def(&l.PendingBytes, 32<<20)
	def(&l.PollBytes, 4<<20)
	def(&l.RecentIDs, 131_072)
	def(&l.Pollers, 1000)
	def(&l.FairnessKeys, 10_000)
	return l
}

const (
	// dedupWindow is how long a task's id is remembered after it was added.
	dedupWindow = int64(10 * time.Minute)
	// sweepEvery is how often ended tasks' ids are looked at.
	sweepEvery = int64(time.Minute)
	sweepRows  = 4096
	// minSleep keeps a rate limit from waking a partition for each task.
	minSleep = int64(time.Millisecond)
	// maxSleep bounds how late a jump of the wall clock is noticed.
	maxSleep = time.Second
	// pollerTTL is how long the history remembers a poller.
	pollerTTL = int64(5 * time.Minute)
	// maxErrorText is where the text of a failure is cut.
	maxErrorText = 4096
)

// core is the state machine of one partition. It belongs to one goroutine; see
// the package comment for how its answers relate to what is durable.
//
// Invariants, besides those that the fields state:
//   - a task is in exactly one of: ready, leases, upcoming, fetching, or only in
//     the store;
//   - a fresh task whose place is before win.readTo is not only in the store, unless
//     it is of a key with a hole and behind that;
//   - a scheduled task with a key up to horizon is not only in the store, and no
//     task is if wholeSchedule.
type core struct {
	id     PartitionID
	key    string
	hash   uint32
	limits Limits
	rng    *rand.Rand
	queue  settings
	m      meta

	ready   readyQueue
	pollers pollList
	noWaits []*pollCall // waiting polls that leave once it is sure that nothing is ready
	leases  leaseTable

	win    window
	passes passBook
	// lowAfter counts down to the next look at the low marks.
	lowAfter int
	durable  uint64 // all batches up to this one are durable
	// unscheduled holds rows of the schedule, and left tasks of the backlog, that a read
	// might still see though they were taken out, with the batch that does that.
	unscheduled map[scheduleKey]uint64
	left        map[uint64]uint64

	schedule scheduleIndex
	fetching map[uint64]*upcomingTask
	fetches  int // reads of bodies under way

	ids       recentIDs
	sweeping  bool
	nextSweep int64

	// lookups counts removals and revivals that have begun with a look into the
	// store; touched collects tasks that changed since the first of them began.
	lookups int
	touched map[uint64]struct{}

	nonce uint64
	// Leases are measured by a clock that does not jump; everything that has to do
	// with points in time (run_at, retries, time to live) goes by the wall clock.
	now  int64
	wall int64

	pending      []*batch
	pendingBytes int
	batches      uint64
	inFlight     int
	free         []*batch
	reads        []any // read requests for the shell
	closing      bool  // no task is handed out any more
	dropped      bool  // nor taken: the rows are about to be deleted

	stats     stats
	history   pollerHistory
	describes []*describeCall // wait for the schedule to be read

	fwd forwarding
}

// loaded is what a partition starts from.
type loaded struct {
	meta   meta
	leases []storedLease
	lastID taskID
	passes []storedPass
	// scheduleEmpty saves the first look into the schedule.
	scheduleEmpty bool
}

type storedLease struct {
	seq uint64
	lease
}

// newCore makes a partition from what the store holds. A lease that ran out
// while nobody owned the partition is given a moment more, since its worker could
// not reach anyone.
func newCore(now, wall int64, id PartitionID, q settings, limits Limits, rng *rand.Rand, from loaded) *core {
	c := &core{
		id: id, key: id.Key(), hash: id.Hash(), limits: limits.withDefaults(), rng: rng, queue: q, m: from.meta,
		fetching: map[uint64]*upcomingTask{},
		now:      now, wall: wall, nextSweep: now + sweepEvery,
	}
	c.nonce = c.m.rangeID << 32
	c.ready.init(now)
	for i := range c.m.levels {
		c.ready.lanes[i].base = c.m.levels[i].base
	}
	if c.m.counts.fresh == 0 {
		c.win.readTo = endPlace
	}
	c.passes.load(c.limits.FairnessKeys, from.passes, c.base)
	c.configure(q, 1)
	c.schedule.limit = c.limits.ScheduleWindow
	c.schedule.whole = from.scheduleEmpty
	c.ids.init(c.limits.RecentIDs, from.lastID)
	c.leases.init()
	for _, l := range from.leases {
		if grace := now + min(l.duration, int64(5*time.Second)); l.deadline < grace {
			l.deadline = grace
		}
		c.leases.add(&heldLease{seq: l.seq, lease: l.lease})
	}
	c.stats.init(now)
	c.history.init(c.limits.Pollers)
	return c
}

// configure takes over a queue's settings, and the partition's share of its limits.
func (c *core) configure(q settings, share float64) {
	c.queue = q
	c.ready.setRates(q.fairness, share)
}

// setShare takes over the partition's share of its queue's limits, above 0 to 1.
func (c *core) setShare(share float64) {
	if share != c.ready.rates.share {
		c.ready.setRates(c.queue.fairness, share)
	}
}

// advance tells the time: now, which never jumps, and the wall clock, which may.
func (c *core) advance(now, wall int64) {
	c.now = max(c.now, now)
	c.wall = wall
	c.ready.now = c.now
}

// open is the batch that takes the next operation.
func (c *core) open() *batch {
	if n := len(c.pending); n > 0 {
		// One without operations is never written, so it must not be closed.
		if b := c.pending[n-1]; b.ops == 0 || len(b.args) < c.limits.BatchBytes {
			return b
		}
	}
	if n := len(c.pending); n > 0 {
		c.closeBatch(c.pending[n-1])
	}
	b := c.newBatch()
	c.pending = append(c.pending, b)
	return b
}

func (c *core) newBatch() *batch {
	var b *batch
	if n := len(c.free); n > 0 {
		b, c.free = c.free[n-1], c.free[:n-1]
	} else {
		b = &batch{}
	}
	b.ops = 0
	b.ended = b.ended[:0]
	c.batches++
	b.number = c.batches
	b.begin(c.hash, c.m.uid, c.m.rangeID, c.key)
	return b
}

// closeBatch makes the meta row of a batch that is full; the last one is made
// when it is taken.
func (c *core) closeBatch(b *batch) {
	c.noteEnded(b)
	c.noteLevels()
	c.m.batch++
	b.seal(&c.m)
	c.pendingBytes += len(b.args)
}

// answer ties a call to the changes made so far.
func (c *core) answer(r replier) {
	b := c.open()
	b.replies = append(b.replies, r)
}

// take returns the next batch to write, or nil. Batches without operations are
// answered at once when nothing before them is under way.
func (c *core) take() *batch {
	for len(c.pending) > 0 {
		b := c.pending[0]
		if b.ops == 0 {
			if c.inFlight > 0 {
				return nil
			}
			for _, r := range b.replies {
				r.reply(nil)
			}
			c.pop()
			c.recycle(b)
			continue
		}
		if c.inFlight >= c.limits.WritesInFlight {
			return nil
		}
		if len(c.pending) == 1 {
			c.closeBatch(b)
		}
		c.pendingBytes -= len(b.args)
		c.pop()
		c.inFlight++
		return b
	}
	return nil
}

func (c *core) pop() {
	n := copy(c.pending, c.pending[1:])
	c.pending[n] = nil
	c.pending = c.pending[:n]
}

// written notes that a batch is durable. Its calls have been answered already.
func (c *core) written(b *batch) {
	c.inFlight--
	c.durable = max(c.durable, b.number)
	c.schedule.durable(b.number)
	c.dropLate()
	c.forgotten()
	c.recycle(b)
}

// recycle keeps a batch's memory for another, unless it is of a rare size.
func (c *core) recycle(b *batch) {
	clear(b.replies)
	b.replies = b.replies[:0]
	if len(c.free) < 8 && cap(b.args) <= 4<<20 {
		c.free = append(c.free, b)
	}
}

// noteLevels puts what the meta row says of the levels up to date. The low marks may
// lag behind.
func (c *core) noteLevels() {
	for used := c.m.used; used != 0; used &= used - 1 {
		i := bits.TrailingZeros8(used)
		c.m.levels[i].base = c.ready.lanes[i].base
	}
	if c.lowAfter > 0 {
		return
	}
	c.lowAfter = max(c.ready.keys/2, 100) // so that it costs little per task
	for i := range c.m.levels {
		if c.m.used&(1<<i) != 0 {
			c.m.levels[i].low = c.lowOf(uint8(i))
		}
	}
	if c.m.levels[defaultLevel].low > 0 {
		c.m.legacyFrom = 0
	}
}

// lowOf is a pass that no fresh task of a level is before. Tasks to come are behind
// the virtual time.
func (c *core) lowOf(level uint8) uint64 {
	low := c.base(level) + 1
	switch to := c.win.readTo; {
	case to.level < level:
		low = min(low, c.m.levels[level].low)
	case to.level == level:
		low = min(low, to.pass)
	}
	c.ready.lanes[level].each(func(k *keyQueue) {
		if t := k.first(); t != nil {
			low = min(low, t.loc.pass)
		}
		if k.holed {
			low = min(low, k.hole.pass)
		}
	})
	return low
}

func (c *core) touch(seq uint64) {
	if c.lookups > 0 {
		c.touched[seq] = struct{}{}
	}
}

// wake is how long until the core wants to be told the time again, asked right
// after tick.
// Scheduled tasks that are due by now and still there wait for something else: room,
// or their own batch.
func (c *core) wake() time.Duration {
	w := c.nextSweep - c.now
	if d, ok := c.leases.first(); ok {
		w = min(w, d-c.now)
	}
	if at, ok := c.schedule.first(); ok && at > c.wall {
		w = min(w, at-c.wall, int64(maxSleep))
	}
	if at := c.forwardWake(); at != math.MaxInt64 {
		w = min(w, at-c.now)
	}
	if c.pollers.n > 0 || c.fwd.hasParent {
		if at, ok := c.ready.limitedUntil(); ok {
			w = min(w, max(at-c.now, minSleep))
		}
	}
	return time.Duration(w)
}

// tick does what time alone brings: leases that ran out, tasks that came due,
// the sweep of ids.
func (c *core) tick() {
	c.expireLeases()
	c.promote()
	if c.now >= c.nextSweep {
		c.nextSweep = c.now + sweepEvery
		c.startSweep()
		c.sweepPasses()
		c.history.prune(c.now)
	}
}

// plan asks for the reads that keep the windows filled.
func (c *core) plan() {
	c.planFresh()
	if c.schedule.wantsRead(c.inFlight+len(c.pending) == 0) {
		c.schedule.reading = true
		c.reads = append(c.reads, readSchedule{afterAt: c.schedule.horizonAt, afterSeq: c.schedule.horizonSeq, limit: c.limits.ScheduleWindow / 2})
	}
}

// loading says whether ready tasks may be in the store that memory doesn't hold.
func (c *core) loading() bool {
	return c.freshComing() || c.fetches > 0 || c.schedule.mayBeDue(c.wall) && c.roomForDue()
}

// leaveSchedule keeps reads of the schedule from bringing back a row that batch b takes
// out.
func (c *core) leaveSchedule(at int64, seq uint64, b *batch) {
	if c.unscheduled == nil {
		c.unscheduled = map[scheduleKey]uint64{}
	}
	c.unscheduled[scheduleKey{at, seq}] = b.number
}

// leaveBacklog keeps reads of fresh tasks from bringing back one that batch b takes out
// of the backlog.
func (c *core) leaveBacklog(seq uint64, b *batch) {
	if c.left == nil {
		c.left = map[uint64]uint64{}
	}
	c.left[seq] = b.number
}

// forgotten drops what no read can see any more.
func (c *core) forgotten() {
	if len(c.unscheduled) > 0 && !c.schedule.reading {
		maps.DeleteFunc(c.unscheduled, func(_ scheduleKey, number uint64) bool { return number <= c.durable })
	}
	if len(c.left) > 0 && !c.win.reading {
		maps.DeleteFunc(c.left, func(_, number uint64) bool { return number <= c.durable })
	}
}

// earlier orders task ids.
func earlier(a, b taskID) bool { return bytes.Compare(a[:], b[:]) < 0 }
