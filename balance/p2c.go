package balance

import "time"

// p2c draws two entries and takes the better. With equal weights the two are
// always distinct; with unequal ones a second draw that hits the same entry is
// repeated a few times, so that shares stay close to the weights.
type p2c struct {
	b     *Balancer
	list  []entry
	alias alias // only if not even
	even  bool
}

const redraws = 5

func (b *Balancer) newP2C(nodes []*Node) distributor {
	d := &p2c{b: b, list: make([]entry, len(nodes)), even: true}
	weights := make([]float64, len(nodes))
	for i, n := range nodes {
		d.list[i] = b.newEntry(n, n.weight)
		weights[i] = n.weight
		d.even = d.even && n.weight == nodes[0].weight
	}
	if !d.even {
		d.alias = newAlias(weights)
	}
	return d
}

func (d *p2c) entries() []entry { return d.list }

func (d *p2c) draw(now time.Duration) *Node {
	if len(d.list) == 1 {
		return d.list[0].node
	}
	if d.even {
		i, j := twoOf(uint32(len(d.list)), d.b.config.Rand())
		return d.b.better(&d.list[i], &d.list[j], now, true)
	}
	i, j := twoByWeight(&d.alias, d.b.config.Rand)
	return d.b.better(&d.list[i], &d.list[j], now, false)
}

// twoOf returns two distinct numbers below n, which must be at least 2, uniformly.
func twoOf(n uint32, bits uint64) (i, j uint32) {
	i = uint32((bits >> 32) * uint64(n) >> 32)
	j = uint32((bits & (1<<32 - 1)) * uint64(n-1) >> 32)
	if j >= i {
		j++
	}
	return i, j
}

// twoByWeight returns two indexes, distinct unless chance will not have it.
func twoByWeight(a *alias, rand Rand) (i, j int) {
	bits := rand()
	i, j = a.draw(uint32(bits>>32)), a.draw(uint32(bits))
	for tries := 0; j == i && tries < redraws; tries++ {
		j = a.draw(uint32(rand() >> 32))
	}
	return i, j
}

// better chooses between two drawn entries: the better status, then the lower
// load for the weight, then the first. even says that weights do not matter.
func (b *Balancer) better(x, y *entry, now time.Duration, even bool) *Node {
	wx, wy := x.node.word.Load(), y.node.word.Load()
	if (wx|wy)&loadMask == 0 {
		x.node.zero.Add(1)
	}
	if even && !b.ewma && b.bias == 0 {
		if wy>>loadShift < wx>>loadShift {
			return y.node
		}
		return x.node
	}
	if sx, sy := wx>>statusShift, wy>>statusShift; sx != sy {
		if sy < sx {
			return y.node
		}
		return x.node
	}
	if b.score(y, wy, now) < b.score(x, wx, now) {
		return y.node
	}
	return x.node
}
