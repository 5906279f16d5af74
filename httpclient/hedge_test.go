package httpclient

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/retry"
)

func TestHedge(t *testing.T) {
	var n atomic.Int64
	slow := start(t, func(_ http.ResponseWriter, r *http.Request) {
		if n.Add(1)%20 == 0 {
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
		}
	})
	fast := start(t, nil)
	client, tr, rec := newClient(t, Config{Endpoints: urls(slow, fast), Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.1, MinDelay: 2 * time.Millisecond, MinSamples: 20}})
	began := time.Now()
	for i := range 300 {
		if i == 60 {
			began = time.Now()
		}
		if code, _, err := do(client, "PUT", "data"); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("240 requests took %v: backups did not overtake", took)
	}
	if rec.counts[retry.CountHedgesWon] == 0 || len(rec.logical) != 300 {
		t.Errorf("counts %v, %d logical requests", rec.counts, len(rec.logical))
	}
	before := rec.counts[retry.CountHedges]
	for range 60 {
		if code, _, err := do(client, "POST", "data"); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if rec.counts[retry.CountHedges] != before {
		t.Error("a POST got a backup")
	}
	for end := time.Now().Add(5 * time.Second); tr.Balancer().Stats().Outstanding != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d outstanding", tr.Balancer().Stats().Outstanding)
		}
	}
}

func TestHedge_bothFail(t *testing.T) {
	var n atomic.Int64
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) > 60 {
			time.Sleep(30 * time.Millisecond)
			w.WriteHeader(500 + int(n.Load()%2))
		}
	})
	client, tr, _ := newClient(t, Config{Endpoints: urls(s), Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.9, MinDelay: 2 * time.Millisecond, MinSamples: 20}})
	for range 60 {
		if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
			t.Fatal(code, err)
		}
	}
	if code, _, err := do(client, "GET", ""); code < 500 || err != nil {
		t.Error(code, err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding", n)
	}
}
