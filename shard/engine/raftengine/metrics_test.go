package raftengine

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMetrics_areCollected(t *testing.T) {
	e := mustOpen(t, Options{Dir: t.TempDir()})
	const n = 10
	for range n {
		mustCall(t, e, "add", "x")
	}
	if err := e.snapshot(); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(e); err != nil {
		t.Fatal(err)
	}
	gather := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		return values
	}
	got := gather()
	for name, least := range map[string]float64{
		"switchyard_store_applied_index": n, "switchyard_store_apply_entries_total": n, "switchyard_store_row_batches_total": n,
		"switchyard_store_log_append_seconds": n, "switchyard_store_log_sync_seconds": n, "switchyard_store_snapshots_total": 1,
	} {
		if got[name] < least {
			t.Errorf("%s is %v, want at least %v", name, got[name], least)
		}
	}
	if got["switchyard_store_failed"] != 0 || got["switchyard_store_in_flight_commands"] != 0 {
		t.Errorf("%v", got)
	}
	mustClose(t, e)
	gather() // a closed engine can still be asked
}
