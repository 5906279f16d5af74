package balance

import (
	"math"
	"time"
)

// Peak EWMA without a lock: a cost c that was observed at t and decays to
// c·exp(-(now-t)/decay) is kept as the one number L = ln c + t/decay, so that
// cost(now) = exp(L - now/decay) at any time. Two nodes are compared by L + ln(outstanding+1):
// the time falls out, and neither a clock nor exp is needed to choose.
//
// The bits 0 stand for "no history".

// noHistoryCost is the cost in ns of a node that has requests but no answer yet:
// so much that it is asked once and then left alone until it answers.
const noHistoryCost = math.MaxInt64 >> 16

var logs = func() (t [256]float64) {
	for i := range t {
		t[i] = math.Log(float64(i))
	}
	return t
}()

func logOf(n int) float64 {
	if n < len(logs) {
		return logs[n]
	}
	return math.Log(float64(n))
}

// entry is a node in a distributor. adj carries its weight there: a factor 1/weight
// for LeastLoaded, a summand -ln(weight) for PeakEWMA.
type entry struct {
	node   *Node
	weight float64
	adj    float64
}

func (b *Balancer) newEntry(n *Node, weight float64) entry {
	e := entry{node: n, weight: weight}
	if b.ewma {
		e.adj = -math.Log(weight)
	} else {
		e.adj = 1 / weight
	}
	return e
}

// score is the load that decides between two nodes of equal status: lower is
// better. For PeakEWMA it is a logarithm, plus now/decay.
func (b *Balancer) score(e *entry, w uint64, now time.Duration) float64 {
	n, out := e.node, wordLoad(w)
	if !b.ewma {
		load := float64(out)
		if b.bias > 0 {
			if f := n.failures(now, b.tau); f > 0 {
				load = (load+1)*math.Exp(-b.bias*math.Log1p(-f)) - 1
			}
		}
		return load * e.adj
	}
	var s float64
	switch bits := n.cost.Load(); {
	case bits != 0:
		s = math.Float64frombits(bits) + logOf(out+1)
	case out == 0:
		return math.Inf(-1)
	default:
		s = math.Log(float64(noHistoryCost+out)) + float64(now)/b.tau
	}
	if b.readsDecay {
		latest(&n.stamp, now)
	}
	if b.bias > 0 {
		if f := n.failures(now, b.tau); f > 0 {
			s -= b.bias * math.Log1p(-f)
		}
	}
	return s + e.adj
}

// observeLatency takes an answer into the node's cost.
func (n *Node) observeLatency(latency, now time.Duration, tau float64) {
	x := math.Max(float64(latency), 1)
	since := latest(&n.stamp, now)
	t := float64(n.stamp.Load()) / tau // = now, unless the clock went backwards
	for {
		bits := n.cost.Load()
		cost := 0.0
		if bits != 0 {
			cost = math.Exp(math.Float64frombits(bits) - t)
		}
		if x <= cost {
			w := math.Exp(-float64(since) / tau)
			cost = x*(1-w) + cost
			// cost has decayed by w already, since it is read as of now.
		} else {
			cost = x
		}
		next := math.Float64bits(math.Log(cost) + t)
		if next == 0 {
			next = 1
		}
		if n.cost.CompareAndSwap(bits, next) {
			return
		}
	}
}

// latency returns the node's cost at now, 0 without history.
func (n *Node) latency(now time.Duration, tau float64) time.Duration {
	bits := n.cost.Load()
	if bits == 0 {
		return 0
	}
	cost := math.Exp(math.Float64frombits(bits) - math.Max(float64(now), float64(n.stamp.Load()))/tau)
	return time.Duration(math.Min(cost, math.MaxInt64/2))
}

// Recent failures, for SuccessBias: each result moves the share of failures an
// eighth of the way, and time alone lets it decay.
const (
	failureStep = 1.0 / 8
	failureCap  = 0.99
	failureZero = 1e-3
)

func (n *Node) failures(now time.Duration, tau float64) float64 {
	bits := n.failing.Load()
	if bits == 0 {
		return 0
	}
	f := math.Float64frombits(bits)
	if since := int64(now) - n.failStamp.Load(); since > 0 {
		f *= math.Exp(-float64(since) / tau)
	}
	return f
}

func (n *Node) observeResult(failed bool, now time.Duration, tau float64) {
	if !failed && n.failing.Load() == 0 {
		return
	}
	for {
		bits := n.failing.Load()
		f := n.failures(now, tau)
		if failed {
			f = math.Min(f+failureStep*(1-f), failureCap)
		} else if f *= 1 - failureStep; f < failureZero {
			f = 0
		}
		if n.failing.CompareAndSwap(bits, math.Float64bits(f)) {
			latest(&n.failStamp, now)
			return
		}
	}
}
