package events

import (
	"slices"
	"testing"
	"time"
)

func TestQueue_runsByTimeThenByPlan(t *testing.T) {
	var q Queue
	var got []int
	note := func(n int) func() { return func() { got = append(got, n) } }
	for _, n := range []int{5, 3, 9, 1} {
		q.After(time.Duration(n), note(n))
	}
	q.After(3, note(33))
	q.After(-1, func() { q.After(2, note(2)) })
	q.Run(5)
	if want := []int{1, 2, 3, 33, 5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if q.Now != 5 {
		t.Errorf("it is %d, want 5", q.Now)
	}
	q.RunWhile(100, func() bool { return false })
	if q.Now != 5 || len(got) != 5 {
		t.Errorf("at %d %v happened though nothing should", q.Now, got)
	}
	q.Run(100)
	if q.Now != 100 || len(got) != 6 {
		t.Errorf("at %d: %v", q.Now, got)
	}
}
