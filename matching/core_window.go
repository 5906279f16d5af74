package matching

import "slices"

// The window holds the fresh tasks that go next, the rest of them is only in the
// store. Up to readTo, in the order of places, every fresh task is in memory, except
// that of a key with a rate limit only as many are as it may soon use: from the key's
// hole on, its tasks are only in the store too.
//
// A task that is not kept in memory may be missed by a read that began before its
// write was durable. Until no read can miss it, it is kept in late, and each read's
// answer is completed from there.

// lateTask is a fresh task that is not in the window.
type lateTask struct {
	loc     location
	seq     uint64
	batch   uint64
	readyAt int64
	body    []byte
}

// window is the part of a core that says which fresh tasks are in memory.
type window struct {
	readTo place
	epoch  uint64 // changes when readTo goes back: a read that is under way is void
	// Reads may begin when the batch readAfter is durable: what was taken out of the
	// store before readTo or a hole went back is not seen again.
	readAfter uint64
	reading   bool
	byHoles   bool // the last read was for keys with holes
	late      []lateTask
}

// keepFresh takes a task that has just been added or read into the window, if that is
// where it belongs.
func (c *core) keepFresh(t *task, key []byte, weight float32) {
	w, q := &c.win, &c.ready
	p := t.place()
	if !p.before(w.readTo) {
		c.leave(t)
		return
	}
	full := q.fresh >= c.limits.WindowTasks || q.bytes >= c.limits.WindowBytes
	if full && q.last.before(p) {
		c.readBack(p)
		c.leave(t)
		return
	}
	k := q.share(t, t.loc.level, key, weight)
	if k.holed && !p.before(k.hole) {
		c.leave(t)
		return
	}
	q.pushFresh(t)
	if q.bucketOf(k) != nil && k.fresh > q.room(k) {
		for n := k.fresh - q.room(k); n > 0; n-- {
			last := k.lastOf()
			q.setHole(k, last.place())
			c.win.readAfter = c.batches
			q.dropTail(last)
			c.leave(last)
		}
	}
	slack := c.limits.WindowTasks / 8
	if q.fresh > c.limits.WindowTasks+slack || q.bytes > c.limits.WindowBytes+c.limits.WindowBytes/8 {
		c.evict()
	}
}

// leave leaves a task to the store.
func (c *core) leave(t *task) {
	if t.batch > c.durable {
		c.win.late = append(c.win.late, lateTask{t.loc, t.seq, t.batch, t.readyAt, t.body})
	}
}

// evict makes room by leaving the last tasks to the store.
func (c *core) evict() {
	for _, t := range c.ready.evict(c.limits.WindowTasks, c.limits.WindowBytes) {
		if p := t.place(); p.before(c.win.readTo) {
			c.readBack(p)
		}
		c.leave(t)
	}
}

// readBack moves readTo to an earlier place.
func (c *core) readBack(p place) {
	w := &c.win
	w.readTo, w.readAfter = p, c.batches
	w.epoch++
	for k := range c.ready.holed {
		if !k.hole.before(p) {
			c.ready.noHole(k)
		}
	}
}

// dropLate forgets tasks that every read from now on sees.
func (c *core) dropLate() {
	if !c.win.reading && len(c.win.late) > 0 {
		c.win.late = slices.DeleteFunc(c.win.late, func(l lateTask) bool { return l.batch <= c.durable })
	}
}

// roomToRead says whether more fresh tasks are wanted.
func (c *core) roomToRead() bool {
	return c.ready.fresh < (c.limits.WindowTasks+1)/2 && c.ready.bytes < c.limits.WindowBytes/2
}

// freshComing says whether fresh tasks that may go next may be on their way from the
// store.
func (c *core) freshComing() bool {
	return c.win.reading || c.win.readTo != endPlace && c.roomToRead() || len(c.ready.hungry) > 0
}

// readFresh asks for fresh tasks from a place on.
type readFresh struct {
	from         place
	lows         [maxLevel + 1]uint64
	legacyFrom   uint64
	tasks, bytes int
	epoch        uint64
}

// readHoles asks for tasks of some keys, from one place to another of the same level.
type readHoles struct {
	from, to    place
	keys        map[string]wanted
	rows, bytes int
	epoch       uint64
}

// wanted is how many tasks of a key are wanted from a place on.
type wanted struct {
	from place
	n    int
}

// freshTasks answers readFresh and readHoles: the tasks found, and how far was read.
type freshTasks struct {
	tasks []*task
	to    place
	from  place
	epoch uint64
	// For readHoles: what was asked for, and where the keys go on of which there was
	// more.
	keys map[string]wanted
	next map[string]place
}

// planFresh asks for a read if one is needed.
func (c *core) planFresh() {
	w := &c.win
	if w.reading || w.readAfter > c.durable && c.inFlight+len(c.pending) > 0 {
		return
	}
	forward := w.readTo != endPlace && c.roomToRead()
	switch {
	case forward && (len(c.ready.hungry) == 0 || w.byHoles):
		w.byHoles = false
		c.readOn()
	case len(c.ready.hungry) > 0:
		w.byHoles = true
		c.readInHoles()
	}
}

func (c *core) readOn() {
	r := readFresh{from: c.win.readTo, legacyFrom: c.m.legacyFrom, epoch: c.win.epoch,
		tasks: c.limits.WindowTasks - c.ready.fresh, bytes: c.limits.WindowBytes - c.ready.bytes}
	for i := range c.m.levels {
		r.lows[i] = c.m.levels[i].low
	}
	c.win.reading = true
	c.reads = append(c.reads, r)
}

// readInHoles reads for the hungry keys of the first level that has some.
func (c *core) readInHoles() {
	level := uint8(maxLevel)
	for k := range c.ready.hungry {
		level = min(level, k.level)
	}
	r := readHoles{from: c.win.readTo, to: c.win.readTo, keys: map[string]wanted{},
		rows: 4 * c.limits.WindowTasks, bytes: c.limits.WindowBytes, epoch: c.win.epoch}
	if r.to.level > level {
		r.to = place{level: level + 1}
	}
	for k := range c.ready.hungry {
		if k.level != level {
			continue
		}
		r.keys[k.key] = wanted{k.hole, min(c.ready.room(k), holeRoom) - k.fresh}
		if k.hole.before(r.from) {
			r.from = k.hole
		}
	}
	c.win.reading = true
	c.reads = append(c.reads, r)
}

// gotFresh takes what a read found.
func (c *core) gotFresh(r freshTasks) {
	c.win.reading = false
	switch {
	case r.epoch != c.win.epoch: // it may have missed what was left to the store meanwhile
	case r.keys != nil:
		c.gotHoles(r)
	default:
		c.win.readTo = r.to
		c.takeRead(r, func(p place, _ string) bool { return !p.before(r.from) && p.before(r.to) })
	}
	c.dropLate()
	c.forgotten()
}

// gotHoles takes what was found of keys with holes. A key whose hole has moved
// meanwhile is left alone.
func (c *core) gotHoles(r freshTasks) {
	lane := &c.ready.lanes[r.from.level]
	for key, want := range r.keys {
		k := lane.plain
		if key != "" {
			k = lane.keys[key]
		}
		if k == nil || !k.holed || k.hole != want.from {
			delete(r.keys, key)
			continue
		}
		next, more := r.next[key]
		switch {
		case more:
			c.ready.setHole(k, next)
		case r.to == endPlace:
			c.ready.noHole(k)
		case k.hole.before(r.to):
			c.ready.setHole(k, r.to)
		}
	}
	c.takeRead(r, func(p place, key string) bool {
		want, ok := r.keys[key]
		if !ok || p.level != r.from.level || p.before(want.from) {
			return false
		}
		next, more := r.next[key]
		return !(more && !p.before(next)) && p.before(r.to)
	})
}

// takeRead takes the tasks of a read, and those that it may have missed, into the
// window, as far as they are within what it was to find.
func (c *core) takeRead(r freshTasks, within func(p place, key string) bool) {
	var seen map[uint64]struct{}
	if len(c.win.late) > 0 {
		seen = make(map[uint64]struct{}, len(r.tasks))
	}
	for _, t := range r.tasks {
		if seen != nil {
			seen[t.seq] = struct{}{}
		}
		if _, gone := c.left[t.seq]; gone || c.leases.bySeq[t.seq] != nil {
			continue
		}
		_, key, weight := bodyShare(t.body)
		if r.keys != nil && !within(t.place(), string(key)) {
			continue
		}
		t.readyAt = bodyAddedAt(t.body)
		c.passes.note(c.base(t.loc.level), t.loc, key)
		c.keepFresh(t, key, weight)
	}
	var missed []lateTask
	c.win.late = slices.DeleteFunc(c.win.late, func(l lateTask) bool {
		p := l.loc.place(l.seq)
		_, key, _ := bodyShare(l.body)
		if !within(p, string(key)) {
			return false
		}
		if _, dup := seen[l.seq]; !dup {
			missed = append(missed, l)
		}
		return true
	})
	for _, l := range missed {
		if _, gone := c.left[l.seq]; gone || c.leases.bySeq[l.seq] != nil {
			continue
		}
		_, key, weight := bodyShare(l.body)
		c.keepFresh(&task{seq: l.seq, loc: l.loc, batch: l.batch, readyAt: l.readyAt, body: l.body}, key, weight)
	}
}
