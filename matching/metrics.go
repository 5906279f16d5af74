package matching

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the engine's Prometheus metrics. A partition's own are told from its
// goroutine, as what has changed since the last time, so that they cost nothing per
// task.
type metrics struct {
	events     *prometheus.CounterVec
	tasks      *prometheus.GaugeVec
	polls      *prometheus.GaugeVec
	batchOps   prometheus.Histogram
	batchBytes prometheus.Histogram
	partitions prometheus.Gauge
	loads      prometheus.Counter
}

var statNames = [numStats]string{
	statAdded: "added", statDispatched: "dispatched", statSyncMatched: "sync_matched", statCompleted: "completed",
	statFailed: "failed", statDead: "dead", statExpired: "expired", statLeaseExpired: "lease_expired",
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	queue := []string{"namespace", "queue"}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "switchyard_matching_tasks_total",
			Help: "Tasks by what happened to them: added, dispatched, sync_matched, completed, failed, dead, expired, lease_expired."}, append(queue, "event")),
		tasks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "switchyard_matching_tasks",
			Help: "Tasks by state: ready, delayed, leased, dead. Loaded partitions only."}, append(queue, "state")),
		polls: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "switchyard_matching_waiting_polls",
			Help: "Polls that wait for a task."}, queue),
		batchOps: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "switchyard_matching_write_rows",
			Help: "Rows put or deleted by one write.", Buckets: prometheus.ExponentialBuckets(1, 4, 9)}),
		batchBytes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "switchyard_matching_write_bytes",
			Help: "Bytes of one write.", Buckets: prometheus.ExponentialBuckets(256, 4, 9)}),
		partitions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "switchyard_matching_loaded_partitions",
			Help: "Partitions in memory."}),
		loads: prometheus.NewCounter(prometheus.CounterOpts{Name: "switchyard_matching_partition_loads_total",
			Help: "Partitions taken into memory."}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.events, m.tasks, m.polls, m.batchOps, m.batchBytes, m.partitions, m.loads} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// ownerMetrics are one partition's, looked up once.
type ownerMetrics struct {
	events                       [numStats]prometheus.Counter
	ready, delayed, leased, dead prometheus.Gauge
	polls                        prometheus.Gauge
	last                         [5]int64
}

func (m *metrics) loaded(o *owner) {
	m.partitions.Inc()
	m.loads.Inc()
	ns, q := o.id.Namespace, o.id.Queue
	for i := range o.metrics.events {
		o.metrics.events[i] = m.events.WithLabelValues(ns, q, statNames[i])
	}
	state := func(s string) prometheus.Gauge { return m.tasks.WithLabelValues(ns, q, s) }
	o.metrics.ready, o.metrics.delayed, o.metrics.leased, o.metrics.dead = state("ready"), state("delayed"), state("leased"), state("dead")
	o.metrics.polls = m.polls.WithLabelValues(ns, q)
}

// update tells what has changed. It runs after each round of the partition's
// goroutine.
func (m *metrics) update(o *owner, c *core) {
	for i, n := range c.stats.total {
		if d := n - c.stats.sent[i]; d > 0 {
			o.metrics.events[i].Add(float64(d))
			c.stats.sent[i] = n
		}
	}
	o.waiting.Store(int64(c.pollers.n))
	q := c.queueCounts()
	now := [5]int64{q.ready, q.delayed, q.leased, q.dead, int64(c.pollers.n)}
	for i, g := range [5]prometheus.Gauge{o.metrics.ready, o.metrics.delayed, o.metrics.leased, o.metrics.dead, o.metrics.polls} {
		if now[i] != o.metrics.last[i] {
			g.Add(float64(now[i] - o.metrics.last[i]))
			o.metrics.last[i] = now[i]
		}
	}
}

// unloaded takes the partition's share out of the gauges.
func (m *metrics) unloaded(o *owner) {
	m.partitions.Dec()
	for i, g := range [5]prometheus.Gauge{o.metrics.ready, o.metrics.delayed, o.metrics.leased, o.metrics.dead, o.metrics.polls} {
		g.Sub(float64(o.metrics.last[i]))
		o.metrics.last[i] = 0
	}
}

func (m *metrics) wrote(b *batch) {
	m.batchOps.Observe(float64(b.ops))
	m.batchBytes.Observe(float64(len(b.args)))
}
