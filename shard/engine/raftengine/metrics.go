package raftengine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what the engine does. They are read by Collector.
type metrics struct {
	applyBatches atomic.Int64
	applyEntries atomic.Int64
	commits      atomic.Int64
	commitBytes  atomic.Int64
	stalls       atomic.Int64
	snapshots    atomic.Int64
	snapshotFail atomic.Int64
	snapshotNano atomic.Int64
	elected      atomic.Int64
	deposed      atomic.Int64
	barriers     atomic.Int64
	hangs        atomic.Int64

	appendTime histogram // storing a batch of entries in the log, sync included
	appendSize histogram // entries of such a batch
	commitTime histogram // committing a batch of rows
	syncTime   histogram // one sync of the log
}

func newMetrics() *metrics {
	m := &metrics{}
	m.appendTime.bounds = []float64{50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 25.6e-3, 51.2e-3, .1, .2, .5, 1, 5}
	m.syncTime.bounds = m.appendTime.bounds
	m.commitTime.bounds = []float64{2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, .1, 1}
	m.appendSize.bounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
	for _, h := range []*histogram{&m.appendTime, &m.commitTime, &m.appendSize, &m.syncTime} {
		h.counts = make([]uint64, len(h.bounds)+1)
	}
	return m
}

func (m *metrics) applyBatch(n int) {
	m.applyBatches.Add(1)
	m.applyEntries.Add(int64(n))
}

func (m *metrics) commit(bytes int, d time.Duration) {
	m.commits.Add(1)
	m.commitBytes.Add(int64(bytes))
	m.commitTime.observe(d.Seconds())
}

func (m *metrics) append(n int, d time.Duration) {
	m.appendTime.observe(d.Seconds())
	m.appendSize.observe(float64(n))
}

func (m *metrics) snapshot(d time.Duration) {
	m.snapshots.Add(1)
	m.snapshotNano.Add(int64(d))
}

// histogram is observed by one goroutine and read by another now and then.
type histogram struct {
	mu     sync.Mutex
	bounds []float64
	counts []uint64
	sum    float64
	n      uint64
}

func (h *histogram) observe(v float64) {
	h.mu.Lock()
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
	h.n++
	h.mu.Unlock()
}

func (h *histogram) read() (n uint64, sum float64, buckets map[float64]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	buckets = make(map[float64]uint64, len(h.bounds))
	var below uint64
	for i, b := range h.bounds {
		below += h.counts[i]
		buckets[b] = below
	}
	return h.n, h.sum, buckets
}

// Descriptions of the metrics. Names start with switchyard_store.
var (
	descApplied    = desc("applied_index", "Number of the last command whose rows are visible.")
	descInFlight   = desc("in_flight_commands", "Commands proposed and not done.")
	descInFlightB  = desc("in_flight_bytes", "Bytes of arguments of commands proposed and not done.")
	descLogBytes   = desc("log_bytes_since_snapshot", "Bytes logged since the last snapshot.")
	descFailed     = desc("failed", "1 when the store has failed and refuses everything.")
	descApplyBatch = desc("apply_batches_total", "Batches of log entries applied.")
	descApplyEntry = desc("apply_entries_total", "Log entries applied.")
	descCommits    = desc("row_batches_total", "Batches of rows committed.")
	descCommitB    = desc("row_batch_bytes_total", "Bytes of batches of rows committed.")
	descStalls     = desc("write_stalls_total", "Times that writing rows waited for the disk.")
	descSnapshots  = desc("snapshots_total", "Snapshots taken.")
	descSnapFail   = desc("snapshot_failures_total", "Snapshots that failed.")
	descSnapTime   = desc("snapshot_seconds_total", "Time spent on taking snapshots.")
	descAppendTime = desc("log_append_seconds", "Time to store a batch of entries in the log, sync included.")
	descAppendSize = desc("log_append_entries", "Entries stored in the log at once.")
	descCommitTime = desc("row_batch_seconds", "Time to make a batch of rows visible.")
	descSyncTime   = desc("log_sync_seconds", "Time of one sync of the log.")
	descDisk       = desc("disk_bytes", "Bytes of the tables of the rows.")
	descMemTable   = desc("memtable_bytes", "Bytes of rows in memory, not flushed yet.")
	descReadAmp    = desc("read_amplification", "Tables that a read may have to look into.")
	descCompact    = desc("compactions_total", "Compactions of the rows' tables.")
	descDebt       = desc("compaction_debt_bytes", "Bytes that compaction is behind.")
	descCacheHit   = desc("cache_hits_total", "Reads answered from the block cache.")
	descCacheMiss  = desc("cache_misses_total", "Reads that the block cache did not have.")
	descTombstones = desc("tombstones", "Deleted rows whose space is not freed yet.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("switchyard_store_"+name, help, nil, nil)
}

// Describe implements prometheus.Collector.
func (e *Engine) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(e, ch) }

// Collect implements prometheus.Collector: the engine is its own collector.
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	histo := func(d *prometheus.Desc, h *histogram) {
		n, sum, buckets := h.read()
		ch <- prometheus.MustNewConstHistogram(d, n, sum, buckets)
	}
	st, m := e.Status(), e.metrics
	failed := 0.0
	if st.Err != nil {
		failed = 1
	}
	gauge(descApplied, float64(st.Applied))
	gauge(descInFlight, float64(st.InFlight))
	gauge(descInFlightB, float64(st.InFlightBytes))
	gauge(descLogBytes, float64(st.LogBytes))
	gauge(descFailed, failed)
	count(descApplyBatch, m.applyBatches.Load())
	count(descApplyEntry, m.applyEntries.Load())
	count(descCommits, m.commits.Load())
	count(descCommitB, m.commitBytes.Load())
	count(descStalls, m.stalls.Load())
	count(descSnapshots, m.snapshots.Load())
	count(descSnapFail, m.snapshotFail.Load())
	ch <- prometheus.MustNewConstMetric(descSnapTime, prometheus.CounterValue, time.Duration(m.snapshotNano.Load()).Seconds())
	histo(descAppendTime, &m.appendTime)
	histo(descAppendSize, &m.appendSize)
	histo(descCommitTime, &m.commitTime)
	histo(descSyncTime, &m.syncTime)

	e.collectGroup(ch, st)

	rows := e.enter()
	if rows == nil {
		return
	}
	defer rows.views.leave()
	pm := rows.db.Metrics()
	gauge(descDisk, float64(pm.DiskSpaceUsage()))
	gauge(descMemTable, float64(pm.MemTable.Size))
	gauge(descReadAmp, float64(pm.ReadAmp()))
	count(descCompact, pm.Compact.Count)
	gauge(descDebt, float64(pm.Compact.EstimatedDebt))
	count(descCacheHit, pm.BlockCache.Hits)
	count(descCacheMiss, pm.BlockCache.Misses)
	gauge(descTombstones, float64(pm.Keys.TombstoneCount))
}
