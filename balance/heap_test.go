package balance

import (
	"slices"
	"testing"
)

func TestHeap_scenarios(t *testing.T) {
	loads := func(b *Balancer) (out []int) {
		for _, n := range b.Nodes() {
			out = append(out, n.Load())
		}
		return out
	}
	all := func(b *Balancer, want int, but ...int) {
		t.Helper()
		for i, n := range b.Nodes() {
			if n.Load() != want && !slices.Contains(but, i) {
				t.Fatalf("loads %v, want %d each", loads(b), want)
			}
		}
	}
	const n = 10
	b, _ := newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	all(b, 1)
	held := hold(t, b, nil, n)
	all(b, 2)
	held[3].Done(Success)
	if p := pick(t, b); p.Node() != held[3].Node() {
		t.Error("the node whose request ended is not the next")
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	b.Nodes()[1].SetStatus(Closed)
	b.Nodes()[4].SetStatus(Closed)
	hold(t, b, nil, 2*(n-2))
	all(b, 3, 1, 4)
	if l := loads(b); l[1] != 1 || l[4] != 1 {
		t.Errorf("closed nodes got requests: %v", l)
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	for _, x := range b.Nodes() {
		x.SetStatus(Closed)
	}
	hold(t, b, nil, 100*n)
	all(b, 101)
	b.Nodes()[5].SetStatus(Open)
	hold(t, b, nil, 100)
	all(b, 101, 5)
	if got := b.Nodes()[5].Load(); got != 201 {
		t.Errorf("the only open node has %d, want 201", got)
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, 2)
	hold(t, b, nil, 4)
	b.Nodes()[0].SetStatus(Closed)
	b.Nodes()[1].SetStatus(Closed)
	hold(t, b, nil, 1000)
	all(b, 502)
	b.Nodes()[0].SetStatus(Open)
	hold(t, b, nil, 1000)
	if l := loads(b); l[0] != 1502 || l[1] != 502 {
		t.Errorf("loads %v, want 1502 and 502", l)
	}
	other := b.Nodes()[1]
	update(t, b, endpoints(2)[1:])
	hold(t, b, nil, 1000)
	if other.Load() != 1502 {
		t.Errorf("load %d, want 1502", other.Load())
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	held = hold(t, b, nil, 2*n)
	update(t, b, endpoints(n+1))
	for range 2 {
		if p := pick(t, b); p.Node() != b.Nodes()[n] {
			t.Error("the new node is not next")
		}
	}
	update(t, b, endpoints(n + 1)[1:])
	for _, p := range held {
		p.Done(Success)
	}
	for i, x := range b.Nodes() {
		if want := map[bool]int{true: 2}[i == n-1]; x.Load() != want || int(x.heap.load) != want {
			t.Errorf("node %d has %d (heap: %d), want %d", i, x.Load(), x.heap.load, want)
		}
	}

	counter := uint64(0)
	b, _ = newTest(t, Config{Policy: Heap{}, Rand: func() uint64 { counter++; return counter << 63 }}, 2)
	for range 100 {
		pick(t, b).Done(Success)
	}
	if s := b.NodeStats(); s[0].Results[Success] != 50 || s[1].Results[Success] != 50 {
		t.Errorf("sequential requests over two idle servers: %v, %v", s[0].Results, s[1].Results)
	}
}

// The heap's order holds after any sequence of operations.
func FuzzHeap(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 250, 251, 5, 6, 252, 7})
	f.Fuzz(func(t *testing.T, ops []byte) {
		b, _ := newTest(t, Config{Policy: Heap{}}, 6)
		var held []Pick
		for _, op := range ops {
			switch {
			case op < 120:
				p := pick(t, b)
				for _, n := range b.Nodes() {
					if n.Status() == Open && p.Node().Status() != Open || (n.Status() == Open) == (p.Node().Status() == Open) && n.weight == p.Node().weight && n.Load() < p.Node().Load()-1 {
						t.Fatalf("chose %s with %d while %s had %d", p.Address(), p.Node().Load()-1, n.Address(), n.Load())
					}
				}
				held = append(held, p)
			case op < 200 && len(held) > 0:
				i := int(op) % len(held)
				held[i].Done(Success)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			case op < 230:
				b.Nodes()[int(op)%len(b.Nodes())].SetStatus(Status(op % 3))
			default:
				list := endpoints(8)[op%3 : 5+op%4]
				list[0].Weight = float64(1 + op%2)
				update(t, b, list)
			}
			for _, n := range b.Nodes() {
				if int(n.heap.load) != n.Load() || n.heap.in.nodes[n.heap.pos] != n {
					t.Fatalf("%s: heap load %d, load %d", n.Address(), n.heap.load, n.Load())
				}
			}
		}
	})
}
