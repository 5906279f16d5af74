package balance

import (
	"fmt"
	"math"
	"time"
)

// FailurePolicy decides when an endpoint has failed often enough to be left
// alone. One belongs to one endpoint; its calls come one at a time.
type FailurePolicy interface {
	// Success is told of a request that succeeded.
	Success(now time.Duration)
	// Failure is told of one that failed. fire says that the endpoint should be left
	// alone for the sentence, which must not be negative.
	Failure(now time.Duration) (sentence time.Duration, fire bool)
	// Revived is told that the endpoint passed its probe, and, once, that it starts.
	Revived(now time.Duration)
}

// Forgiving is a FailurePolicy that need not be told of every success. The ones in
// this package are. While it is spotless, successes are only counted, which
// costs a request nothing.
type Forgiving interface {
	FailurePolicy
	// Spotless says that a success now would change nothing but counts.
	Spotless() bool
	// CatchUp tells of successes that came since then, all while spotless.
	CatchUp(successes uint64, then, now time.Duration)
}

// NewFailurePolicy makes the policy of one endpoint. The random numbers are for
// sentences. The config's Accrual is one.
type NewFailurePolicy func(Rand) FailurePolicy

// Sentence returns how long an endpoint is left alone at its n-th conviction
// since it was last healthy, n from 0.
type Sentence func(n int, random uint64) time.Duration

// unit turns random bits into a number in [0, 1).
func unit(random uint64) float64 { return float64(random>>11) / (1 << 53) }

// ConstantSentence is always d.
func ConstantSentence(d time.Duration) Sentence {
	return func(int, uint64) time.Duration { return max(d, 0) }
}

// JitteredSentence starts with start; each further one is twice as long as the
// one before, of which the second half is random, up to limit.
func JitteredSentence(start, limit time.Duration) Sentence {
	return func(n int, random uint64) time.Duration {
		if n <= 0 {
			return max(min(start, limit), 0)
		}
		half := float64(start) * math.Pow(2, float64(n-1))
		d := half + half*unit(random)
		if half >= float64(limit) || d >= float64(limit) {
			return limit
		}
		return time.Duration(d)
	}
}

// ScheduledSentence takes the given ones in turn and then 300 s for ever.
func ScheduledSentence(sentences ...time.Duration) Sentence {
	return func(n int, _ uint64) time.Duration {
		if n < len(sentences) {
			return max(sentences[n], 0)
		}
		return 300 * time.Second
	}
}

// DefaultSentence is jittered from 5 s to 300 s.
func DefaultSentence() Sentence { return JitteredSentence(5*time.Second, 300*time.Second) }

// DefaultFailureAccrual convicts after 5 consecutive failures, or when under 80 %
// of at least 5 requests succeeded over 30 s, whichever comes first.
func DefaultFailureAccrual() NewFailurePolicy {
	return AnyOf(
		SuccessRateWithin(0.8, 30*time.Second, 5, DefaultSentence()),
		ConsecutiveFailures(5, DefaultSentence()),
	)
}

// ConsecutiveFailures convicts at n failures in a row. n below 1 counts as 1.
func ConsecutiveFailures(n int, sentence Sentence) NewFailurePolicy {
	return func(r Rand) FailurePolicy {
		return &consecutive{limit: max(n, 1), record: record{sentence: sentence, rand: r}}
	}
}

// SuccessRate convicts when under required (0 to 1) of about the last window
// requests succeeded; never before window requests.
func SuccessRate(required float64, window int, sentence Sentence) NewFailurePolicy {
	return func(r Rand) FailurePolicy {
		return &rateByCount{required: required, window: max(window, 1), record: record{sentence: sentence, rand: r}}
	}
}

// SuccessRateWithin convicts when under required (0 to 1) of the requests within
// about window succeeded and there were at least minRequests in it; never before the
// endpoint is window old.
func SuccessRateWithin(required float64, window time.Duration, minRequests int, sentence Sentence) NewFailurePolicy {
	return func(r Rand) FailurePolicy {
		return &rateByTime{required: required, window: max(window, parts), min: minRequests, record: record{sentence: sentence, rand: r}}
	}
}

// AnyOf convicts when one of the policies does; the longest sentence counts.
func AnyOf(policies ...NewFailurePolicy) NewFailurePolicy {
	return func(r Rand) FailurePolicy {
		made := make(anyOf, len(policies))
		for i, p := range policies {
			made[i] = p(r)
		}
		return made
	}
}

// record counts convictions.
type record struct {
	sentence Sentence
	rand     Rand
	count    int
}

func (r *record) next() time.Duration {
	d := r.sentence(r.count, r.rand())
	r.count++
	return d
}

type consecutive struct {
	record
	limit, failures int
}

func (c *consecutive) Success(time.Duration) { c.failures = 0 }

func (c *consecutive) Failure(time.Duration) (time.Duration, bool) {
	c.failures++
	if c.failures < c.limit {
		return 0, false
	}
	return c.next(), true
}

func (c *consecutive) Revived(time.Duration) { c.failures, c.count = 0, 0 }

// Spotless implements Forgiving.
func (c *consecutive) Spotless() bool { return c.failures == 0 }

// CatchUp implements Forgiving.
func (c *consecutive) CatchUp(uint64, time.Duration, time.Duration) {}

// spotless is the rate from which failures count as forgotten.
const spotless = 0.9999

type rateByCount struct {
	record
	required float64
	window   int
	seen     int
	rate     float64
}

func (p *rateByCount) observe(x float64) {
	if p.seen == 0 {
		p.rate = x
	} else {
		w := math.Exp(-1 / float64(p.window))
		p.rate = x*(1-w) + p.rate*w
	}
	p.seen++
}

func (p *rateByCount) Success(time.Duration) { p.observe(1) }

func (p *rateByCount) Failure(time.Duration) (time.Duration, bool) {
	p.observe(0)
	if p.seen < p.window || p.rate >= p.required {
		return 0, false
	}
	return p.next(), true
}

func (p *rateByCount) Revived(time.Duration) { p.seen, p.rate, p.count = 0, 0, 0 }

// Spotless implements Forgiving.
func (p *rateByCount) Spotless() bool { return p.seen >= p.window && p.rate >= spotless }

// CatchUp implements Forgiving.
func (p *rateByCount) CatchUp(successes uint64, _, _ time.Duration) {
	if successes > 0 {
		p.rate = 1
	}
}

// parts is into how many pieces the window of request counts is cut.
const parts = 5

type rateByTime struct {
	record
	required float64
	window   time.Duration
	min      int

	since   time.Duration // it started or was revived
	last    time.Duration
	started bool // a first request was seen
	rate    float64
	counts  [parts]int
	slice   int64 // number of the newest slice
}

func (p *rateByTime) observe(now time.Duration, x float64) {
	slice := int64(now / (p.window / parts))
	switch {
	case slice-p.slice >= parts:
		p.counts = [parts]int{}
		p.slice = slice
	default:
		for p.slice < slice {
			p.slice++
			p.counts[p.slice%parts] = 0
		}
	}
	p.counts[p.slice%parts]++
	if !p.started {
		p.started, p.rate = true, x
		p.last = now
		return
	}
	if now > p.last {
		w := math.Exp(-float64(now-p.last) / float64(p.window))
		p.rate = x*(1-w) + p.rate*w
		p.last = now
	}
}

func (p *rateByTime) Success(now time.Duration) { p.observe(now, 1) }

func (p *rateByTime) Failure(now time.Duration) (time.Duration, bool) {
	p.observe(now, 0)
	n := 0
	for _, c := range p.counts {
		n += c
	}
	if now-p.since < p.window || n < p.min || p.rate >= p.required {
		return 0, false
	}
	return p.next(), true
}

func (p *rateByTime) Revived(now time.Duration) {
	p.started, p.rate, p.count, p.since, p.last = false, 0, 0, now, now
	p.counts, p.slice = [parts]int{}, int64(now/(p.window/parts))
}

// Spotless implements Forgiving.
func (p *rateByTime) Spotless() bool { return !p.started || p.rate >= spotless }

// CatchUp implements Forgiving. It takes the successes as evenly spread.
func (p *rateByTime) CatchUp(successes uint64, then, now time.Duration) {
	if successes == 0 {
		return
	}
	p.started, p.rate = true, 1
	elapsed := max(now-then, 1)
	p.last = max(p.last, now-elapsed/time.Duration(min(successes, 1<<30)+1))
	slice := p.window / parts
	for i := range time.Duration(parts) {
		// The part of [then, now] that lies in the slice i parts ago.
		number := int64(now/slice) - int64(i)
		from, to := max(then, time.Duration(number)*slice), min(now, time.Duration(number+1)*slice)
		if number < 0 || to <= from {
			break
		}
		if number > p.slice {
			if number-p.slice >= parts {
				p.counts = [parts]int{}
			}
			for s := max(p.slice+1, number-parts+1); s <= number; s++ {
				p.counts[s%parts] = 0
			}
			p.slice = number
		}
		p.counts[number%parts] += int(math.Round(float64(min(successes, 1<<30)) * float64(to-from) / float64(elapsed)))
	}
}

type anyOf []FailurePolicy

// Spotless implements Forgiving.
func (a anyOf) Spotless() bool {
	for _, p := range a {
		if f, ok := p.(Forgiving); !ok || !f.Spotless() {
			return false
		}
	}
	return true
}

// CatchUp implements Forgiving.
func (a anyOf) CatchUp(successes uint64, then, now time.Duration) {
	for _, p := range a {
		if f, ok := p.(Forgiving); ok {
			f.CatchUp(successes, then, now)
		}
	}
}

func (a anyOf) Success(now time.Duration) {
	for _, p := range a {
		p.Success(now)
	}
}

func (a anyOf) Failure(now time.Duration) (time.Duration, bool) {
	var longest time.Duration
	fired := false
	for _, p := range a {
		if d, fire := p.Failure(now); fire {
			longest, fired = max(longest, d), true
		}
	}
	return longest, fired
}

func (a anyOf) Revived(now time.Duration) {
	for _, p := range a {
		p.Revived(now)
	}
}

// FailFast says how long an endpoint is left alone after a connection to it
// failed: Initial the first time, then twice as long each time with jitter, at most
// Max. 0 means 1 s and 32 s.
type FailFast struct{ Initial, Max time.Duration }

func (f FailFast) withDefaults() FailFast {
	if f.Initial == 0 {
		f.Initial = time.Second
	}
	if f.Max == 0 {
		f.Max = max(32*time.Second, f.Initial)
	}
	return f
}

func (f FailFast) check() error {
	if f.Initial < 0 || f.Max < f.Initial {
		return fmt.Errorf("balance: fail-fast waits are %v to %v; they need 0 < initial ≤ max", f.Initial, f.Max)
	}
	return nil
}
