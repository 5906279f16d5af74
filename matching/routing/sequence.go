package routing

import "sync/atomic"

// Sequence hands out numbers that stand in for random bits where many choices are to
// come out even: each prefix of it is spread over all 64 bits almost as evenly as can
// be, so partitions chosen by it get their shares with far smaller deviations than by
// chance. All methods may be called from any goroutine.
//
// Source: the additive recurrence with the golden ratio (Weyl; Knuth, The Art of
// Computer Programming 3, 6.4).
type Sequence struct{ last atomic.Uint64 }

// NewSequence begins at a random place, so that several clients are not in step.
func NewSequence(random uint64) *Sequence {
	s := &Sequence{}
	s.last.Store(random)
	return s
}

// Next returns the next number.
func (s *Sequence) Next() uint64 { return s.last.Add(0x9e3779b97f4a7c15) }
