package retry

import (
	"fmt"
	"math"
	"time"
)

// Earn says which requests pay into the budget.
type Earn uint8

const (
	// EarnAlways: every logical request, when it starts.
	EarnAlways Earn = iota
	// EarnOnSuccess: every logical request that succeeds, when it ends. Then a long
	// outage leaves only the reserve.
	EarnOnSuccess
	// EarnNever: somebody else pays into the budget.
	EarnNever
)

// Policy says how often, when and for how long a request is sent again. There
// are no hidden defaults: start from [DefaultPolicy]. Zero values switch off.
type Policy struct {
	// MaxRequeues bounds how often one logical request is sent again after
	// Requeueable outcomes. 0 to 1000.
	MaxRequeues int
	// RequeueShare bounds it further, to this share of the budget's balance at the
	// request's first such outcome, rounded up. 0 means no further bound.
	RequeueShare float64
	// RequeueWait is the wait before each requeue; nil means none.
	RequeueWait Schedule

	// MaxRetries bounds how often one logical request is sent again after Retryable
	// outcomes. 0 to 1000.
	MaxRetries int
	// RetryWait is the wait before each retry; nil means none.
	RetryWait Schedule

	// MaxConnects bounds how often one logical request is tried again after
	// Unconnected outcomes. These draw on no budget. 0 to 1000.
	MaxConnects int
	// ConnectWait is the wait before each; nil means none.
	ConnectWait Schedule

	// Total bounds the time of the logical request with all attempts and waits; 0
	// means that only the caller's deadline does.
	Total time.Duration
	// PerAttempt bounds the time of each attempt; 0 means not at all.
	PerAttempt time.Duration

	// Earn says whether requests under this policy pay into the budget.
	Earn Earn
}

// DefaultPolicy sends a request again at most 5 times after refusals, 2 times
// after other failures that are safe to retry, with decorrelated waits of 5 ms to
// 200 ms, and has no timeouts.
func DefaultPolicy() Policy {
	return Policy{
		MaxRequeues:  5,
		RequeueShare: 0.2,
		// The first requeue goes out at once, to another endpoint. Who is refused
		// again meets a set that is full, and gives it time.
		RequeueWait: Concat(Take(Constant(0), 1), ExponentialJittered(5*time.Millisecond, 200*time.Millisecond)),
		MaxRetries:  2,
		RetryWait:   DecorrelatedJittered(5*time.Millisecond, 200*time.Millisecond),
		MaxConnects: 25,
		ConnectWait: Concat(Take(Constant(0), 5), ExponentialJittered(5*time.Millisecond, 200*time.Millisecond)),
	}
}

// ReferencePolicy is how Finagle's client behaves without configuration: no
// bound on requeues but the share of the balance, no waits between them, and
// payment on success. With a burst budget one request can be sent 38 times at
// once. It is here to compare.
func ReferencePolicy() Policy {
	return Policy{
		MaxRequeues: 1000, RequeueShare: 0.2,
		MaxRetries: 2, RetryWait: DecorrelatedJittered(5*time.Millisecond, 200*time.Millisecond),
		MaxConnects: 25,
		Earn:        EarnOnSuccess,
	}
}

const maxTries = 1000

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (p Policy) Check() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"max requeues", p.MaxRequeues}, {"max retries", p.MaxRetries}, {"max connects", p.MaxConnects}} {
		if f.value < 0 || f.value > maxTries {
			return fmt.Errorf("retry: %s is %d; it must be between 0 and %d", f.name, f.value, maxTries)
		}
	}
	switch {
	case !(p.RequeueShare >= 0 && p.RequeueShare <= 1000):
		return fmt.Errorf("retry: requeue share is %v; it must be between 0 and 1000", p.RequeueShare)
	case p.Total < 0:
		return fmt.Errorf("retry: total timeout is %v; it must not be negative", p.Total)
	case p.PerAttempt < 0:
		return fmt.Errorf("retry: timeout per attempt is %v; it must not be negative", p.PerAttempt)
	case p.Earn > EarnNever:
		return fmt.Errorf("retry: earn is %d; it must be EarnAlways, EarnOnSuccess or EarnNever", p.Earn)
	}
	return nil
}

// share is the most requeues that a balance allows one request.
func (p Policy) share(balance int) int {
	if p.RequeueShare == 0 {
		return p.MaxRequeues
	}
	if balance <= 0 {
		return 0
	}
	return int(min(math.Ceil(p.RequeueShare*float64(balance)), float64(p.MaxRequeues)))
}
