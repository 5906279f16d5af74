package balance

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// window is the random aperture: the first band.size nodes, by weight, of an order
// that is random in each process. Nodes that are not open are at the end of the
// order, so healthy ones take their places; it is built again whenever a status
// changes.
type window struct {
	b    *Balancer
	list []entry
	even bool
	// upTo[i] is the normalised weight of the entries up to and including i.
	upTo []float64
}

func (b *Balancer) newWindow(a Aperture) distributor {
	nodes := slices.Clone(b.nodes)
	status := make(map[*Node]Status, len(nodes))
	for _, n := range nodes {
		status[n] = n.Status()
	}
	slices.SortStableFunc(nodes, func(x, y *Node) int {
		return cmp.Or(cmp.Compare(status[y], status[x]), cmp.Compare(x.token, y.token), cmp.Compare(x.order, y.order))
	})
	d := &window{b: b, list: make([]entry, len(nodes)), even: true, upTo: make([]float64, len(nodes))}
	sum := 0.0
	for i, n := range nodes {
		d.list[i] = b.newEntry(n, n.weight)
		sum += n.weight
		d.upTo[i] = sum
		d.even = d.even && n.weight == nodes[0].weight
	}
	for i := range d.upTo {
		d.upTo[i] /= sum
	}
	b.band.clamp(len(nodes), a.ForgetSize)
	return d
}

// logical is how many endpoints of average weight the window holds.
func (d *window) logical() int { return min(int(d.b.band.size.Load()), len(d.list)) }

// physical is how many nodes the window touches.
func (d *window) physical() int {
	k := d.logical()
	if d.even {
		return k
	}
	// A sliver that is there by rounding only does not count.
	edge := float64(k)/float64(len(d.list)) - 1e-12
	return min(sort.SearchFloat64s(d.upTo, edge)+1, len(d.list))
}

func (d *window) entries() []entry { return d.list[:d.physical()] }

func (d *window) draw(now time.Duration) *Node {
	k := d.logical()
	if k == 1 && d.even {
		return d.list[0].node
	}
	bits := d.b.config.Rand()
	if d.even {
		i, j := twoOf(uint32(k), bits)
		return d.b.better(&d.list[i], &d.list[j], now, true)
	}
	mass := float64(k) / float64(len(d.list))
	i, j := d.at(uint32(bits>>32), mass), d.at(uint32(bits), mass)
	for tries := 0; j == i && tries < redraws; tries++ {
		j = d.at(uint32(d.b.config.Rand()>>32), mass)
	}
	return d.b.better(&d.list[i], &d.list[j], now, false)
}

// at is the entry at a random place within the mass.
func (d *window) at(bits uint32, mass float64) int {
	x := float64(bits) / (1 << 32) * mass
	lo, hi := 0, len(d.upTo)-1
	for lo < hi {
		mid := (lo + hi) / 2
		if d.upTo[mid] > x {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}
