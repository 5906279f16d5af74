package balance

import (
	"math"
	"testing"
)

func TestStats_followEachStep(t *testing.T) {
	b, _ := newTest(t, Config{}, 0)
	check := func(step string, size, open, outstanding int, adds, removes uint64) {
		t.Helper()
		s := b.Stats()
		if s.Size != size || s.Open != open || s.Outstanding != outstanding || s.Adds != adds || s.Removes != removes {
			t.Errorf("%s: %+v", step, s)
		}
	}
	check("empty", 0, 0, 0, 0, 0)
	update(t, b, endpoints(2))
	check("two added", 2, 2, 0, 2, 0)
	p := pick(t, b)
	check("one request", 2, 2, 1, 2, 0)
	b.Nodes()[0].SetStatus(Busy)
	check("one busy", 2, 1, 1, 2, 0)
	b.Nodes()[0].SetStatus(Open)
	p.Done(Success)
	check("request ended", 2, 2, 0, 2, 0)
	update(t, b, endpoints(1))
	check("one removed", 1, 1, 0, 2, 1)
}

// The share of picks that panic is u^(2·mode).
func TestPanic_shareByMode(t *testing.T) {
	for mode := PanicAt10Percent; mode <= PanicAtMajority; mode++ {
		for percent := 10; percent <= 100; percent += 10 {
			b, _ := newTest(t, Config{Panic: mode}, 100)
			for _, n := range b.Nodes()[:percent] {
				n.SetStatus(Closed)
			}
			const requests = 20_000
			hold(t, b, nil, requests)
			want := math.Pow(float64(percent)/100, 2*float64(mode))
			if got := float64(b.Stats().Panicked) / requests; math.Abs(got-want) > 0.012 {
				t.Errorf("mode %d, %d %% closed: %.3f of picks panicked, want %.3f", mode, percent, got, want)
			}
		}
	}
	b, _ := newTest(t, Config{}, 2)
	if b.Stats().Panic != PanicAt50Percent {
		t.Errorf("default mode %d", b.Stats().Panic)
	}
	always, _ := newTest(t, Config{Panic: PanicAlways}, 2)
	always.Nodes()[0].SetStatus(Closed)
	always.Nodes()[1].SetStatus(Closed)
	pick(t, always)
	if always.Stats().Panicked != 1 {
		t.Error("PanicAlways did not count")
	}
}

func TestStatus_isTheBestOfTheNodes(t *testing.T) {
	for _, c := range []struct {
		nodes []Status
		want  Status
	}{
		{nil, Closed},
		{[]Status{Closed, Closed}, Closed},
		{[]Status{Closed, Busy}, Busy},
		{[]Status{Busy, Open, Closed}, Open},
	} {
		b, _ := newTest(t, Config{}, len(c.nodes))
		for i, s := range c.nodes {
			b.Nodes()[i].SetStatus(s)
		}
		if got := b.Status(); got != c.want {
			t.Errorf("%v: %v, want %v", c.nodes, got, c.want)
		}
	}
}
