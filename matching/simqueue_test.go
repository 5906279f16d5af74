package matching

import (
	"container/heap"
	"testing"
	"time"
)

// clock is a virtual clock for tests.
type clock struct {
	now    int64
	seq    int
	events clockEvents
}

type clockEvent struct {
	at  int64
	seq int
	do  func()
}

type clockEvents []clockEvent

func (e clockEvents) Len() int { return len(e) }
func (e clockEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e clockEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *clockEvents) Push(x any)   { *e = append(*e, x.(clockEvent)) }
func (e *clockEvents) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func (c *clock) after(d time.Duration, do func()) {
	c.seq++
	heap.Push(&c.events, clockEvent{c.now + int64(max(d, 0)), c.seq, do})
}

func (c *clock) run(until int64, stop func() bool) {
	for len(c.events) > 0 && c.events[0].at <= until && !stop() {
		e := heap.Pop(&c.events).(clockEvent)
		c.now = e.at
		e.do()
	}
}

// One worker at a partition without tasks gets those of all others, and nothing is
// left or comes twice.
func TestSimQueue_oneWorkerEmptiesAllPartitions(t *testing.T) {
	c := &clock{now: int64(time.Hour)}
	q, err := NewSimQueue(SimOptions{Partitions: 30, Write: time.Millisecond, Hop: 200 * time.Microsecond, Seed: 1,
		Now: func() int64 { return c.now }, After: c.after})
	if err != nil {
		t.Fatal(err)
	}
	for p := range int32(30) {
		q.Add(p, 20)
	}
	done, empty := 0, 0
	var poll func()
	poll = func() {
		q.Poll(7, 10*time.Second, func(task *SimTask) {
			if task == nil {
				empty++
			} else {
				done++
				q.Complete(task)
			}
			c.after(0, poll)
		})
	}
	poll()
	c.run(c.now+int64(10*time.Minute), func() bool { return done == 600 })
	if done != 600 {
		t.Fatalf("%d of 600 tasks were done, %d polls came back empty", done, empty)
	}
	c.run(c.now+int64(time.Minute), func() bool { return false })
	for p := range int32(30) {
		if q.Left(p) != 0 || q.Backlog(p) != 0 || q.Age(p) != 0 {
			t.Errorf("partition %d has %d tasks left", p, q.Left(p))
		}
	}
	if done != 600 {
		t.Errorf("%d tasks were done in the end", done)
	}
}

func TestNewSimQueue_refusesCountsThatCannotBe(t *testing.T) {
	for _, n := range []int{0, -1, MaxPartitions + 1} {
		if _, err := NewSimQueue(SimOptions{Partitions: n}); err == nil {
			t.Errorf("%d partitions were taken", n)
		}
	}
}
