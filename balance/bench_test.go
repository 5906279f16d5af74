package balance

import (
	"fmt"
	"testing"
)

func policies() map[string]Config {
	return map[string]Config{
		"p2c_least_loaded":       {Policy: P2C{}},
		"p2c_peak_ewma":          {Policy: P2C{}, Load: PeakEWMA},
		"p2c_least_loaded_all":   {Policy: P2C{}, Accrual: DefaultFailureAccrual(), FailFast: &FailFast{}},
		"p2c_least_loaded_bias":  {Policy: P2C{}, SuccessBias: 1},
		"heap":                   {Policy: Heap{}},
		"round_robin":            {Policy: RoundRobin{}},
		"aperture_least_loaded":  {Policy: Aperture{Peer: Peer{ID: 3, Total: 10}}},
		"aperture_peak_ewma":     {Policy: Aperture{Peer: Peer{ID: 3, Total: 10}}, Load: PeakEWMA},
		"random_aperture":        {Policy: Aperture{Min: 12}},
		"p2c_weighted":           {Policy: P2C{}},
		"p2c_peak_ewma_weighted": {Policy: P2C{}, Load: PeakEWMA},
	}
}

func endpoints(n int) []Endpoint {
	out := make([]Endpoint, n)
	for i := range out {
		out[i].Address = fmt.Sprintf("10.0.%d.%d:80", i/250, i%250)
	}
	return out
}

func BenchmarkPickDone(b *testing.B) {
	for name, config := range policies() {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				bal, err := New(config)
				if err != nil {
					b.Fatal(err)
				}
				list := endpoints(n)
				if len(name) > 8 && name[len(name)-8:] == "weighted" {
					for i := range list {
						list[i].Weight = float64(1 + i%3)
					}
				}
				if err := bal.Update(list); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p, err := bal.Pick()
						if err != nil {
							b.Error(err)
							return
						}
						p.Done(Success)
					}
				})
			})
		}
	}
}
