package matching

import (
	"encoding/binary"
	"math"
	"slices"
)

// passBook remembers the last pass of each fairness key, so that the next task of the
// key gets its place behind it.
//
// A key whose last pass the virtual time has reached need not be remembered. Of the
// others up to limit are remembered exactly; when there are more, those that are least
// ahead of the virtual time go into a sketch: each leaves its pass in four cells of
// one table each, and its pass is taken to be the lowest of its cells'. That is never
// too early, so no key gains from it, and too late only for a key all whose cells were
// overwritten by keys that are further ahead. Cells need no aging: the virtual time
// passes them by.
//
// Rows of the space passes tell a later owner how far a key was. To write seldom, a row
// is written a number of tasks ahead, and only for keys that are some tasks ahead.
type passBook struct {
	limit  int
	levels [maxLevel + 1]map[string]*passEntry
	n      int
	sketch [][sketchCells]uint64 // nil until needed
	// stale are rows that were read and are of no use any more.
	stale []staleRow
}

type passEntry struct {
	last   uint64
	stored uint64 // what the row says; 0: no row
}

type staleRow struct {
	level uint8
	key   string
}

const (
	sketchTables = 4
	sketchCells  = 4096
	// A key's pass is written when it is passAhead increments ahead, for the next
	// passBlock.
	passAhead = 16
	passBlock = 32
)

func (p *passBook) get(level uint8, key []byte) *passEntry { return p.levels[level][string(key)] }

func (p *passBook) set(level uint8, key string, e *passEntry) {
	if p.levels[level] == nil {
		p.levels[level] = map[string]*passEntry{}
	}
	p.levels[level][key] = e
	p.n++
}

// note learns from a task that was read.
func (p *passBook) note(base uint64, loc location, key []byte) {
	if len(key) == 0 || loc.pass <= base {
		return
	}
	if e := p.get(loc.level, key); e != nil {
		e.last = max(e.last, loc.pass)
	} else if p.n < p.limit {
		p.set(loc.level, string(key), &passEntry{last: loc.pass})
	} else {
		p.remember(loc.level, string(key), loc.pass)
	}
}

// remember puts a pass into the sketch.
func (p *passBook) remember(level uint8, key string, pass uint64) {
	if p.sketch == nil {
		p.sketch = make([][sketchCells]uint64, sketchTables)
	}
	h := passHash(level, key)
	for i := range p.sketch {
		cell := &p.sketch[i][h>>(16*i)%sketchCells]
		*cell = max(*cell, pass)
	}
}

// estimate is the pass of a key that is not remembered exactly.
func (p *passBook) estimate(level uint8, key string) uint64 {
	if p.sketch == nil {
		return 0
	}
	h, least := passHash(level, key), uint64(math.MaxUint64)
	for i := range p.sketch {
		least = min(least, p.sketch[i][h>>(16*i)%sketchCells])
	}
	return least
}

// passHash is 64-bit FNV-1a, mixed once more.
func passHash(level uint8, key string) uint64 {
	h := uint64(14695981039346656037)
	h = (h ^ uint64(level)) * 1099511628211
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// base is the virtual time of a priority.
func (c *core) base(level uint8) uint64 { return c.ready.lanes[level].base }

// assignPass gives a new fresh task its pass. Rows go into b.
func (c *core) assignPass(b *batch, level uint8, key []byte, weight float32) uint64 {
	base := c.base(level)
	if len(key) == 0 {
		m := &c.m.levels[level]
		inc := uint64(unitPass)
		if w := c.ready.rates.weight("", weight); w != 1 {
			inc = increment(w)
		}
		m.last = max(base, m.last) + inc
		return m.last
	}
	p := &c.passes
	e := p.get(level, key)
	if e == nil {
		if p.n >= p.limit {
			c.prunePasses(b, p.limit*3/4)
		}
		k := string(key)
		e = &passEntry{last: p.estimate(level, k)}
		p.set(level, k, e)
	}
	inc := increment(c.ready.rates.weightOf(key, weight))
	e.last = max(base, e.last) + inc
	if e.last > e.stored && e.last-base > passAhead*inc {
		e.stored = e.last + passBlock*inc
		b.putPass(c.m.uid, level, string(key), e.stored)
	}
	return e.last
}

// prunePasses forgets what the virtual time has reached, everything of a priority
// without tasks, and then, if more than keep are left, what is least ahead.
func (c *core) prunePasses(b *batch, keep int) {
	p := &c.passes
	type ahead struct {
		level uint8
		key   string
		by    uint64
	}
	var left []ahead
	for level, keys := range p.levels {
		base := c.base(uint8(level))
		for key, e := range keys {
			if e.last > base && c.m.levels[level].fresh > 0 {
				left = append(left, ahead{uint8(level), key, max(e.last, base) - base})
				continue
			}
			delete(keys, key)
			p.n--
			if e.stored != 0 {
				b.deletePass(c.m.uid, uint8(level), key)
			}
		}
	}
	if len(left) <= keep {
		return
	}
	slices.SortFunc(left, func(a, b ahead) int {
		switch {
		case a.by < b.by:
			return -1
		case a.by > b.by:
			return 1
		}
		return 0
	})
	for _, a := range left[:len(left)-keep] {
		e := p.levels[a.level][a.key]
		p.remember(a.level, a.key, e.last)
		delete(p.levels[a.level], a.key)
		p.n--
		if e.stored != 0 { // its row is of use until the virtual time reaches it
			p.stale = append(p.stale, staleRow{a.level, a.key})
		}
	}
}

// sweepPasses drops rows that are of no use, some at a time.
func (c *core) sweepPasses() {
	p := &c.passes
	if p.n > 0 {
		c.prunePasses(c.open(), p.limit)
	}
	n := min(len(p.stale), sweepRows)
	for _, s := range p.stale[:n] {
		if p.get(s.level, []byte(s.key)) == nil && p.estimate(s.level, s.key) <= c.base(s.level) {
			c.open().deletePass(c.m.uid, s.level, s.key)
		} else if p.get(s.level, []byte(s.key)) == nil {
			p.stale = append(p.stale, s)
		}
	}
	p.stale = p.stale[n:]
}

func appendPassKey(b []byte, uid uint64, level uint8, key string) []byte {
	b = binary.BigEndian.AppendUint64(b, uid)
	b = append(b, level)
	return append(b, key...)
}

// storedPass is a row of the space passes.
type storedPass struct {
	level uint8
	key   string
	pass  uint64
}

// readPasses reads what a partition's earlier owners have written of keys.
func readPasses(v view, uid uint64) (out []storedPass, err error) {
	var bad error
	err = v.Scan(spacePasses, binary.BigEndian.AppendUint64(nil, uid), uidEnd(uid), false, func(key, value []byte) bool {
		r := reader{b: value}
		version, pass := r.byte(), r.uvarint()
		if bad = r.end("pass"); bad != nil {
			return false
		}
		if version != rowVersion || len(key) < 9 || key[8] == 0 || key[8] > maxLevel {
			bad = corrupt("pass")
			return false
		}
		out = append(out, storedPass{key[8], string(key[9:]), pass})
		return true
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// load takes over what an earlier owner has written. What it had handed out is not
// known better than that.
func (p *passBook) load(limit int, rows []storedPass, base func(level uint8) uint64) {
	p.limit = limit
	slices.SortFunc(rows, func(a, b storedPass) int { // those that are furthest ahead first
		x, y := a.pass-min(a.pass, base(a.level)), b.pass-min(b.pass, base(b.level))
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, r := range rows {
		switch {
		case r.pass <= base(r.level):
			p.stale = append(p.stale, staleRow{r.level, r.key})
		case p.n < limit*3/4:
			p.set(r.level, r.key, &passEntry{last: r.pass, stored: r.pass})
		default:
			p.remember(r.level, r.key, r.pass)
			p.stale = append(p.stale, staleRow{r.level, r.key})
		}
	}
}
