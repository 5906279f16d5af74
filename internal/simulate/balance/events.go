package balance

import "time"

// events is a queue of things to happen, by time and then in the order of
// planning.
type events struct {
	now  time.Duration
	seq  uint64
	heap []event
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// after plans do; a negative wait counts as 0.
func (q *events) after(wait time.Duration, do func()) {
	q.seq++
	q.heap = append(q.heap, event{q.now + max(wait, 0), q.seq, do})
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

// run does everything up to a time.
func (q *events) run(until time.Duration) {
	for len(q.heap) > 0 && q.heap[0].at <= until {
		first := q.heap[0]
		last := len(q.heap) - 1
		q.heap[0] = q.heap[last]
		q.heap[last] = event{}
		q.heap = q.heap[:last]
		q.sink()
		q.now = first.at
		first.do()
	}
	q.now = max(q.now, until)
}

func (q *events) sink() {
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
