package balance

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestExplore(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	for _, w := range Worlds() {
		if !strings.Contains(os.Getenv("EXPLORE"), w.Name) {
			continue
		}
		for _, p := range Policies() {
			if f := os.Getenv("POL"); f != "" && !strings.Contains(","+f+",", ","+p.Name+",") {
				continue
			}
			st := time.Now()
			r, err := Run(w, p, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%-9s %-22s p50 %6.2f p99 %6.2f p99.9 %7.2f ok %.5f%% mesh %.3f busiest %.3f extra %.4f  [%v]", w.Name, p.Name, r.P50.Seconds()*1e3, r.P99.Seconds()*1e3, r.P999.Seconds()*1e3, 100*r.Success(), r.Mesh, r.Busiest, r.Extra(), time.Since(st).Round(time.Millisecond))
		}
	}
}
