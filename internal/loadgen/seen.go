package loadgen

import "sync"

// seenSet is a set of numbers that are dense from 1 on; empty when zero.
type seenSet struct {
	mu   sync.Mutex
	bits []uint64
}

// add returns false when the set had the number already.
func (s *seenSet) add(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uint64(len(s.bits)) <= n/64 {
		s.bits = append(s.bits, 0)
	}
	word, bit := &s.bits[n/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
