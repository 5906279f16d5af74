package retry

import (
	"math/rand/v2"
	"testing"
	"time"
)

// storm runs 100 clients for 60 s; from 10 s to 40 s the servers fail half of all
// attempts. It returns attempts per request in that time, and in its last 20 s.
func storm(t *testing.T, perSecond int, budget func() *Budget) (all, late float64) {
	p := DefaultPolicy()
	p.MaxRetries = 4
	rng := rand.New(rand.NewPCG(11, 12))
	var retriers []*Retrier
	for range 100 {
		r, err := NewRetrier(p, budget(), nil, rng.Float64)
		if err != nil {
			t.Fatal(err)
		}
		retriers = append(retriers, r)
	}
	var requests, attempts, lateRequests, lateAttempts float64
	for tick := range 60 * perSecond {
		now := time.Duration(tick) * time.Second / time.Duration(perSecond)
		bad := now >= 10*time.Second && now < 40*time.Second
		for _, r := range retriers {
			call := r.Begin(now, NoDeadline)
			n := 0.0
			for again := true; again; n++ {
				class := Success
				if bad && rng.Float64() < .5 {
					class = Retryable
				}
				if again = call.Done(now, class, 0).Again(); !again {
					call.End(now, class)
				}
			}
			if bad {
				requests, attempts = requests+1, attempts+n
				if now >= 20*time.Second {
					lateRequests, lateAttempts = lateRequests+1, lateAttempts+n
				}
			}
		}
	}
	return attempts / requests, lateAttempts / lateRequests
}

func TestStorm_theBudgetHoldsTheLoadDown(t *testing.T) {
	const perSecond = 100
	reserve := 10.0 / perSecond
	for name, c := range map[string]BudgetConfig{
		"paced":             {TTL: 10 * time.Second, MinPerSecond: 10, Share: .2},
		"paced, no reserve": {TTL: 10 * time.Second, Share: .2},
		"Finagle's lump":    {TTL: 10 * time.Second, MinPerSecond: 10, Share: .2, BurstReserve: true},
	} {
		all, late := storm(t, perSecond, func() *Budget { return newBudget(t, c) })
		t.Logf("%s: %.3f attempts per request, %.3f in the last 20 s", name, all, late)
		extra := reserve
		if c.MinPerSecond == 0 {
			extra = 0
		}
		// What the 10 s before the outage have saved is spent in it once.
		saved := 0.2 * 10 / 30
		if all > 1.2+extra+saved+.01 || late > 1.2+extra+.01 {
			t.Errorf("%s: the load is %.3f times the requests, %.3f in the last 20 s; want 1.2 and the reserve's %.1f", name, all, late, extra)
		}
	}
	if all, _ := storm(t, perSecond, InfiniteBudget); all < 1.85 {
		t.Errorf("without a budget the load is %.3f times the requests: that is no storm", all)
	}
}
