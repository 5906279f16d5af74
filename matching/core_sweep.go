package matching

import "encoding/binary"

// The row of an id outlives its task, so that a repeated add is recognised. Each
// write lists the tasks that it ends in one row of the space ended, under its time;
// the sweep deletes the ids that such rows list once they are old enough.

const endedSize = 16 + 8 // id and sequence number

// noteEnded adds the list of the tasks that a batch ends.
func (c *core) noteEnded(b *batch) {
	if len(b.ended) == 0 {
		return
	}
	k := b.op(opPut, spaceEnded)
	b.args = binary.BigEndian.AppendUint64(b.args, c.m.uid)
	b.args = binary.BigEndian.AppendUint64(b.args, uint64(c.wall))
	b.args = binary.BigEndian.AppendUint64(b.args, c.m.rangeID<<32|b.number)
	b.endKey(k)
	v := b.beginValue()
	b.args = append(b.args, b.ended...)
	b.endValue(v)
}

// sweepIDs asks for the ids of tasks that ended before a time.
type sweepIDs struct {
	before int64
	limit  int
}

// sweptIDs answers sweepIDs: the ids to delete, and the key behind the last list
// that was read.
type sweptIDs struct {
	ids  []taskID
	end  []byte // nil if there was none
	more bool
}

func (c *core) startSweep() {
	if c.sweeping {
		return
	}
	c.sweeping = true
	c.reads = append(c.reads, sweepIDs{before: c.wall - dedupWindow, limit: sweepRows})
}

func (c *core) gotSweep(r sweptIDs) {
	c.sweeping = false
	if r.end == nil {
		return
	}
	b := c.open()
	for _, id := range r.ids {
		// An id that was added anew since the look has a new row.
		if at, ok := c.ids.get(id); ok && c.wall-at < dedupWindow {
			continue
		}
		b.deleteID(c.m.uid, id)
	}
	k := b.op(opDeleteRange, spaceEnded)
	b.args = binary.BigEndian.AppendUint64(b.args, c.m.uid)
	b.endKey(k)
	v := b.beginValue()
	b.args = append(b.args, r.end...)
	b.endValue(v)
	if r.more {
		c.startSweep()
	}
}
