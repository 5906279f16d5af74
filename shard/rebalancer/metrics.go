package rebalancer

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	rounds, moved, failures   prometheus.Counter
	toMove, imbalance, atWork prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		rounds: prometheus.NewCounter(prometheus.CounterOpts{Name: "switchyard_rebalancer_rounds_total",
			Help: "Times that all replica sets were asked."}),
		moved: prometheus.NewCounter(prometheus.CounterOpts{Name: "switchyard_rebalancer_buckets_moved_total",
			Help: "Buckets that this node's rebalancer had moved."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "switchyard_rebalancer_failures_total",
			Help: "Lists of buckets that did not all move, and times that nothing could be done."}),
		toMove: prometheus.NewGauge(prometheus.GaugeOpts{Name: "switchyard_rebalancer_buckets_to_move",
			Help: "Buckets that are still to be moved."}),
		imbalance: prometheus.NewGauge(prometheus.GaugeOpts{Name: "switchyard_rebalancer_imbalance_percent",
			Help: "How far the worst replica set is from its perfect count, in percent of it; +Inf while one is drained."}),
		atWork: prometheus.NewGauge(prometheus.GaugeOpts{Name: "switchyard_rebalancer_active",
			Help: "1 on the node that rebalances, else 0."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.rounds, m.moved, m.failures, m.toMove, m.imbalance, m.atWork} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) active(yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.atWork.Set(v)
}
