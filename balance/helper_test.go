package balance

import (
	"math"
	"testing"
)

// The scenarios here are those of Finagle's own suite. R requests, of which
// most are held: their load accumulates.
const (
	scenarioServers  = 100
	scenarioRequests = 100_000
	epsilon          = 0.0001 * scenarioRequests
)

// meter averages each node's load over all its changes.
type meter struct {
	sum, changes map[*Node]float64
}

func newMeter() *meter { return &meter{map[*Node]float64{}, map[*Node]float64{}} }

func (m *meter) change(n *Node) {
	m.sum[n] += float64(n.Load())
	m.changes[n]++
}

func (m *meter) mean(n *Node) float64 { return m.sum[n] / math.Max(m.changes[n], 1) }

// even checks that mean loads are within e of the first one's.
func (m *meter) even(t *testing.T, nodes []*Node, e float64) {
	t.Helper()
	for _, n := range nodes {
		if d := math.Abs(m.mean(n) - m.mean(nodes[0])); d > e {
			t.Fatalf("%s has a mean load of %.1f, %s of %.1f: more than %v apart", n.Address(), m.mean(n), nodes[0].Address(), m.mean(nodes[0]), e)
		}
	}
}

func hold(t *testing.T, b *Balancer, m *meter, requests int) []Pick {
	t.Helper()
	picks := make([]Pick, requests)
	for i := range picks {
		picks[i] = pick(t, b)
		if m != nil {
			m.change(picks[i].Node())
		}
	}
	return picks
}

func used(b *Balancer) (out []int) {
	for i, s := range b.NodeStats() {
		if s.Results[Success]+uint64(s.Outstanding) > 0 {
			out = append(out, i)
		}
	}
	return out
}

func sequential(t *testing.T, b *Balancer, n int) {
	t.Helper()
	for range n {
		pick(t, b).Done(Success)
	}
}

func (b *Balancer) setSize(k int) { b.band.size.Store(int64(k)) }
