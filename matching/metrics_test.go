package matching

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// gauges are the values of a metric by the value of its last label.
func gauges(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			label := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "state" {
					label = l.GetValue()
				}
			}
			out[label] += m.GetGauge().GetValue()
		}
	}
	return out
}

func TestMetrics_of_a_partition_go_to_zero_when_it_leaves_the_node(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Registerer = reg })
	f.makeQueue("q", 4)
	for n := range int32(4) {
		f.addTo("q", n, spec("a"), spec("b"))
	}
	f.poll("q", 1, 0, 0)
	eventually(t, "the gauges tell of all tasks", func() bool {
		m := gauges(t, reg, "switchyard_matching_tasks")
		return m["ready"] == 7 && m["leased"] == 1 && gauges(t, reg, "switchyard_matching_loaded_partitions")[""] == 4
	})
	f.unloadAll("q", 4)
	eventually(t, "none is left", func() bool {
		m := gauges(t, reg, "switchyard_matching_tasks")
		return m["ready"] == 0 && m["leased"] == 0 && gauges(t, reg, "switchyard_matching_loaded_partitions")[""] == 0 &&
			gauges(t, reg, "switchyard_matching_waiting_polls")[""] == 0
	})
}
