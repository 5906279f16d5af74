package matching

import "sync"

// call is the part that all calls to a partition share. The caller waits for
// done, which receives once.
type call struct {
	done chan struct{}
	err  error
}

func (c *call) init() { c.done = dones.Get().(chan struct{}) }

// dones are channels of calls that are over.
var dones = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

// over gives the channel back. The answer must have been received from it.
func (c *call) over() {
	dones.Put(c.done)
	c.done = nil
}

func (c *call) reply(err error) {
	c.err = err
	c.done <- struct{}{}
}

// addCall adds tasks.
type addCall struct {
	call
	items []addItem
	one   [1]addItem // the items of most calls
}

type addItem struct {
	id      taskID
	body    []byte
	addedAt int64
	runAt   int64
	// What a look into the store found, when the core asked for one.
	looked     bool
	generation uint64
	known      bool // the id is in the store and its task or its time is not over
	result     addResult
}

type addResult uint8

const (
	// addLookUp asks the caller to look the id up and to call again.
	addLookUp addResult = iota
	added
	alreadyAdded
)

// add takes new tasks. Items that were decided by an earlier turn of the same
// call are left alone.
func (c *core) add(a *addCall) {
	if c.dropped {
		a.reply(errUnloaded)
		return
	}
	n := 0
	for i := range a.items {
		it := &a.items[i]
		if it.result != addLookUp {
			continue
		}
		if known, sure := c.knowsID(it); !sure {
			it.looked, it.generation = false, c.ids.generation
			continue
		} else if known {
			it.result = alreadyAdded
			continue
		}
		c.addOne(it)
		it.result = added
		n++
	}
	c.stats.count(c.now, statAdded, n)
	c.answer(a)
}

func (c *core) knowsID(it *addItem) (known, sure bool) {
	if at, ok := c.ids.get(it.id); ok {
		if c.wall-at < dedupWindow {
			return true, true
		}
		return it.known, it.looked
	}
	if !c.ids.mayBeStored(it.id) {
		return false, true
	}
	if it.looked && it.generation+1 >= c.ids.generation {
		return it.known, true
	}
	return false, false
}

func (c *core) addOne(it *addItem) {
	b := c.open() // before anything changes: see serve
	seq := c.m.nextSeq
	c.m.nextSeq++
	level, key, weight := bodyShare(it.body)
	c.stats.countLevel(c.now, level, statAdded, 1)
	loc := location{parked: true}
	delayed := it.runAt > c.wall
	if !delayed {
		loc = location{level: level, pass: c.assignPass(b, level, key, weight)}
	}
	if it.addedAt < c.m.lastAdded {
		it.addedAt = c.m.lastAdded // the order in line is the order of sequence numbers
	}
	c.m.lastAdded = it.addedAt

	stored := b.putBody(loc, c.m.uid, seq, it.body)
	setBodyAddedAt(stored, it.addedAt)
	setBodyAddedAt(it.body, it.addedAt)
	b.putID(c.m.uid, it.id, &idRow{seq: seq, addedAt: it.addedAt, loc: loc})
	c.ids.add(it.id, it.addedAt)
	if delayed {
		u := &upcomingTask{at: it.runAt, seq: seq, batch: b.number, scheduled: scheduled{loc: loc}}
		b.putSchedule(c.m.uid, u.at, seq, &u.scheduled)
		c.m.counts.scheduled++
		c.schedule.add(u)
		return
	}
	c.m.count(level, 1)
	if !loc.place(seq).before(c.win.readTo) { // spares the task
		c.win.late = append(c.win.late, lateTask{loc, seq, b.number, it.addedAt, it.body})
		return
	}
	c.keepFresh(&task{seq: seq, loc: loc, readyAt: it.addedAt, body: it.body, batch: b.number}, key, weight)
}
