package matching

// Removing and reviving tasks starts with a look into the store, since most tasks
// are only there. The look happens outside the core: beginLookup is answered when
// all that was done before is durable and visible; then comes the look; then
// removeCall or reviveCall with what was found. Tasks that changed in between are
// skipped, and the caller looks again.

// lookupCall begins a look into the store.
type lookupCall struct{ call }

func (c *core) beginLookup(l *lookupCall) {
	if c.lookups == 0 {
		c.touched = map[uint64]struct{}{}
	}
	c.lookups++
	c.answer(l)
}

func (c *core) endLookup() {
	c.lookups--
	if c.lookups == 0 {
		c.touched = nil
	}
}

// barrierCall is answered when all that was done before is durable and visible.
type barrierCall struct{ call }

// storedTask is a task as a look into the store found it.
type storedTask struct {
	seq     uint64
	id      taskID
	addedAt int64
	loc     location
	key     string // fairness key of a fresh one
	state   storedState
	at      int64 // for scheduled tasks
	changed bool  // result: it changed since; look again
}

type storedState uint8

const (
	storedFresh storedState = iota
	storedScheduled
	storedLeased
	storedDead
)

// removeCall removes tasks; what they were counts as cancelled.
type removeCall struct {
	call
	tasks   []storedTask
	removed int
}

func (c *core) remove(r *removeCall) {
	for i := range r.tasks {
		t := &r.tasks[i]
		if _, t.changed = c.touched[t.seq]; t.changed {
			continue
		}
		c.touch(t.seq)
		b := c.open()
		switch t.state {
		case storedFresh:
			c.ready.removeFresh(t.loc.place(t.seq), t.key)
			c.leaveBacklog(t.seq, b)
			c.m.count(t.loc.level, -1)
			c.lowAfter--
		case storedScheduled:
			c.unschedule(t.at, t.seq)
			c.leaveSchedule(t.at, t.seq, b)
			b.deleteSchedule(c.m.uid, t.at, t.seq)
			c.m.counts.scheduled--
		case storedLeased:
			l := c.leases.bySeq[t.seq]
			if l == nil {
				panic("matching: lease in the store that the owner doesn't know, in " + c.id.String())
			}
			c.endLease(b, l)
		case storedDead:
			b.deleteRow(spaceDead, c.m.uid, t.seq)
			c.m.counts.dead--
		}
		c.erase(b, t.seq, t.id, t.addedAt, t.loc, endingCancelled)
		r.removed++
	}
	c.endLookup()
	c.answer(r)
}

// unschedule takes a scheduled task out of wherever memory holds it, if it does.
func (c *core) unschedule(at int64, seq uint64) {
	if _, ok := c.fetching[seq]; ok {
		delete(c.fetching, seq)
		return
	}
	if c.ready.removeDue(seq) == nil {
		c.schedule.remove(at, seq)
	}
}

// reviveCall makes dead tasks ready again, with all their attempts.
type reviveCall struct {
	call
	tasks   []storedTask
	revived int
}

func (c *core) revive(r *reviveCall) {
	for i := range r.tasks {
		t := &r.tasks[i]
		if _, t.changed = c.touched[t.seq]; t.changed || t.state != storedDead {
			continue
		}
		c.touch(t.seq)
		b := c.open()
		b.deleteRow(spaceDead, c.m.uid, t.seq)
		c.m.counts.dead--
		u := &upcomingTask{at: c.wall, seq: t.seq, batch: b.number, scheduled: scheduled{loc: t.loc}}
		b.putSchedule(c.m.uid, u.at, u.seq, &u.scheduled)
		c.m.counts.scheduled++
		c.schedule.add(u)
		r.revived++
	}
	c.endLookup()
	c.answer(r)
}

// abandonLookup ends a look that comes to nothing.
type abandonLookup struct{}

// dropCall stops the partition for good: its rows are about to be deleted. It is
// refused while there are tasks, unless forced.
type dropCall struct {
	call
	force bool
	tasks int64 // result: what stood in the way
}

func (c *core) drop(d *dropCall) {
	if t := c.m.counts.tasks(); t > 0 && !d.force {
		d.tasks = t
	} else {
		c.close()
		c.dropped = true
	}
	c.answer(d)
}
