package balance

import (
	"reflect"
	"testing"
	"time"

	core "github.com/switchyard-dev/switchyard/balance"
)

func policyNamed(t *testing.T, name string) Policy {
	t.Helper()
	for _, p := range Policies() {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no policy %q", name)
	return Policy{}
}

// mean of three seeds.
func run(t *testing.T, w World, p Policy) *Result {
	t.Helper()
	var runs []*Result
	for seed := uint64(1); seed <= 3; seed++ {
		r, err := Run(w, p, seed)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
		if testing.Short() {
			break
		}
	}
	r := Average(runs)
	t.Logf("%-8s %-24s p50 %.2f p99 %.2f p99.9 %.2f ms, success %.4f %%, %.1f %% of the mesh, busiest %.3f, extra %.3f",
		w.Name, p.Name, ms(r.P50), ms(r.P99), ms(r.P999), 100*r.Success(), 100*r.Mesh, r.Busiest, r.Extra())
	return r
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func TestRun_sameSeedSameResult(t *testing.T) {
	w := Tail()
	w.Duration = 2 * time.Second
	w.Faults[2].From, w.Faults[2].To = 500*time.Millisecond, time.Second
	for _, p := range Policies() {
		a, err := Run(w, p, 5)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := Run(w, p, 5)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs of one seed differ", p.Name)
		}
		c, _ := Run(w, p, 6)
		if reflect.DeepEqual(a, c) {
			t.Errorf("%s: another seed gives the same", p.Name)
		}
	}
}

func TestTail_wholeStack(t *testing.T) {
	r := run(t, Tail(), policyNamed(t, "stack"))
	if r.P99 > 43*time.Millisecond || r.P999 > 76*time.Millisecond {
		t.Errorf("p99 %v, p99.9 %v; want at most 43 ms and 76 ms", r.P99, r.P999)
	}
	if r.Success() < 0.99995 {
		t.Errorf("success %.5f %%, want 99.995 %%", 100*r.Success())
	}
	if r.Mesh > 0.26 {
		t.Errorf("%.2f %% of a full mesh's connections, want at most 26 %%", 100*r.Mesh)
	}
}

// A server that fails fast draws every metric to it, unless success counts.
func TestTail_successBias(t *testing.T) {
	without := run(t, Tail(), policyNamed(t, "p2c_peak_ewma"))
	with := run(t, Tail(), policyNamed(t, "p2c_peak_ewma_success"))
	if without.Success() > 0.98 || with.Success() < 0.998 {
		t.Errorf("success %.3f %% without the bias, %.3f %% with", 100*without.Success(), 100*with.Success())
	}
}

func TestHealthy_apertureIsNoWorseThanAFullMesh(t *testing.T) {
	stack := run(t, Healthy(), policyNamed(t, "stack"))
	for _, name := range []string{"round_robin", "heap", "p2c_least_loaded", "p2c_peak_ewma"} {
		r := run(t, Healthy(), policyNamed(t, name))
		if stack.P50 > r.P50 || stack.P99 > r.P99 || stack.P999 > r.P999 {
			t.Errorf("%s: p50 %v, p99 %v, p99.9 %v; the stack %v, %v, %v", name, r.P50, r.P99, r.P999, stack.P50, stack.P99, stack.P999)
		}
	}
}

func TestQuarter_theApertureOfABusyClientWidens(t *testing.T) {
	fixed := run(t, Quarter(), policyNamed(t, "aperture_fixed"))
	if fixed.Busiest < 1.4 {
		t.Errorf("a fixed aperture's busiest server has %.2f of the mean; the world is not what it should be", fixed.Busiest)
	}
	for _, name := range []string{"aperture", "stack"} {
		if r := run(t, Quarter(), policyNamed(t, name)); r.Busiest > 1.25 {
			t.Errorf("%s: the busiest server has %.2f of the mean, want at most 1.25", name, r.Busiest)
		}
	}
	// With a slightly smaller minimum all of it fits into a quarter of the mesh.
	small := Policy{Name: "aperture of 10", New: newChooser(core.Config{Policy: core.Aperture{Min: 10}}, true)}
	if r := run(t, Quarter(), small); r.Busiest > 1.25 || r.Mesh > 0.26 {
		t.Errorf("min 10: busiest %.2f, %.1f %% of the mesh", r.Busiest, 100*r.Mesh)
	}
}

func TestStorm_theBudgetHoldsTheLoadDown(t *testing.T) {
	// load is the attempts per request between two times.
	load := func(r *Result, from, to time.Duration) float64 {
		attempts, requests := 0, 0
		for _, s := range r.Steps[from/tick : to/tick] {
			attempts += s.Attempts
			requests += s.Requests
		}
		return float64(attempts) / float64(requests)
	}
	with := Policy{Name: "with a budget", New: newChooser(core.Config{}, false), Retry: true}
	without := with
	without.NoBudget = true
	a, err := Run(Storm(), with, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Run(Storm(), without, 1)
	if err != nil {
		t.Fatal(err)
	}
	// 100 clients may add 10 a second each to the 20 %.
	bound := 1.2 + 10*100/Storm().rate() + 0.01
	// What was earned before the outage may be spent in its first seconds.
	all, late, storm := load(a, 0, 40*time.Second), load(a, 20*time.Second, 40*time.Second), load(b, 11*time.Second, 40*time.Second)
	t.Logf("load × %.3f up to the end of the outage, × %.3f from its 10th second on, bound %.3f; × %.3f without a budget", all, late, bound, storm)
	if all > bound || late > bound || late < 1.1 {
		t.Errorf("with the budget the load is × %.3f and × %.3f", all, late)
	}
	if storm < 1.6 {
		t.Errorf("without the budget the load is × %.3f; this is no storm", storm)
	}
}

func TestDeployAndFlapping_loseNothing(t *testing.T) {
	for _, w := range []World{Deploy(), Grow(), Flapping()} {
		r := run(t, w, policyNamed(t, "stack"))
		if r.Success() < 0.99999 {
			t.Errorf("%s: success %.5f %%", w.Name, 100*r.Success())
		}
	}
}

func TestWorld_checkNamesWhatIsWrong(t *testing.T) {
	for _, w := range Worlds() {
		if err := w.Check(); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
	for name, change := range map[string]func(*World){
		"clients": func(w *World) { w.Clients = 0 }, "servers": func(w *World) { w.Servers = 100_000 }, "workers": func(w *World) { w.Workers = 0 },
		"queue": func(w *World) { w.Queue = -1 }, "mean": func(w *World) { w.Mean = 0 }, "sigma": func(w *World) { w.Sigma = -1 }, "load": func(w *World) { w.Load = 0 },
		"duration": func(w *World) { w.Duration = 0 }, "warmup": func(w *World) { w.Warmup = time.Hour }, "shares": func(w *World) { w.Shares = []float64{1} },
		"fault": func(w *World) { w.Faults = []Fault{{Server: 99}} }, "network": func(w *World) { w.Network = -1 },
	} {
		w := Healthy()
		change(&w)
		if _, err := Run(w, policyNamed(t, "heap"), 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestHistogram_quantiles(t *testing.T) {
	var h histogram
	for i := 1; i <= 10_000; i++ {
		h.add(time.Duration(i) * 10 * time.Microsecond)
	}
	for q, want := range map[float64]float64{0.5: 50, 0.99: 99, 0.999: 99.9, 1: 100} {
		if got := ms(h.quantile(q)); got < want*0.99 || got > want*1.01 {
			t.Errorf("quantile %v: %v ms, want %v", q, got, want)
		}
	}
}
