package matching

import (
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/scaling"
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
	hops       *prometheus.CounterVec
	forces     *prometheus.CounterVec
	scale      *prometheus.GaugeVec
	scales     *prometheus.CounterVec
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
		hops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "switchyard_matching_forwards_total",
			Help: "Calls between the partitions of a queue by kind (lend, offer, pull) and result (match, none, failed)."}, []string{"kind", "result"}),
		forces: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "switchyard_matching_force_loads_total",
			Help: "Partitions that a root had loaded, by result: loaded, unnecessary (in memory already), empty (left alone), failed."}, []string{"result"}),
		scale: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "switchyard_matching_queue_partitions",
			Help: "Partitions of queues with managed counts or in shadow mode: read, write, target, shadow (the target there would be). On the node of the root only."}, append(queue, "count")),
		scales: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "switchyard_matching_partition_changes_total",
			Help: "Changes of a queue's managed partition counts."}, queue),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.events, m.tasks, m.polls, m.batchOps, m.batchBytes, m.partitions, m.loads, m.hops, m.forces, m.scale, m.scales} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// hop counts a call to a neighbour.
func (m *metrics) hop(kind string, match bool, err error) {
	result := "none"
	switch {
	case err != nil:
		result = "failed"
	case match:
		result = "match"
	}
	m.hops.WithLabelValues(kind, result).Inc()
}

// forced counts a partition that a root asked to load.
func (m *metrics) forced(resp *v1.ForceLoadPartitionResponse, err error) {
	result := "loaded"
	switch {
	case err != nil:
		result = "failed"
	case resp.GetWasLoaded():
		result = "unnecessary"
	case resp.GetEmpty():
		result = "empty"
	}
	m.forces.WithLabelValues(result).Inc()
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
	o.waiting.Store(int64(c.pollers.n + c.fwd.away))
	o.working.Store(c.m.counts.fresh+c.m.counts.scheduled+c.m.counts.leased > 0)
	q := c.queueCounts()
	o.backlog.Store(q.ready)
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

// scaled shows a root's managed counts.
func (m *metrics) scaled(o *owner, s *v1.QueueScalingStatus, c scaling.Counts) {
	for name, n := range map[string]int32{"read": c.Read, "write": c.Write, "target": s.GetTarget(), "shadow": s.GetShadowTarget()} {
		m.scale.WithLabelValues(o.id.Namespace, o.id.Queue, name).Set(float64(n))
	}
}

func (m *metrics) scaleEvent(o *owner) { m.scales.WithLabelValues(o.id.Namespace, o.id.Queue).Inc() }

// unscaled takes a root's managed counts away.
func (m *metrics) unscaled(o *owner) {
	m.scale.DeletePartialMatch(prometheus.Labels{"namespace": o.id.Namespace, "queue": o.id.Queue})
}

func (m *metrics) wrote(b *batch) {
	m.batchOps.Observe(float64(b.ops))
	m.batchBytes.Observe(float64(len(b.args)))
}
