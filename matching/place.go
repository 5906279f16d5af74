package matching

import "math"

// place is where a fresh task stands in the backlog: by priority, then by pass, then
// by sequence number.
type place struct {
	level     uint8
	pass, seq uint64
}

func (p place) before(q place) bool {
	if p.level != q.level {
		return p.level < q.level
	}
	if p.pass != q.pass {
		return p.pass < q.pass
	}
	return p.seq < q.seq
}

func (p place) compare(q place) int {
	switch {
	case p.before(q):
		return -1
	case q.before(p):
		return 1
	}
	return 0
}

func (l location) place(seq uint64) place { return place{l.level, l.pass, seq} }

// endPlace is behind all places.
var endPlace = place{level: math.MaxUint8}

// Virtual time. A task of weight 1 takes unitPass of it, one of weight w the w-th part.
const (
	unitPass  = 1000
	minWeight = 0.001
)

// increment is the virtual time that a task of a weight takes.
func increment(weight float64) uint64 {
	if !(weight >= minWeight) {
		weight = minWeight
	}
	return max(1, uint64(unitPass/weight+0.5))
}
