package retry

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// near tells that a is b to the digest's 1.6 %.
func near(a, b time.Duration) bool {
	return math.Abs(float64(a-b)) <= 0.016*float64(b)+float64(time.Microsecond)
}

func newHedger(t testing.TB, c HedgeConfig, client *Budget) *Hedger {
	t.Helper()
	h, err := NewHedger(c, client, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestDigest_knowsQuantiles(t *testing.T) {
	d, err := NewDigest(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var all []time.Duration
	for range 10000 {
		v := time.Duration(math.Exp(rng.NormFloat64()*2) * float64(ms))
		all = append(all, v)
		d.Record(0, v)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*10000))-1, 0)]
		if got, known := d.Quantile(0, q, true); !near(got, want) || known != 10000 {
			t.Errorf("quantile %v is %v of %d, want %v", q, got, known, want)
		}
	}
	if _, known := d.Quantile(0, 0.5, false); known != 0 {
		t.Errorf("%d known of windows that have ended, want 0", known)
	}
}

func TestDigest_forgets(t *testing.T) {
	d, err := NewDigest(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	d.Record(0, ms)
	if got := d.Count(0, true); got != 1 {
		t.Errorf("%d known, want 1", got)
	}
	d.Record(1500*ms, 2*ms)
	for _, step := range []struct {
		at            time.Duration
		all, finished int
	}{{1900 * ms, 2, 1}, {2900 * ms, 2, 2}, {3000 * ms, 1, 1}, {3900 * ms, 1, 1}, {4000 * ms, 0, 0}, {time.Hour, 0, 0}, {0, 0, 0}} {
		if all, finished := d.Count(step.at, true), d.Count(step.at, false); all != step.all || finished != step.finished {
			t.Errorf("at %v: %d and %d known, want %d and %d", step.at, all, finished, step.all, step.finished)
		}
	}
}

func FuzzDigest_cellsHoldTheirValues(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(63999))
	f.Add(int64(64000))
	f.Add(int64(math.MaxInt64))
	f.Add(int64(-1))
	f.Fuzz(func(t *testing.T, ns int64) {
		d := time.Duration(ns)
		cell := digestCell(d)
		if cell < 0 || cell >= digestCells {
			t.Fatalf("%v: cell %d", d, cell)
		}
		d = max(d, 0)
		if v := digestValue(cell); d < 1<<36*time.Microsecond && !near(v, d) {
			t.Fatalf("%v: cell %d stands for %v", d, cell, v)
		}
		if digestCell(digestValue(cell)) != cell {
			t.Fatalf("%v: cell %d stands for %v, which is in cell %d", d, cell, digestValue(cell), digestCell(digestValue(cell)))
		}
	})
}

// feed records 90 latencies of 50 ms and 10 of 100 ms.
func feed(h *Hedger, now time.Duration) {
	for i := range 100 {
		latency := 50 * ms
		if i%10 == 9 {
			latency = 100 * ms
		}
		h.Record(now, latency)
	}
}

func TestHedger_delayIsThePercentile(t *testing.T) {
	for extra, want := range map[float64]time.Duration{0.01: 100 * ms, 0.1: 50 * ms} {
		for _, blind := range []bool{false, true} {
			h := newHedger(t, HedgeConfig{MaxExtraLoad: extra, BlindStart: blind}, nil)
			feed(h, ms)
			h.Begin(11 * time.Second)
			if got := h.Delay(); !near(got, want) {
				t.Errorf("extra load %v, blind %v: delay %v, want %v", extra, blind, got, want)
			}
		}
	}
}

// The reference hedges after 1 ms while its first window has not ended.
func TestHedger_startsBlindOnlyAsTheReference(t *testing.T) {
	for blind, want := range map[bool][4]time.Duration{
		true:  {NoHedge, NoHedge, ms, 50 * ms},
		false: {NoHedge, 50 * ms, 50 * ms, 50 * ms},
	} {
		h := newHedger(t, HedgeConfig{MaxExtraLoad: 0.1, BlindStart: blind}, nil)
		var got [4]time.Duration
		got[0] = h.Begin(0)
		for i := range 100 {
			h.Record(time.Duration(i)*ms, 50*ms)
		}
		got[1] = h.Begin(time.Second)
		got[2] = h.Begin(4 * time.Second)
		got[3] = h.Begin(13 * time.Second)
		for i := range got {
			if got[i] != want[i] && !near(got[i], want[i]) {
				t.Errorf("blind %v: delays %v, want %v", blind, got, want)
				break
			}
		}
	}
}

func TestHedger_keepsItsDelayThroughAQuietTime(t *testing.T) {
	h := newHedger(t, HedgeConfig{MaxExtraLoad: 0.1}, nil)
	feed(h, ms)
	h.Begin(4 * time.Second)
	if got := h.Begin(time.Hour); !near(got, 50*ms) {
		t.Errorf("delay %v after an hour, want 50ms", got)
	}
}

func TestHedger_bounds(t *testing.T) {
	for name, c := range map[string]struct {
		config  HedgeConfig
		latency time.Duration
		want    time.Duration
	}{
		"all latencies 0":     {HedgeConfig{MaxExtraLoad: .1}, 0, ms},
		"a longer least":      {HedgeConfig{MaxExtraLoad: .1, MinDelay: 7 * ms}, 0, 7 * ms},
		"just below the most": {HedgeConfig{MaxExtraLoad: .1}, 1900 * ms, 1900 * ms},
		"the most":            {HedgeConfig{MaxExtraLoad: .1}, 2 * time.Second, NoHedge},
		"more than the most":  {HedgeConfig{MaxExtraLoad: .1}, time.Minute, NoHedge},
	} {
		h := newHedger(t, c.config, nil)
		for range 100 {
			h.Record(ms, c.latency)
		}
		h.Begin(4 * time.Second)
		if got := h.Delay(); got != c.want && !near(got, c.want) {
			t.Errorf("%s: delay %v, want %v", name, got, c.want)
		}
	}
}

func TestHedger_needsBothBudgets(t *testing.T) {
	client := newBudget(t, BudgetConfig{TTL: 10 * time.Second, MinPerSecond: 1})
	h := newHedger(t, HedgeConfig{MaxExtraLoad: 0.01}, client)
	for i := range 300 {
		if h.Begin(0); h.own.Balance(0) != (i+1)/100 {
			t.Fatalf("own balance %d after %d requests", h.own.Balance(0), i+1)
		}
	}
	if client.Balance(0) != 1 {
		t.Errorf("client's balance %d: requests must not pay in twice", client.Balance(0))
	}
	if !h.Send(0) || h.own.Balance(0) != 2 || client.Balance(0) != 0 {
		t.Errorf("balances %d and %d after one backup", h.own.Balance(0), client.Balance(0))
	}
	if h.Send(0) || h.own.Balance(0) != 2 {
		t.Errorf("own balance %d: a backup that the client's budget refuses costs nothing", h.own.Balance(0))
	}
	poor := newHedger(t, HedgeConfig{MaxExtraLoad: 0.01}, InfiniteBudget())
	poor.Begin(0)
	if poor.Send(0) {
		t.Error("a backup without an own balance")
	}
}

func TestHedgeConfig_CheckNamesTheField(t *testing.T) {
	for name, c := range map[string]HedgeConfig{
		"nothing": {}, "load 1": {MaxExtraLoad: 1}, "load NaN": {MaxExtraLoad: math.NaN()}, "load -1": {MaxExtraLoad: -1},
		"min delay": {MaxExtraLoad: .1, MinDelay: -1}, "max below min": {MaxExtraLoad: .1, MinDelay: time.Second, MaxDelay: ms},
		"refresh": {MaxExtraLoad: .1, Refresh: 1}, "window": {MaxExtraLoad: .1, Window: 1}, "samples": {MaxExtraLoad: .1, MinSamples: -1},
	} {
		if _, err := NewHedger(c, nil, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAdmission(t *testing.T) {
	newAdmission := func() *Admission {
		a, err := NewAdmission(DefaultAdmission(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	// step sends 10 requests a second for a while; refused says how they end.
	step := func(a *Admission, from, to time.Duration, random func() float64, refused bool) (sent, dropped int) {
		for now := from; now < to; now += 100 * ms {
			if a.Admit(now, random()) {
				sent++
				a.Answered(now, refused)
			} else {
				dropped++
			}
		}
		return sent, dropped
	}
	rng := rand.New(rand.NewPCG(1, 1))
	zero := func() float64 { return 0 }

	a := newAdmission()
	// 2 min · ln 2 = 83 s of refusals halve the average.
	if _, dropped := step(a, 0, 83*time.Second, zero, true); dropped != 0 {
		t.Errorf("%d dropped while half are accepted (average %v)", dropped, a.Accepted())
	}
	if _, dropped := step(a, 83*time.Second, 85*time.Second, zero, true); dropped == 0 {
		t.Errorf("none dropped below the threshold (average %v)", a.Accepted())
	}
	sent, dropped := step(a, 85*time.Second, time.Hour, rng.Float64, true)
	if share := float64(dropped) / float64(sent+dropped); share < 0.72 || share > 0.75 {
		t.Errorf("%.3f dropped in the long run, want 0.75 at most", share)
	}
	if _, dropped := step(a, time.Hour, time.Hour+5*time.Minute, rng.Float64, false); dropped == 0 || a.Accepted() < 0.5 {
		t.Errorf("%d dropped, average %v: it does not recover", dropped, a.Accepted())
	}
	if _, dropped := step(a, time.Hour+5*time.Minute, time.Hour+6*time.Minute, zero, false); dropped != 0 {
		t.Errorf("%d dropped after it recovered", dropped)
	}

	slow := newAdmission()
	for now := time.Duration(0); now < time.Hour; now += 300 * ms {
		if !slow.Admit(now, 0) {
			t.Fatal("dropped below the least rate")
		}
		slow.Answered(now, true)
	}
}

func TestAdmissionConfig_CheckNamesTheField(t *testing.T) {
	for name, change := range map[string]func(*AdmissionConfig){
		"window":          func(c *AdmissionConfig) { c.Window = 0 },
		"threshold 0":     func(c *AdmissionConfig) { c.Threshold = 0 },
		"threshold 1":     func(c *AdmissionConfig) { c.Threshold = 1 },
		"max drop 1":      func(c *AdmissionConfig) { c.MaxDrop = 1 },
		"max drop NaN":    func(c *AdmissionConfig) { c.MaxDrop = math.NaN() },
		"least rate of 1": func(c *AdmissionConfig) { c.MinPerSecond = -1 },
	} {
		c := DefaultAdmission()
		change(&c)
		if _, err := NewAdmission(c, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
