package retry

import (
	"math"
	"sync"
	"testing"
	"time"
)

func newBudget(t testing.TB, c BudgetConfig) *Budget {
	t.Helper()
	b, err := NewBudget(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// both runs a test with the paced and with Finagle's reserve.
func both(t *testing.T, f func(t *testing.T, burst bool)) {
	t.Run("paced", func(t *testing.T) { f(t, false) })
	t.Run("burst", func(t *testing.T) { f(t, true) })
}

func TestBudget_allowsItsShare(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		for _, share := range []float64{.0001, .001, .01, .1, .2, .25, .3, .5, .75, .9, .99, .999, .9999} {
			b := newBudget(t, BudgetConfig{TTL: time.Minute, Share: share, BurstReserve: burst})
			retries := 0
			for range 10000 {
				b.Deposit(0)
				if b.Withdraw(0) {
					retries++
				}
			}
			// A retry costs a whole number of tokens, cut from 1000 / share.
			want := 10000 * 1000 / math.Floor(1000/share)
			if math.Abs(float64(retries)-want) > 1 || share != .3 && share != .75 && share < .9 && math.Abs(float64(retries)-10000*share) > 1 {
				t.Errorf("share %v: %d retries, want %v", share, retries, want)
			}
		}
	})
}

func TestBudget_shareOverOne(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		b := newBudget(t, BudgetConfig{TTL: time.Minute, Share: 2, BurstReserve: burst})
		for range 10000 {
			b.Deposit(0)
		}
		if got := b.Balance(0); got != 20000 {
			t.Errorf("balance %d, want 20000", got)
		}
	})
}

func TestBudget_burstReserveIsThereAtOnce(t *testing.T) {
	for _, c := range []BudgetConfig{
		{TTL: time.Second, MinPerSecond: 10}, {TTL: 2 * time.Second, MinPerSecond: 5},
		{TTL: time.Second, MinPerSecond: 10, Share: .1}, {TTL: 2 * time.Second, MinPerSecond: 5, Share: .5},
	} {
		c.BurstReserve = true
		b := newBudget(t, c)
		if got := b.Balance(0); got != 10 {
			t.Errorf("%+v: balance %d at the start, want 10", c, got)
		}
		retries := 0
		for range 10000 {
			b.Deposit(0)
			if b.Withdraw(0) {
				retries++
			}
		}
		if want := 10 + 10000*c.Share; math.Abs(float64(retries)-want) > 1 {
			t.Errorf("%+v: %d retries, want %v", c, retries, want)
		}
	}
}

func TestBudget_pacedReserveHoldsASecond(t *testing.T) {
	b := newBudget(t, BudgetConfig{TTL: 10 * time.Second, MinPerSecond: 10})
	take := func(now time.Duration) (n int) {
		for b.Withdraw(now) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		at   time.Duration
		want int
	}{{0, 10}, {50 * ms, 0}, {100 * ms, 1}, {600 * ms, 5}, {time.Minute, 10}, {30 * time.Second, 0}, {time.Minute + 200*ms, 2}} {
		if got := take(step.at); got != step.want {
			t.Errorf("at %v: %d retries, want %d", step.at, got, step.want)
		}
	}
}

func TestBudget_depositsExpire(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		b := newBudget(t, BudgetConfig{TTL: 10 * time.Second, Share: 1, BurstReserve: burst})
		for i := range 100 { // 10 a second, for 10 s
			b.Deposit(time.Duration(i) * 100 * ms)
		}
		for _, step := range []struct {
			at       time.Duration
			min, max int
		}{{9950 * ms, 100, 100}, {12 * time.Second, 70, 90}, {15 * time.Second, 40, 60}, {25 * time.Second, 0, 0}, {time.Hour, 0, 0}} {
			if got := b.Balance(step.at); got < step.min || got > step.max {
				t.Errorf("at %v: balance %d, want %d to %d", step.at, got, step.min, step.max)
			}
		}
	})
}

func TestBudget_emptyAndInfinite(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		for name, b := range map[string]*Budget{
			"empty": EmptyBudget(), "nothing set": newBudget(t, BudgetConfig{TTL: time.Second, BurstReserve: burst}),
		} {
			b.Deposit(0)
			b.Return(0)
			if b.Withdraw(0) || b.Balance(0) != 0 {
				t.Errorf("%s: allows a retry", name)
			}
		}
	})
	b := InfiniteBudget()
	for range 1000 {
		if !b.Withdraw(0) || b.Balance(0) != 100 {
			t.Fatal("an infinite budget refused")
		}
	}
}

func TestBudget_returnGivesBack(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		for _, c := range []BudgetConfig{
			{TTL: time.Second, Share: .5}, {TTL: time.Second, MinPerSecond: 1}, {TTL: time.Second, MinPerSecond: 1, Share: .5},
		} {
			c.BurstReserve = burst
			b := newBudget(t, c)
			b.Deposit(0)
			b.Deposit(0)
			before := b.Balance(0)
			if !b.Withdraw(0) || b.Balance(0) != before-1 {
				t.Fatalf("%+v: no retry from a balance of %d", c, before)
			}
			if b.Return(0); b.Balance(0) != before {
				t.Errorf("%+v: balance %d after a return, want %d", c, b.Balance(0), before)
			}
		}
	})
}

func TestBudgetConfig_CheckNamesTheField(t *testing.T) {
	for want, change := range map[string]func(*BudgetConfig){
		"ttl 0":          func(c *BudgetConfig) { c.TTL = 0 },
		"ttl 61s":        func(c *BudgetConfig) { c.TTL = 61 * time.Second },
		"min -1":         func(c *BudgetConfig) { c.MinPerSecond = -1 },
		"min too high":   func(c *BudgetConfig) { c.MinPerSecond = 1_000_001 },
		"share -1":       func(c *BudgetConfig) { c.Share = -1 },
		"share 1001":     func(c *BudgetConfig) { c.Share = 1001 },
		"share NaN":      func(c *BudgetConfig) { c.Share = math.NaN() },
		"share infinite": func(c *BudgetConfig) { c.Share = math.Inf(1) },
	} {
		c := DefaultBudget()
		change(&c)
		if b, err := NewBudget(c); err == nil || b != nil {
			t.Errorf("%s: no error", want)
		}
	}
	if _, err := NewBudget(BudgetConfig{TTL: time.Minute, MinPerSecond: 1_000_000, Share: 1e-12, BurstReserve: true}); err != nil {
		t.Error(err)
	}
}

func TestBudget_sharedByManyNeverAllowsMore(t *testing.T) {
	both(t, func(t *testing.T, burst bool) {
		b := newBudget(t, BudgetConfig{TTL: time.Minute, Share: .2, BurstReserve: burst})
		var wg sync.WaitGroup
		got := make([]int, 8)
		for g := range got {
			wg.Go(func() {
				for range 1000 {
					b.Deposit(0)
					for b.Withdraw(0) {
						got[g]++
					}
				}
			})
		}
		wg.Wait()
		total := 0
		for _, n := range got {
			total += n
		}
		if total != 1600 {
			t.Errorf("%d retries for 8000 requests, want 1600", total)
		}
	})
}

func FuzzBudget_balanceAndWithdrawAgree(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 200, 1, 1}, int64(time.Second), 3, 0.2)
	f.Fuzz(func(t *testing.T, ops []byte, step int64, reserve int, share float64) {
		for _, burst := range []bool{false, true} {
			b, err := NewBudget(BudgetConfig{TTL: 10 * time.Second, MinPerSecond: reserve, Share: share, BurstReserve: burst})
			if err != nil {
				return
			}
			var now time.Duration
			for _, op := range ops {
				switch op % 4 {
				case 0:
					b.Deposit(now)
				case 1:
					before := b.Balance(now)
					if ok := b.Withdraw(now); ok != (before >= 1) {
						t.Fatalf("balance %d, but Withdraw said %v", before, ok)
					}
				case 2:
					now += time.Duration(step % int64(time.Hour))
				case 3:
					now -= time.Duration(op) * time.Millisecond
				}
				if got := b.Balance(now); !burst && got < 0 {
					t.Fatalf("balance %d", got)
				}
			}
		}
	})
}

func BenchmarkBudget(b *testing.B) {
	for name, burst := range map[string]bool{"paced": false, "burst": true} {
		b.Run(name, func(b *testing.B) {
			budget := newBudget(b, BudgetConfig{TTL: 10 * time.Second, MinPerSecond: 10, Share: .2, BurstReserve: burst})
			b.ReportAllocs()
			var now time.Duration
			for b.Loop() {
				now += 10 * time.Microsecond
				budget.Deposit(now)
			}
		})
	}
}
