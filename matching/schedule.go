package matching

import (
	"container/heap"
	"slices"
)

// upcomingTask is a row of the schedule, held in memory without its body.
type upcomingTask struct {
	at    int64
	seq   uint64
	batch uint64 // the batch that writes the row; 0 if it was read
	gone  bool
	scheduled
}

// scheduleIndex holds the earliest rows of the schedule. Rows later than its
// horizon are only in the store.
type scheduleIndex struct {
	heap  upcomingHeap
	live  int
	limit int
	whole bool // no row is only in the store
	// The horizon: rows up to it, inclusive, are in memory.
	horizonAt  int64
	horizonSeq uint64
	reading    bool
	// late holds rows beyond the horizon that a running or the next read might
	// miss because their batch was not durable when it began.
	late      []*upcomingTask
	durableTo uint64
	// After the horizon went back a read waits for the batch readAfter, so that it
	// does not find what was taken out before.
	readAfter uint64
}

// scheduleKey names a row of the schedule.
type scheduleKey struct {
	at  int64
	seq uint64
}

func (s *scheduleIndex) beyond(at int64, seq uint64) bool {
	if s.whole {
		return false
	}
	return at > s.horizonAt || at == s.horizonAt && seq > s.horizonSeq
}

// add takes a row that the open batch writes.
func (s *scheduleIndex) add(u *upcomingTask) {
	if s.beyond(u.at, u.seq) {
		s.late = append(s.late, u)
		return
	}
	s.push(u)
	s.shrink(u.batch)
}

func (s *scheduleIndex) push(u *upcomingTask) {
	heap.Push(&s.heap, u)
	s.live++
}

// shrink leaves the later half to the store when there is too much. Not during a
// read, which goes on from the horizon as it was. batch is the newest one.
func (s *scheduleIndex) shrink(batch uint64) {
	if s.live <= 2*s.limit || s.reading {
		return
	}
	kept := s.heap[:0]
	for _, u := range s.heap {
		if !u.gone {
			kept = append(kept, u)
		}
	}
	clear(s.heap[len(kept):])
	slices.SortFunc(kept, compareUpcoming)
	last := kept[s.limit-1]
	s.whole, s.horizonAt, s.horizonSeq = false, last.at, last.seq
	s.readAfter = batch
	for _, u := range kept[s.limit:] {
		if u.batch > s.durableTo {
			s.late = append(s.late, u)
		}
	}
	clear(kept[s.limit:])
	s.heap = kept[:s.limit] // sorted, so it is a heap
	s.live = s.limit
}

// durable notes that all batches up to number are durable: a read that begins
// from now on sees their rows.
func (s *scheduleIndex) durable(number uint64) {
	s.durableTo = max(s.durableTo, number)
	if !s.reading {
		s.late = slices.DeleteFunc(s.late, func(u *upcomingTask) bool { return u.gone || u.batch <= s.durableTo })
	}
}

// wantsRead says whether to read on; idle says that all batches are durable.
func (s *scheduleIndex) wantsRead(idle bool) bool {
	return !s.whole && !s.reading && s.live < s.limit/2 && (idle || s.readAfter <= s.durableTo)
}

// mayBeDue says whether there may be a row that is due.
func (s *scheduleIndex) mayBeDue(now int64) bool {
	if at, ok := s.first(); ok && at <= now {
		return true
	}
	return !s.whole && (s.reading || s.live == 0) && s.horizonAt <= now
}

// readSchedule asks for rows of the schedule after a key.
type readSchedule struct {
	afterAt  int64
	afterSeq uint64
	limit    int
}

// scheduleRows answers readSchedule; whole says that there are no more.
type scheduleRows struct {
	rows  []*upcomingTask
	whole bool
}

// got takes what a read found, less what is not to come from there. batch is the
// newest one.
func (s *scheduleIndex) got(r scheduleRows, batch uint64, skip func(scheduleKey) bool) {
	s.reading = false
	seen := make(map[uint64]struct{}, len(r.rows))
	for _, u := range r.rows {
		seen[u.seq] = struct{}{}
		s.horizonAt, s.horizonSeq = u.at, u.seq
	}
	if r.whole {
		s.whole = true
	}
	late := s.late
	s.late = nil
	for _, u := range r.rows {
		if !skip(scheduleKey{u.at, u.seq}) {
			s.push(u)
		}
	}
	for _, u := range late {
		if u.gone {
			continue
		}
		if _, dup := seen[u.seq]; dup {
			continue
		}
		if s.beyond(u.at, u.seq) {
			if u.batch > s.durableTo {
				s.late = append(s.late, u)
			}
			continue
		}
		s.push(u)
	}
	s.shrink(batch)
}

// first is the earliest time in memory.
func (s *scheduleIndex) first() (int64, bool) {
	s.trim()
	if len(s.heap) == 0 {
		return 0, false
	}
	return s.heap[0].at, true
}

func (s *scheduleIndex) trim() {
	for len(s.heap) > 0 && s.heap[0].gone {
		heap.Pop(&s.heap)
	}
}

// popDue returns the earliest row if it is due and durable.
func (s *scheduleIndex) popDue(now int64) *upcomingTask {
	s.trim()
	if len(s.heap) == 0 || s.heap[0].at > now || s.heap[0].batch > s.durableTo {
		return nil
	}
	s.live--
	return heap.Pop(&s.heap).(*upcomingTask)
}

// remove takes the row of a task out of memory; nil if it isn't there.
func (s *scheduleIndex) remove(at int64, seq uint64) *upcomingTask {
	if !s.beyond(at, seq) {
		for _, u := range s.heap {
			if u.seq == seq && !u.gone {
				u.gone = true
				s.live--
				return u
			}
		}
	}
	for _, u := range s.late {
		if u.seq == seq {
			u.gone = true // a read may see its row all the same
		}
	}
	return nil
}

func compareUpcoming(a, b *upcomingTask) int {
	switch {
	case a.at != b.at:
		if a.at < b.at {
			return -1
		}
		return 1
	case a.seq < b.seq:
		return -1
	case a.seq > b.seq:
		return 1
	}
	return 0
}

type upcomingHeap []*upcomingTask

func (h upcomingHeap) Len() int           { return len(h) }
func (h upcomingHeap) Less(i, j int) bool { return compareUpcoming(h[i], h[j]) < 0 }
func (h upcomingHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *upcomingHeap) Push(x any)        { *h = append(*h, x.(*upcomingTask)) }
func (h *upcomingHeap) Pop() any {
	old := *h
	u := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return u
}
