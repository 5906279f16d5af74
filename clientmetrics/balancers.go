package clientmetrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/balance"
)

type balancerMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*balance.Stats) float64
	mean bool // several balancers of one name show the mean, not the sum
}

var balancerLabels = []string{"balancer", "policy"}

func balancerDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+"balancer_"+name, help, append(append([]string{}, balancerLabels...), more...), nil)
}

func gauge(name, help string, get func(*balance.Stats) float64) balancerMetric {
	return balancerMetric{balancerDesc(name, help), prometheus.GaugeValue, get, false}
}

func mean(name, help string, get func(*balance.Stats) float64) balancerMetric {
	return balancerMetric{balancerDesc(name, help), prometheus.GaugeValue, get, true}
}

func total(name, help string, get func(*balance.Stats) uint64) balancerMetric {
	return balancerMetric{balancerDesc(name+"_total", help), prometheus.CounterValue, func(s *balance.Stats) float64 { return float64(get(s)) }, false}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	statusDesc  = balancerDesc("endpoints", "Endpoints by status: open, busy (left alone for now) or closed.", "status")
	resultsDesc = balancerDesc("results_total", "Ended requests by what they say about the endpoint.", "outcome")
)

var balancerMetrics = []balancerMetric{
	gauge("size", "Endpoints.", func(s *balance.Stats) float64 { return float64(s.Size) }),
	gauge("load", "Outstanding requests.", func(s *balance.Stats) float64 { return float64(s.Outstanding) }),
	gauge("convicted", "Endpoints that failure accrual or fail-fast leaves alone.", func(s *balance.Stats) float64 { return float64(s.Convicted) }),
	gauge("weight_classes", "Different weights among the endpoints.", func(s *balance.Stats) float64 { return float64(s.WeightClasses) }),
	total("adds", "Endpoints that came.", func(s *balance.Stats) uint64 { return s.Adds }),
	total("removes", "Endpoints that went.", func(s *balance.Stats) uint64 { return s.Removes }),
	total("updates", "Sets of endpoints received.", func(s *balance.Stats) uint64 { return s.Updates }),
	total("rebuilds", "New distributors made.", func(s *balance.Stats) uint64 { return s.Rebuilds }),
	total("panics", "Picks that took an endpoint whatever its status.", func(s *balance.Stats) uint64 { return s.Panicked }),
	total("idle_draws", "Draws in which both choices had no load.", func(s *balance.Stats) uint64 { return s.Idle }),
	total("busy_weight_classes", "Picks that left a weight class because nothing in it was open.", func(s *balance.Stats) uint64 { return s.BusyClasses }),
	total("removals", "Convictions by failure accrual.", func(s *balance.Stats) uint64 { return s.Removals }),
	total("revivals", "Ends of convictions by a probe that succeeded.", func(s *balance.Stats) uint64 { return s.Revivals }),
	total("probes", "Requests or connections that tried a convicted endpoint.", func(s *balance.Stats) uint64 { return s.Probes }),
	total("marked_unreachable", "Endpoints left alone because no connection could be made.", func(s *balance.Stats) uint64 { return s.MarkedUnreachable }),
	total("marked_reachable", "Endpoints that could be reached again.", func(s *balance.Stats) uint64 { return s.MarkedReachable }),
	{balancerDesc("removed_seconds_total", "Sentences given, added up when given."), prometheus.CounterValue, func(s *balance.Stats) float64 { return s.RemovedFor.Seconds() }, false},
	gauge("aperture_logical", "Endpoints of average weight in the aperture.", func(s *balance.Stats) float64 { return float64(s.LogicalAperture) }),
	gauge("aperture_physical", "Endpoints that the aperture touches.", func(s *balance.Stats) float64 { return float64(s.PhysicalAperture) }),
	mean("aperture_deterministic", "1 if the aperture is the deterministic one.", func(s *balance.Stats) float64 { return flag(s.Deterministic) }),
	gauge("aperture_smoothed_load", "Average of outstanding requests that sizes the aperture.", func(s *balance.Stats) float64 { return s.SmoothedLoad }),
	mean("vector_hash", "Low 48 bits of a hash of the ordered set of endpoints; equal in clients that see the same set.", func(s *balance.Stats) float64 { return float64(s.VectorHash & (1<<48 - 1)) }),
	total("aperture_widened", "Times that the aperture grew with the load.", func(s *balance.Stats) uint64 { return s.Widened }),
	total("aperture_narrowed", "Times that the aperture shrank.", func(s *balance.Stats) uint64 { return s.Narrowed }),
	total("aperture_expired", "Idle connections given up.", func(s *balance.Stats) uint64 { return s.Expired }),
	total("peer_changes", "Changes of this client's place among its peers.", func(s *balance.Stats) uint64 { return s.PeerChange }),
}

type endpointMetric struct {
	desc *prometheus.Desc
	get  func(*balance.NodeStats) float64
}

func endpointDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+"endpoint_"+name, help, append([]string{"balancer", "policy", "endpoint"}, more...), nil)
}

var endpointResultsDesc = endpointDesc("results_total", "Ended requests by what they say about the endpoint.", "outcome")

var endpointMetrics = []endpointMetric{
	{endpointDesc("load", "Outstanding requests."), func(s *balance.NodeStats) float64 { return float64(s.Outstanding) }},
	{endpointDesc("status", "2 open, 1 busy, 0 closed."), func(s *balance.NodeStats) float64 { return float64(s.Status) }},
	{endpointDesc("weight", "Weight."), func(s *balance.NodeStats) float64 { return s.Weight }},
	{endpointDesc("latency_seconds", "The peak EWMA of latency; 0 without history or with another metric."), func(s *balance.NodeStats) float64 { return s.Latency.Seconds() }},
	{endpointDesc("in_aperture", "1 if requests may go to it."), func(s *balance.NodeStats) float64 { return flag(s.InAperture) }},
}

const outcomes = int(balance.Ignored) + 1

// group is what a Prometheus label set stands for: a program may have several
// connections to one name.
type group struct{ name, policy string }

func policyOf(s *balance.Stats) string {
	if s.Load == balance.PeakEWMA {
		return s.Policy + "_" + s.Load.String()
	}
	return s.Policy
}

func collectBalancers(r *balance.Registry, out chan<- prometheus.Metric, endpoints bool) {
	type sums struct {
		values   []float64
		statuses [3]float64
		results  [outcomes]float64
		members  int
	}
	groups := map[group]*sums{}
	type nodeKey struct {
		group
		endpoint string
	}
	nodes := map[nodeKey]balance.NodeStats{}
	for _, b := range r.Balancers() {
		s := b.Stats()
		key := group{s.Name, policyOf(&s)}
		g := groups[key]
		if g == nil {
			g = &sums{values: make([]float64, len(balancerMetrics))}
			groups[key] = g
		}
		g.members++
		for i, m := range balancerMetrics {
			g.values[i] += m.get(&s)
		}
		for i, n := range []int{s.Closed, s.Busy, s.Open} {
			g.statuses[i] += float64(n)
		}
		for i, n := range s.Results {
			g.results[i] += float64(n)
		}
		if !endpoints {
			continue
		}
		for _, n := range b.NodeStats() {
			name := n.Address
			if n.Replica != 0 {
				name += " #" + strconv.Itoa(n.Replica)
			}
			old, ok := nodes[nodeKey{key, name}]
			if ok { // of another connection: loads add up, of the rest the newest is shown
				n.Outstanding += old.Outstanding
				for i := range n.Results {
					n.Results[i] += old.Results[i]
				}
			}
			nodes[nodeKey{key, name}] = n
		}
	}
	for key, g := range groups {
		for i, m := range balancerMetrics {
			v := g.values[i]
			if m.mean {
				v /= float64(g.members)
			}
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, v, key.name, key.policy)
		}
		for s, n := range g.statuses {
			out <- prometheus.MustNewConstMetric(statusDesc, prometheus.GaugeValue, n, key.name, key.policy, balance.Status(s).String())
		}
		for o, n := range g.results {
			out <- prometheus.MustNewConstMetric(resultsDesc, prometheus.CounterValue, n, key.name, key.policy, balance.Outcome(o).String())
		}
	}
	for key, n := range nodes {
		for _, m := range endpointMetrics {
			out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.get(&n), key.name, key.policy, key.endpoint)
		}
		for o, v := range n.Results {
			out <- prometheus.MustNewConstMetric(endpointResultsDesc, prometheus.CounterValue, float64(v), key.name, key.policy, key.endpoint, balance.Outcome(o).String())
		}
	}
}
