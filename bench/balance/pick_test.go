package balance

import (
	"context"
	"fmt"
	"testing"
	"time"

	v3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc/balancer"

	"github.com/go-kratos/kratos/v2/selector"
	core "github.com/switchyard-dev/switchyard/balance"
)

var sizes = []int{10, 100, 1000}

// BenchmarkPick is one pick with its completion.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct {
		name   string
		config core.Config
	}{
		{"switchyard_round_robin", core.Config{Policy: core.RoundRobin{}}},
		{"switchyard_p2c_least_loaded", core.Config{}},
		{"switchyard_p2c_least_loaded_health", core.Config{Accrual: core.DefaultFailureAccrual(), FailFast: &core.FailFast{}}},
		{"switchyard_p2c_peak_ewma", core.Config{Load: core.PeakEWMA}},
		{"switchyard_heap", core.Config{Policy: core.Heap{}}},
		{"switchyard_aperture_least_loaded", core.Config{Policy: core.Aperture{Peer: core.Peer{ID: 3, Total: 20}}}},
		{"switchyard_aperture_peak_ewma", core.Config{Policy: core.Aperture{Peer: core.Peer{ID: 3, Total: 20}}, Load: core.PeakEWMA}},
	} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				bal, err := core.New(c.config)
				if err != nil {
					b.Fatal(err)
				}
				list := make([]core.Endpoint, n)
				for i := range list {
					list[i].Address = fmt.Sprintf("server-%d:80", i)
				}
				if err := bal.Update(list); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p, err := bal.Pick()
						if err != nil {
							b.Error(err)
							return
						}
						p.Done(core.Success)
					}
				})
			})
		}
	}
	for _, p := range grpcPolicies {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				cc, bal := newGRPC(b, p.policy, p.config, n)
				defer bal.Close()
				picker := cc.picker
				if p.policy == "weighted_round_robin" {
					// It takes turns like round robin until servers have reported loads.
					for i := range 20 * n {
						r, err := picker.Pick(pickInfo)
						if err != nil {
							b.Fatal(err)
						}
						if r.Done != nil {
							r.Done(balancer.DoneInfo{ServerLoad: &v3.OrcaLoadReport{RpsFractional: float64(100 + i%7), ApplicationUtilization: 0.5}})
						}
					}
					time.Sleep(250 * time.Millisecond) // it computes weights every 100 ms
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						r, err := picker.Pick(pickInfo)
						if err != nil {
							b.Error(err)
							return
						}
						if r.Done != nil {
							r.Done(balancer.DoneInfo{})
						}
					}
				})
			})
		}
	}
	for _, n := range sizes {
		b.Run(fmt.Sprintf("kratos_p2c/%d", n), func(b *testing.B) {
			ids := make([]int, n)
			for i := range ids {
				ids[i] = i
			}
			s := newKratos(ids)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				ctx := context.Background()
				for pb.Next() {
					_, done, err := s.Select(ctx)
					if err != nil {
						b.Error(err)
						return
					}
					done(ctx, selector.DoneInfo{})
				}
			})
		})
	}
}
