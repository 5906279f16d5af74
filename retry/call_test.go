package retry

import (
	"math"
	"slices"
	"testing"
	"time"
)

// recorder is an Observer for one goroutine.
type recorder struct {
	counts   [Counts]int
	attempts []Class
	logical  []Class
	latency  []time.Duration
	tries    []Tries
}

func (r *recorder) Attempt(c Class, _ time.Duration) { r.attempts = append(r.attempts, c) }
func (r *recorder) Logical(c Class, d time.Duration, t Tries) {
	r.logical = append(r.logical, c)
	r.latency = append(r.latency, d)
	r.tries = append(r.tries, t)
}
func (r *recorder) Count(c Count) { r.counts[c]++ }

func half() float64 { return 0.5 }

func newRetrier(t testing.TB, p Policy, b *Budget) (*Retrier, *recorder) {
	t.Helper()
	rec := &recorder{}
	r, err := NewRetrier(p, b, rec, half)
	if err != nil {
		t.Fatal(err)
	}
	return r, rec
}

// run makes one logical request in virtual time. server says how the attempt
// with this number ends at this time; attempts take no time.
func run(r *Retrier, now time.Duration, server func(attempt int, now time.Duration) Class) (final Class, last Decision, at []time.Duration) {
	c := r.Begin(now, NoDeadline)
	for {
		c.Attempt(now)
		at = append(at, now)
		final = server(c.Number(), now)
		last = c.Done(now, final, 0)
		if !last.Again() {
			break
		}
		now += last.Wait
	}
	c.End(now, final)
	return final, last, at
}

func always(class Class) func(int, time.Duration) Class {
	return func(int, time.Duration) Class { return class }
}

func burst(t testing.TB, ttl time.Duration, perSecond int, share float64) *Budget {
	return newBudget(t, BudgetConfig{TTL: ttl, MinPerSecond: perSecond, Share: share, BurstReserve: true})
}

func TestCall_requeuesUpToItsShareOfTheBalance(t *testing.T) {
	p := ReferencePolicy()
	p.RequeueShare = 0.5
	r, rec := newRetrier(t, p, burst(t, time.Second, 10, 0))
	_, last, at := run(r, 0, always(Requeueable))
	if len(at) != 6 || rec.tries[0].Requeues != 5 || rec.counts[CountRequeues] != 5 {
		t.Errorf("%d attempts, tries %+v, want 5 requeues", len(at), rec.tries[0])
	}
	if rec.counts[CountBudgetExhausted] != 0 || rec.counts[CountRequestLimit] != 1 || !last.NotRetryable {
		t.Errorf("counts %v, last %+v", rec.counts, last)
	}
}

func TestCall_requeuesUntilTheBudgetIsEmpty(t *testing.T) {
	p := ReferencePolicy()
	p.RequeueShare = 2
	r, rec := newRetrier(t, p, burst(t, time.Second, 10, 0))
	_, last, _ := run(r, 0, always(Requeueable))
	if rec.tries[0].Requeues != 10 || rec.counts[CountBudgetExhausted] != 1 || !last.NotRetryable {
		t.Errorf("tries %+v, counts %v, last %+v", rec.tries[0], rec.counts, last)
	}
}

func TestCall_countsRequeuesPerRequest(t *testing.T) {
	p := ReferencePolicy()
	p.RequeueShare = 0.5
	r, rec := newRetrier(t, p, burst(t, time.Second, 10, 0))
	run(r, 0, always(Success))
	run(r, 0, func(n int, _ time.Duration) Class {
		if n == 0 {
			return Requeueable
		}
		return Success
	})
	run(r, 0, always(Requeueable))
	var got []int
	for _, tries := range rec.tries {
		got = append(got, tries.Requeues)
	}
	if !slices.Equal(got, []int{0, 1, 5}) || rec.counts[CountRequestLimit] != 1 {
		t.Errorf("requeues %v, want 0 1 5; counts %v", got, rec.counts)
	}
}

func TestCall_waitsAsScheduledAndEndsWithIt(t *testing.T) {
	p := ReferencePolicy()
	p.RequeueWait = Take(Exponential(time.Second, 2, 0), 3)
	r, rec := newRetrier(t, p, burst(t, time.Minute, 100, 0))
	_, last, at := run(r, 0, always(Requeueable))
	want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}
	if !slices.Equal(at, want) || rec.counts[CountBudgetExhausted] != 1 || !last.NotRetryable {
		t.Errorf("attempts at %v, want %v; counts %v", at, want, rec.counts)
	}
}

func TestCall_numbersItsAttempts(t *testing.T) {
	p := ReferencePolicy()
	p.RequeueShare = 0.5
	r, _ := newRetrier(t, p, burst(t, time.Second, 10, 0))
	var numbers []int
	run(r, 0, func(n int, _ time.Duration) Class { numbers = append(numbers, n); return Requeueable })
	if !slices.Equal(numbers, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("numbers %v", numbers)
	}
}

func TestCall_connectsWithoutABudget(t *testing.T) {
	r, rec := newRetrier(t, ReferencePolicy(), EmptyBudget())
	_, last, _ := run(r, 0, always(Unconnected))
	if rec.tries[0].Connects != 25 || last.NotRetryable {
		t.Errorf("tries %+v, last %+v; want 25 connects", rec.tries[0], last)
	}
}

func TestCall_defaultShareOfASmallBudget(t *testing.T) {
	r, rec := newRetrier(t, ReferencePolicy(), burst(t, time.Second, 3, 0))
	for range 4 {
		run(r, 0, always(Requeueable))
	}
	run(r, 1100*ms, always(Requeueable))
	var got []int
	for _, tries := range rec.tries {
		got = append(got, tries.Requeues)
	}
	if !slices.Equal(got, []int{1, 1, 1, 0, 1}) {
		t.Errorf("requeues %v, want 1 1 1, 0 when spent, and 1 after the ttl", got)
	}
}

func TestCall_policyRetriesDrawOnTheBudget(t *testing.T) {
	p := Policy{MaxRetries: 100, Earn: EarnNever}
	r, rec := newRetrier(t, p, burst(t, time.Second, 20, 0))
	_, last, _ := run(r, 0, always(Retryable))
	if rec.tries[0].Retries != 20 || rec.counts[CountBudgetExhausted] != 1 || !last.NotRetryable {
		t.Errorf("tries %+v, counts %v", rec.tries[0], rec.counts)
	}
}

func TestCall_threeTries(t *testing.T) {
	p := Policy{MaxRetries: 2, RetryWait: DecorrelatedJittered(5*ms, 200*ms)}
	for class, want := range map[Class]int{Requeueable: 3, Retryable: 3, Failed: 1, Success: 1, Ignored: 1, NotRetryable: 1, Unconnected: 1} {
		r, _ := newRetrier(t, p, InfiniteBudget())
		if _, _, at := run(r, 0, always(class)); len(at) != want {
			t.Errorf("%v: %d attempts, want %d", class, len(at), want)
		}
	}
}

func TestCall_notRetryableOverridesAll(t *testing.T) {
	r, rec := newRetrier(t, DefaultPolicy(), InfiniteBudget())
	_, last, at := run(r, 0, func(n int, _ time.Duration) Class {
		if n == 0 {
			return Requeueable
		}
		return NotRetryable
	})
	if len(at) != 2 || rec.tries[0].Requeues != 1 || rec.counts[CountNotRetryable] != 1 || !last.NotRetryable {
		t.Errorf("%d attempts, counts %v, last %+v", len(at), rec.counts, last)
	}
}

func TestCall_refusalsAreLeftToRequeues(t *testing.T) {
	p := DefaultPolicy()
	p.MaxRequeues = 1
	r, rec := newRetrier(t, p, InfiniteBudget())
	run(r, 0, always(Requeueable))
	if rec.tries[0] != (Tries{Requeues: 1}) {
		t.Errorf("tries %+v, want one requeue and no retry", rec.tries[0])
	}
}

func TestCall_maxRetries(t *testing.T) {
	p := DefaultPolicy()
	for _, n := range []int{0, 1, 2, 5} {
		p.MaxRetries = n
		r, rec := newRetrier(t, p, InfiniteBudget())
		run(r, 0, always(Retryable))
		if rec.tries[0].Retries != n {
			t.Errorf("max %d: %d retries", n, rec.tries[0].Retries)
		}
	}
}

func TestCall_depositsOncePerRequest(t *testing.T) {
	for earn, want := range map[Earn][2]int{EarnAlways: {101, 102}, EarnOnSuccess: {101, 101}, EarnNever: {100, 100}} {
		for _, retries := range []int{0, 2} {
			p := Policy{MaxRetries: retries, Earn: earn}
			b := burst(t, 10*time.Second, 10, 0.1)
			r, _ := newRetrier(t, p, b)
			for range 10 {
				run(r, 0, always(Success))
			}
			if got := b.Balance(0); got != want[0] {
				t.Errorf("earn %d, %d retries: balance %d after 10 successes, want %d", earn, retries, got, want[0])
			}
			for range 10 {
				run(r, 0, always(Failed))
			}
			if got := b.Balance(0); got != want[1] {
				t.Errorf("earn %d, %d retries: balance %d after 10 failures, want %d", earn, retries, got, want[1])
			}
		}
	}
}

// Two layers of 4 retries each in front of a server that always fails.
func TestCall_layersDoNotMultiply(t *testing.T) {
	for name, c := range map[string]struct {
		budget            func() *Budget
		back, front, midR int
	}{
		"budgets of 20 %":  {func() *Budget { return newBudget(t, BudgetConfig{TTL: time.Minute, Share: .2}) }, 120, 0, 20},
		"infinite budgets": {InfiniteBudget, 2500, 400, 2000},
	} {
		t.Run(name, func(t *testing.T) {
			p := Policy{MaxRetries: 4}
			front, frontRec := newRetrier(t, p, c.budget())
			mid, midRec := newRetrier(t, p, c.budget())
			back := 0
			for range 100 {
				run(front, 0, func(int, time.Duration) Class {
					final, last, _ := run(mid, 0, func(int, time.Duration) Class { back++; return Retryable })
					if last.NotRetryable {
						return NotRetryable
					}
					return final
				})
			}
			if back != c.back || frontRec.counts[CountRetries] != c.front || midRec.counts[CountRetries] != c.midR {
				t.Errorf("back sees %d, front retries %d, mid %d; want %d, %d, %d",
					back, frontRec.counts[CountRetries], midRec.counts[CountRetries], c.back, c.front, c.midR)
			}
		})
	}
}

// outage sends 50 requests a second for 45 s; from 20 s to 40 s all attempts are
// refused. It returns the requeues of each second and of the most eager request,
// and the lowest balance.
func outage(t *testing.T, p Policy, c BudgetConfig, look func(now time.Duration, requeues int, b *Budget)) (perSecond [45]int, most, lowest int) {
	b := newBudget(t, c)
	r, rec := newRetrier(t, p, b)
	for i := range 45 * 50 {
		now := time.Duration(i) * 20 * ms
		class := Success
		if now >= 20*time.Second && now < 40*time.Second {
			class = Requeueable
		}
		// Waits are left out: what counts here is what the budget allows.
		call := r.Begin(now, NoDeadline)
		for call.Done(now, class, 0).Again() {
			continue
		}
		call.End(now, class)
		n := rec.tries[i].Requeues
		perSecond[i/50] += n
		most = max(most, n)
		lowest = min(lowest, b.Balance(now))
		if look != nil {
			look(now, n, b)
		}
	}
	return perSecond, most, lowest
}

func TestOutage_asInTheReference(t *testing.T) {
	c := DefaultBudget()
	c.BurstReserve = true
	type row struct{ balance, requeues int }
	want := map[time.Duration]row{
		980 * ms:         {110, 0}, // the reserve and 50 deposits
		9980 * ms:        {200, 0},
		20 * time.Second: {152, 38},
		20020 * ms:       {121, 31},
		20180 * ms:       {19, 5},
		20980 * ms:       {0, 0},
		21980 * ms:       {-10, 0}, // deposits expire before the withdrawals do
		29980 * ms:       {-90, 0},
		30 * time.Second: {80, 20}, // the withdrawals expire
		30980 * ms:       {0, 0},
		39980 * ms:       {0, 0},
		40980 * ms:       {110, 0},
	}
	seen := 0
	perSecond, most, lowest := outage(t, ReferencePolicy(), c, func(now time.Duration, n int, b *Budget) {
		if w, ok := want[now]; ok {
			seen++
			if got := (row{b.Balance(now), n}); got != w {
				t.Errorf("at %v: balance and requeues %v, want %v", now, got, w)
			}
		}
	})
	if seen != len(want) {
		t.Errorf("%d of %d rows seen", seen, len(want))
	}
	// What happens in the seconds after: nothing for nine, then all at once.
	if perSecond[20] != 190 || most != 38 || lowest != -90 {
		t.Errorf("%d requeues in the first second, %d for one request, lowest balance %d; want 190, 38, -90", perSecond[20], most, lowest)
	}
	for s := 21; s < 40; s++ {
		want := 0
		if s == 30 {
			want = 100
		}
		if perSecond[s] != want {
			t.Errorf("%d requeues in second %d, want %d", perSecond[s], s, want)
		}
	}
}

func TestOutage_withAPacedReserve(t *testing.T) {
	perSecond, most, lowest := outage(t, DefaultPolicy(), DefaultBudget(), nil)
	if most != DefaultPolicy().MaxRequeues || lowest < 0 {
		t.Errorf("%d requeues for one request, lowest balance %d", most, lowest)
	}
	for s := 20; s < 40; s++ {
		// 50 requests a second earn 10 retries, the reserve gives 10.
		if perSecond[s] < 10 || s > 22 && perSecond[s] > 21 {
			t.Errorf("%d requeues in second %d, want 20", perSecond[s], s)
		}
	}
	// Without earnings in the outage the promise is the reserve, every second.
	p := DefaultPolicy()
	p.Earn = EarnOnSuccess
	perSecond, _, lowest = outage(t, p, DefaultBudget(), nil)
	if lowest < 0 {
		t.Errorf("lowest balance %d", lowest)
	}
	for s := 20; s < 40; s++ {
		if perSecond[s] < 10 || s > 22 && perSecond[s] > 11 {
			t.Errorf("earning on success: %d requeues in second %d, want 10", perSecond[s], s)
		}
	}
}

func TestCall_timeouts(t *testing.T) {
	// 50 ms an attempt, 120 ms in all, and a server that takes 51 ms.
	p := Policy{MaxRetries: 5, Total: 120 * ms, PerAttempt: 50 * ms}
	r, rec := newRetrier(t, p, InfiniteBudget())
	c := r.Begin(0, NoDeadline)
	var now time.Duration
	var starts []time.Duration
	for {
		deadline, own := c.Attempt(now)
		starts = append(starts, now)
		class := Retryable
		if now+51*ms <= deadline {
			class = Success
		} else if now = deadline; !own {
			class = Failed // the whole request's time is over: never retried
		}
		if !c.Done(now, class, 0).Again() {
			c.End(now, class)
			break
		}
	}
	if !slices.Equal(starts, []time.Duration{0, 50 * ms, 100 * ms}) || now != 120*ms || rec.tries[0].Retries != 2 {
		t.Errorf("attempts at %v, end at %v, %+v", starts, now, rec.tries[0])
	}
}

func TestCall_theEarlierDeadlineCounts(t *testing.T) {
	r, _ := newRetrier(t, Policy{Total: time.Second, PerAttempt: 100 * ms}, nil)
	for _, c := range []struct{ caller, call, attempt time.Duration }{
		{NoDeadline, 6 * time.Second, 5100 * ms},
		{5500 * ms, 5500 * ms, 5100 * ms},
		{5050 * ms, 5050 * ms, 5050 * ms},
		{time.Hour, 6 * time.Second, 5100 * ms},
	} {
		call := r.Begin(5*time.Second, c.caller)
		deadline, own := call.Attempt(5 * time.Second)
		if call.Deadline() != c.call || deadline != c.attempt || own != (c.attempt == 5100*ms) {
			t.Errorf("caller %v: call %v, attempt %v (own %v)", c.caller, call.Deadline(), deadline, own)
		}
	}
}

func TestCall_doesNotWaitBeyondItsDeadline(t *testing.T) {
	p := Policy{MaxRetries: 5, RetryWait: Constant(100 * ms)}
	b := burst(t, time.Second, 10, 0)
	r, rec := newRetrier(t, p, b)
	c := r.Begin(0, 250*ms)
	for i, want := range []Decision{{Why: Retry, Wait: 100 * ms}, {Why: Retry, Wait: 100 * ms}, {Why: NoTime}} {
		if got := c.Done(time.Duration(i)*100*ms, Retryable, 0); got != want {
			t.Errorf("attempt %d: %+v, want %+v", i, got, want)
		}
	}
	if b.Balance(200*ms) != 8 || rec.counts[CountNoTime] != 1 {
		t.Errorf("balance %d, counts %v: nothing is paid for what is not sent", b.Balance(200*ms), rec.counts)
	}
}

func TestCall_waitsAsLongAsTheServerAsks(t *testing.T) {
	r, _ := newRetrier(t, Policy{MaxRetries: 2, RetryWait: Constant(100 * ms)}, InfiniteBudget())
	c := r.Begin(0, NoDeadline)
	if d := c.Done(0, Retryable, time.Second); d.Wait != time.Second {
		t.Errorf("wait %v, want 1s", d.Wait)
	}
	if d := c.Done(0, Retryable, 50*ms); d.Wait != 100*ms {
		t.Errorf("wait %v, want 100ms", d.Wait)
	}
}

func TestPolicy_CheckNamesTheField(t *testing.T) {
	for _, good := range []Policy{DefaultPolicy(), ReferencePolicy(), {}} {
		if err := good.Check(); err != nil {
			t.Error(err)
		}
	}
	for name, change := range map[string]func(*Policy){
		"requeues -1":    func(p *Policy) { p.MaxRequeues = -1 },
		"requeues 1001":  func(p *Policy) { p.MaxRequeues = 1001 },
		"retries -1":     func(p *Policy) { p.MaxRetries = -1 },
		"connects -1":    func(p *Policy) { p.MaxConnects = -1 },
		"share NaN":      func(p *Policy) { p.RequeueShare = math.NaN() },
		"share -1":       func(p *Policy) { p.RequeueShare = -1 },
		"total -1":       func(p *Policy) { p.Total = -1 },
		"per attempt -1": func(p *Policy) { p.PerAttempt = -1 },
		"earn 9":         func(p *Policy) { p.Earn = 9 },
	} {
		p := DefaultPolicy()
		change(&p)
		if _, err := NewRetrier(p, nil, nil, half); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewRetrier(DefaultPolicy(), nil, nil, nil); err == nil {
		t.Error("no source of random numbers: no error")
	}
}

func BenchmarkCall(b *testing.B) {
	r, err := NewRetrier(DefaultPolicy(), newBudget(b, DefaultBudget()), nil, half)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var now time.Duration
	for b.Loop() {
		now += 10 * time.Microsecond
		c := r.Begin(now, NoDeadline)
		c.Attempt(now)
		c.Done(now, Success, 0)
		c.End(now, Success)
	}
}
