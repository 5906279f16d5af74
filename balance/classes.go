package balance

import (
	"slices"
	"time"
)

// classes share requests among groups of equal weight in proportion to weight
// times members; within a group its own distributor chooses.
type classes struct {
	b     *Balancer
	list  []distributor
	alias alias
	all   []entry
}

// byClass builds one distributor per weight, or just one if all weights are equal.
func (b *Balancer) byClass(build func([]*Node) distributor) distributor {
	groups := map[float64][]*Node{}
	for _, n := range b.nodes {
		groups[n.weight] = append(groups[n.weight], n)
	}
	if len(groups) == 1 {
		return build(b.nodes)
	}
	weights := make([]float64, 0, len(groups))
	for w := range groups {
		weights = append(weights, w)
	}
	slices.Sort(weights)
	d := &classes{b: b}
	masses := make([]float64, len(weights))
	for i, w := range weights {
		masses[i] = w * float64(len(groups[w]))
		sub := build(groups[w])
		d.list = append(d.list, sub)
		d.all = append(d.all, sub.entries()...)
	}
	d.alias = newAlias(masses)
	return d
}

func (d *classes) entries() []entry { return d.all }

func (d *classes) draw(now time.Duration) *Node {
	first := d.alias.draw(uint32(d.b.config.Rand() >> 32))
	if anyOpen(d.list[first].entries()) {
		return d.list[first].draw(now)
	}
	d.b.count.busyClasses.Add(1)
	for i := 1; i < len(d.list); i++ {
		if sub := d.list[(first+i)%len(d.list)]; anyOpen(sub.entries()) {
			return sub.draw(now)
		}
	}
	return d.list[first].draw(now)
}

// anyOpen mostly looks at one node only.
func anyOpen(list []entry) bool {
	for i := range list {
		if wordOpen(list[i].node.word.Load()) {
			return true
		}
	}
	return false
}
