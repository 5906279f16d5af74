package events

import "time"

// Queue is a queue of things to happen, by time and then in the order of planning.
// The zero value begins at 0.
type Queue struct {
	// Now is the virtual time. Only Run changes it.
	Now time.Duration

	seq  uint64
	heap []event
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// After plans do; a negative wait counts as 0.
func (q *Queue) After(wait time.Duration, do func()) {
	q.seq++
	q.heap = append(q.heap, event{q.Now + max(wait, 0), q.seq, do})
	i := len(q.heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !q.heap[i].before(&q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// Run does everything up to a time.
func (q *Queue) Run(until time.Duration) { q.RunWhile(until, nil) }

// RunWhile is Run that ends early when more, asked between two things, says no.
func (q *Queue) RunWhile(until time.Duration, more func() bool) {
	for len(q.heap) > 0 && q.heap[0].at <= until {
		if more != nil && !more() {
			return
		}
		first := q.heap[0]
		last := len(q.heap) - 1
		q.heap[0] = q.heap[last]
		q.heap[last] = event{}
		q.heap = q.heap[:last]
		q.sink()
		q.Now = first.at
		first.do()
	}
	q.Now = max(q.Now, until)
}

func (q *Queue) sink() {
	i := 0
	for {
		least := i
		for c := 4*i + 1; c <= 4*i+4 && c < len(q.heap); c++ {
			if q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
