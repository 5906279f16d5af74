package balance

import (
	"errors"
	"math"
)

// ring is the deterministic aperture. The endpoints lie end to end on a circle of
// length 1, each as long as its share of the weight, in an order that all clients
// agree on. Of t clients, client i takes the part that starts at i/t and is a whole
// number of 1/t long, the same number for all. So every point of the circle, and
// every endpoint, is covered by the same number of clients. An endpoint at the
// edge belongs to the part in proportion to the overlap, and gets requests so.
type ring struct {
	p2c       // of the part; the weight of an entry is its overlap, times the number of endpoints
	n     int // endpoints on the whole ring
	total int // clients
	least int // laps that the minimum needs
	laps  int
	width float64
}

// defaultRingMin is how many endpoints a client covers at least: enough that two
// choices respect fractions and that they are rarely all unhealthy.
const defaultRingMin = 12

// sliver is the part of an endpoint below which an overlap is a rounding error.
const sliver = 1e-9

func (b *Balancer) newRing(a Aperture) distributor {
	n := len(b.ordered)
	least := a.Min
	if least <= 1 {
		least = defaultRingMin
	}
	d := &ring{p2c: p2c{b: b, even: true}, n: n, total: b.peer.Total, least: leastLaps(least, n, b.peer.Total)}
	d.laps = d.least + int(b.band.extra.Load())
	weights := make([]float64, n)
	for i, node := range b.ordered {
		weights[i] = node.weight
	}
	overlaps, err := overlaps(weights, b.peer, d.laps)
	if err != nil {
		panic("balance: weights were checked: " + err.Error())
	}
	d.width = math.Min(1, float64(d.laps)/float64(d.total))
	var inside []float64
	for i, o := range overlaps {
		if o <= 0 {
			continue
		}
		o *= float64(n)
		d.list = append(d.list, b.newEntry(b.ordered[i], o))
		inside = append(inside, o)
		d.even = d.even && math.Abs(o-inside[0]) < 1e-6
	}
	if !d.even {
		d.alias = newAlias(inside)
	}
	return d
}

// leastLaps is how many units of 1/clients give at least m of the n endpoints.
func leastLaps(m, n, clients int) int {
	m = min(m, n)
	return min((m*clients+n-1)/n, clients)
}

// overlaps returns how much of each endpoint, as a part of the ring, a client
// covers with so many laps. Weights are of any sum; all 0 counts as equal; below 0
// is an error.
func overlaps(weights []float64, p Peer, laps int) ([]float64, error) {
	shares, err := normalise(weights)
	if err != nil {
		return nil, err
	}
	from := float64(p.ID) / float64(p.Total)
	to := float64(p.ID+laps) / float64(p.Total)
	out := make([]float64, len(weights))
	if laps >= p.Total {
		copy(out, shares)
		return out, nil
	}
	// Sums of many shares drift; where they are equal the place is known exactly.
	equal := true
	for _, w := range weights {
		equal = equal && w == weights[0]
	}
	n := float64(len(weights))
	sum := 0.0
	for i, share := range shares {
		a, b := sum, sum+share
		if equal {
			a, b = float64(i)/n, float64(i+1)/n
		}
		sum = b
		out[i] = math.Max(0, math.Min(b, to)-math.Max(a, from)) + math.Max(0, math.Min(b+1, to)-math.Max(a+1, from))
		if out[i] < sliver*share {
			out[i] = 0
		}
	}
	return out, nil
}

func normalise(weights []float64) ([]float64, error) {
	sum := 0.0
	for _, w := range weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, errors.New("balance: a weight is below 0 or not a number")
		}
		sum += w
	}
	out := make([]float64, len(weights))
	for i, w := range weights {
		if sum == 0 {
			out[i] = 1 / float64(len(weights))
		} else {
			out[i] = w / sum
		}
	}
	return out, nil
}
