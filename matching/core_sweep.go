package matching

// The row of an id outlives its task until 10 minutes have passed since the task
// was added. The sweep removes such rows: it walks over the ids in their order,
// which is about the order of adding, and never looks at a row twice. A task that
// ends later than that takes its id's row with it, so rows of living tasks are
// passed over.

// sweepIDs asks for ids from a key on, added up to a time, whose tasks are gone.
type sweepIDs struct {
	from  taskID
	upTo  int64
	limit int
}

// sweptIDs answers sweepIDs: the ids to delete, and where to go on.
type sweptIDs struct {
	ids  []taskID
	seqs []uint64
	next taskID
	more bool
}

func (c *core) startSweep() {
	if c.sweeping {
		return
	}
	c.sweeping = true
	// A minute later than the window: an end that left its id to the sweep is
	// visible by then.
	c.reads = append(c.reads, sweepIDs{from: c.m.sweptTo, upTo: c.now - dedupWindow - sweepEvery, limit: sweepRows})
}

func (c *core) gotSweep(r sweptIDs) {
	c.sweeping = false
	if len(r.ids) > 0 {
		b := c.open()
		for _, id := range r.ids {
			// An id that was added anew since the look has a new row.
			if at, ok := c.ids.get(id); ok && c.now-at < dedupWindow {
				continue
			}
			b.deleteID(c.m.uid, id)
		}
	}
	if earlier(c.m.sweptTo, r.next) {
		c.m.sweptTo = r.next
	}
	if r.more {
		c.startSweep()
	}
}
