package raftengine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Descriptions of the metrics of the group.
var (
	descMaster   = desc("master", "1 when this member is the master of its group.")
	descTerm     = desc("term", "Number of the latest election that this member knows of.")
	descMembers  = desc("members", "Members of the group.")
	descElected  = desc("elections_won_total", "Times that this member was elected.")
	descDeposed  = desc("masterships_lost_total", "Times that this member stopped being the master.")
	descBarriers = desc("read_barriers_total", "Times that the other members were asked whether this one is still the master, for reads.")
	descHangs    = desc("disk_hangs_total", "Times that one write took longer than the limit, so that a master of several gives up.")
	descHanging  = desc("disk_waiting_seconds", "How long the write that is under way has been waiting for the disk.")
	descSent     = desc("snapshots_sent_total", "Snapshots sent to other members.")
	descReceived = desc("snapshots_received_total", "Snapshots received from the master.")
	descLag      = prometheus.NewDesc("switchyard_store_replication_lag_entries", "Log entries that a member has not acknowledged, on the master.", []string{"member"}, nil)
	descSilent   = prometheus.NewDesc("switchyard_store_member_silent_seconds", "Time since a member answered last, on the master.", []string{"member"}, nil)
)

// collectGroup gives the metrics of the group.
func (e *Engine) collectGroup(ch chan<- prometheus.Metric, st engine.Status) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	master := 0.0
	if st.State == engine.Master {
		master = 1
	}
	gauge(descMaster, master)
	gauge(descTerm, float64(st.Term))
	gauge(descMembers, float64(len(st.Members)))
	count(descElected, e.metrics.elected.Load())
	count(descDeposed, e.metrics.deposed.Load())
	count(descHangs, e.metrics.hangs.Load())
	waiting, _ := e.hanging()
	gauge(descHanging, waiting.Seconds())
	if e.opts.Transport == nil {
		return
	}
	count(descBarriers, e.metrics.barriers.Load())
	sent, received := e.opts.Transport.Snapshots()
	count(descSent, sent)
	count(descReceived, received)
	if st.State != engine.Master {
		return
	}
	for _, m := range st.Members {
		if m.ID == st.Member || m.Silent < 0 {
			continue
		}
		gauge(descLag, float64(st.Logged-min(m.Acknowledged, st.Logged)), m.ID)
		gauge(descSilent, m.Silent.Seconds(), m.ID)
	}
}
