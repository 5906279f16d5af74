package retry

import "time"

// budgetSlices is how many pieces a budget's time to live is cut into.
const budgetSlices = 10

// slidingSum adds up what was recorded within the last ten slices. A slice ends
// with the first call after its time is over, so sparse calls stretch it. It is
// Finagle's sum and may be negative.
type slidingSum struct {
	slice   time.Duration
	started time.Duration // of the current slice
	current int64
	past    [budgetSlices - 1]int64
	next    int // place in past of the next slice that ends
}

func (s *slidingSum) advance(now time.Duration) {
	passed := now - s.started
	if passed < s.slice { // also when the clock went backwards
		return
	}
	s.started = now
	for n := min(int64(passed/s.slice), budgetSlices); n > 0; n-- {
		s.past[s.next] = s.current
		s.current = 0
		s.next = (s.next + 1) % len(s.past)
	}
}

func (s *slidingSum) add(tokens int64) { s.current += tokens }

func (s *slidingSum) sum() int64 {
	total := s.current
	for _, v := range s.past {
		total += v
	}
	return total
}

// purse holds tokens that live for ten slices. What is spent is taken from the
// oldest first, so it never holds less than nothing: tokens that expire were not
// spent.
type purse struct {
	slice   time.Duration
	started time.Duration
	held    [budgetSlices]int64 // a ring; newest is the current slice
	newest  int
	total   int64
}

func (p *purse) advance(now time.Duration) {
	passed := now - p.started
	if passed < p.slice {
		return
	}
	n := int64(passed / p.slice)
	p.started += time.Duration(n) * p.slice
	for n = min(n, budgetSlices); n > 0; n-- {
		p.newest = (p.newest + 1) % budgetSlices
		p.total -= p.held[p.newest]
		p.held[p.newest] = 0
	}
}

func (p *purse) add(tokens int64) {
	p.held[p.newest] += tokens
	p.total += tokens
}

// spend takes up to tokens and returns how many are missing.
func (p *purse) spend(tokens int64) (missing int64) {
	for i := 1; i <= budgetSlices && tokens > 0; i++ {
		at := (p.newest + i) % budgetSlices
		got := min(p.held[at], tokens)
		p.held[at] -= got
		p.total -= got
		tokens -= got
	}
	return tokens
}

// bucket fills with time up to a limit.
type bucket struct {
	perSecond, limit int64
	tokens           float64
	filled           time.Duration
}

func (b *bucket) advance(now time.Duration) {
	if passed := now - b.filled; passed > 0 {
		b.tokens = min(b.tokens+passed.Seconds()*float64(b.perSecond), float64(b.limit))
		b.filled = now
	}
}
