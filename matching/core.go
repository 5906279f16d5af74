package matching

import (
	"bytes"
	"math"
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
	return l
}

const (
	// dedupWindow is how long a task's id is remembered after it was added.
	dedupWindow = int64(10 * time.Minute)
	// sweepEvery is how often ended tasks' ids are looked at.
	sweepEvery = int64(time.Minute)
	sweepRows  = 4096
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
//   - a fresh task with a sequence number below readTo is not only in the store;
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

	// Fresh tasks below readTo have been in memory; those from there on to
	// durableTo can be read from the store.
	readTo    uint64
	durableTo uint64
	freshRead bool // a read of fresh tasks is under way
	// removed holds tasks that were removed while only in the store, with the
	// batch that removes them, as long as a read might still see them.
	removed map[uint64]uint64

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
		readTo: from.meta.freshFrom, durableTo: from.meta.nextSeq,
		fetching: map[uint64]*upcomingTask{},
		now:      now, wall: wall, nextSweep: now + sweepEvery,
	}
	c.nonce = c.m.rangeID << 32
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

// advance tells the time: now, which never jumps, and the wall clock, which may.
func (c *core) advance(now, wall int64) {
	c.now = max(c.now, now)
	c.wall = wall
}

// open is the batch that takes the next operation.
func (c *core) open() *batch {
	if n := len(c.pending); n > 0 && len(c.pending[n-1].args) < c.limits.BatchBytes {
		return c.pending[n-1]
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
	c.m.freshFrom = c.freshFrom()
	c.noteEnded(b)
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
	if b.nextSeq > c.durableTo {
		c.durableTo = b.nextSeq
	}
	c.schedule.durable(b.number)
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

// freshFrom is the watermark for the meta row.
func (c *core) freshFrom() uint64 {
	if seq, ok := c.ready.firstFresh(); ok {
		return seq
	}
	return c.readTo
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
		c.history.prune(c.now)
	}
}

// plan asks for the reads that keep the windows filled.
func (c *core) plan() {
	if !c.freshRead && c.readTo < c.durableTo && c.ready.bytes < c.limits.WindowBytes/2 && c.ready.len() < c.limits.WindowTasks/2 {
		c.freshRead = true
		c.reads = append(c.reads, readFresh{from: c.readTo, to: c.durableTo,
			tasks: c.limits.WindowTasks - c.ready.len(), bytes: c.limits.WindowBytes - c.ready.bytes})
	}
	if c.schedule.wantsRead() {
		c.schedule.reading = true
		c.reads = append(c.reads, readSchedule{afterAt: c.schedule.horizonAt, afterSeq: c.schedule.horizonSeq, limit: c.limits.ScheduleWindow / 2})
	}
}

// loading says whether ready tasks may be in the store that memory doesn't hold.
func (c *core) loading() bool {
	return c.freshRead || c.fetches > 0 || c.readTo < c.m.nextSeq || c.schedule.mayBeDue(c.wall)
}

// readFresh asks for fresh tasks with sequence numbers in [from, to).
type readFresh struct {
	from, to     uint64
	tasks, bytes int
}

// freshTasks answers readFresh: the tasks found, and how far was read.
type freshTasks struct {
	tasks []*task
	to    uint64
}

func (c *core) gotFresh(r freshTasks) {
	c.freshRead = false
	for _, t := range r.tasks {
		if _, gone := c.removed[t.seq]; gone || t.seq < c.readTo {
			continue
		}
		t.readyAt = bodyAddedAt(t.body)
		c.ready.pushFresh(t)
	}
	if r.to > c.readTo {
		c.readTo = r.to
	}
}

// forget keeps reads from bringing back a task that batch b removes from the store.
func (c *core) forget(seq uint64, b *batch) {
	if c.removed == nil {
		c.removed = map[uint64]uint64{}
	}
	c.removed[seq] = b.number
}

// forgotten drops what no read can see any more.
func (c *core) forgotten() {
	if len(c.removed) == 0 || c.freshRead || c.schedule.reading {
		return
	}
	for seq, number := range c.removed {
		if number <= c.schedule.durableTo {
			delete(c.removed, seq)
		}
	}
}

// earlier orders task ids.
func earlier(a, b taskID) bool { return bytes.Compare(a[:], b[:]) < 0 }
