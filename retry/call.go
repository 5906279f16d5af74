package retry

import (
	"errors"
	"time"
)

// Retrier applies one policy to many logical requests. It is safe for
// concurrent use.
type Retrier struct {
	policy   Policy
	budget   *Budget
	observer Observer
	draw     func() float64
}

// NewRetrier makes a retrier. budget is shared by all that send to the same
// servers; nil means EmptyBudget. observer may be nil. draw returns uniform random
// numbers in [0, 1) for jitter and must be safe for concurrent use.
func NewRetrier(p Policy, budget *Budget, observer Observer, draw func() float64) (*Retrier, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if draw == nil {
		return nil, errors.New("retry: no source of random numbers")
	}
	if budget == nil {
		budget = EmptyBudget()
	}
	if observer == nil {
		observer = NoObserver{}
	}
	return &Retrier{p, budget, observer, draw}, nil
}

// Policy returns the policy.
func (r *Retrier) Policy() Policy { return r.policy }

// Budget returns the budget.
func (r *Retrier) Budget() *Budget { return r.budget }

// Observer returns the observer, never nil.
func (r *Retrier) Observer() Observer { return r.observer }

// Call is one logical request. It is used by one goroutine: Begin, then for each
// attempt Attempt and Done, then End.
type Call struct {
	r        *Retrier
	start    time.Duration
	deadline time.Duration // 0: none
	attempt  time.Duration // start of the current attempt

	requeueLimit int // -1: not known yet
	tries        Tries
	requeueWait  Schedule
	retryWait    Schedule
	connectWait  Schedule
}

// Tries counts what one logical request needed beyond its first attempt.
type Tries struct{ Requeues, Retries, Connects int }

// Total is the number of attempts beyond the first.
func (t Tries) Total() int { return t.Requeues + t.Retries + t.Connects }

// NoDeadline is the deadline of a caller who has none.
const NoDeadline time.Duration = 0

// Begin starts a logical request at now. deadline is when its caller gives up, on
// the same clock, or NoDeadline.
func (r *Retrier) Begin(now, deadline time.Duration) Call {
	if total := r.policy.Total; total > 0 && (deadline == NoDeadline || now+total < deadline) {
		deadline = now + total
	}
	if r.policy.Earn == EarnAlways {
		r.budget.Deposit(now)
	}
	return Call{
		r: r, start: now, deadline: deadline, attempt: now, requeueLimit: -1,
		requeueWait: r.policy.RequeueWait, retryWait: r.policy.RetryWait, connectWait: r.policy.ConnectWait,
	}
}

// Deadline returns when the logical request ends at the latest, or NoDeadline.
func (c *Call) Deadline() time.Duration { return c.deadline }

// Number is the number of the current attempt, 0 for the first.
func (c *Call) Number() int { return c.tries.Total() }

// Tries returns what the request has needed so far.
func (c *Call) Tries() Tries { return c.tries }

// Attempt starts an attempt and returns when it must end, or NoDeadline; own
// tells that this is the policy's PerAttempt and not the end of the whole request.
func (c *Call) Attempt(now time.Duration) (deadline time.Duration, own bool) {
	c.attempt = now
	if p := c.r.policy.PerAttempt; p > 0 && (c.deadline == NoDeadline || now+p < c.deadline) {
		return now + p, true
	}
	return c.deadline, false
}

// Why says why a request is or is not sent again.
type Why uint8

const (
	// Final: the outcome is a success, or not to be sent again.
	Final Why = iota
	// Requeue, Retry and Reconnect: it is sent again, after a Requeueable, a
	// Retryable and an Unconnected outcome.
	Requeue
	Retry
	Reconnect
	// RequestLimit: this request was sent as often as one may be.
	RequestLimit
	// BudgetExhausted: the budget has nothing left, or the schedule has ended.
	BudgetExhausted
	// NoTime: the deadline would pass before the next attempt.
	NoTime
)

// Decision is what to do after an attempt.
type Decision struct {
	Why Why
	// Wait is the time until the next attempt.
	Wait time.Duration
	// NotRetryable: retries were held back to protect the servers. Tell the caller
	// above, so that it does not make up for them.
	NotRetryable bool
}

// Again reports whether the request is sent again.
func (d Decision) Again() bool { return d.Why >= Requeue && d.Why <= Reconnect }

// Done ends an attempt with its outcome and decides what follows. atLeast is the
// wait that the server asked for, 0 if it did not.
func (c *Call) Done(now time.Duration, class Class, atLeast time.Duration) Decision {
	c.r.observer.Attempt(class, now-c.attempt)
	if class == NotRetryable {
		c.r.observer.Count(CountNotRetryable)
		return Decision{Why: Final, NotRetryable: true}
	}
	d := c.decide(now, class, atLeast)
	switch d.Why {
	case Requeue:
		c.tries.Requeues++
		c.r.observer.Count(CountRequeues)
	case Retry:
		c.tries.Retries++
		c.r.observer.Count(CountRetries)
	case Reconnect:
		c.tries.Connects++
		c.r.observer.Count(CountConnects)
	case RequestLimit:
		c.r.observer.Count(CountRequestLimit)
	case BudgetExhausted:
		c.r.observer.Count(CountBudgetExhausted)
	case NoTime:
		c.r.observer.Count(CountNoTime)
	}
	return d
}

func (c *Call) decide(now time.Duration, class Class, atLeast time.Duration) Decision {
	p := &c.r.policy
	switch class {
	case Unconnected:
		if c.tries.Connects >= p.MaxConnects {
			return Decision{Why: RequestLimit}
		}
		return c.next(now, Reconnect, &c.connectWait, atLeast, false)
	case Requeueable:
		// Without requeues, what is safe to send again is at least retryable.
		if p.MaxRequeues > 0 {
			if c.requeueLimit < 0 {
				c.requeueLimit = p.share(c.r.budget.Balance(now))
			}
			if c.tries.Requeues >= c.requeueLimit {
				return Decision{Why: RequestLimit, NotRetryable: true}
			}
			return c.next(now, Requeue, &c.requeueWait, atLeast, true)
		}
	case Retryable:
	default:
		return Decision{Why: Final}
	}
	switch {
	case p.MaxRetries == 0:
		return Decision{Why: Final}
	case c.tries.Retries >= p.MaxRetries:
		return Decision{Why: RequestLimit}
	}
	return c.next(now, Retry, &c.retryWait, atLeast, true)
}

// next takes the wait from a schedule and pays.
func (c *Call) next(now time.Duration, why Why, schedule *Schedule, atLeast time.Duration, pay bool) Decision {
	wait := max(atLeast, 0)
	rest := *schedule
	if rest != nil {
		w, r, ok := rest.Next(c.r.draw)
		if !ok {
			return Decision{Why: BudgetExhausted, NotRetryable: pay}
		}
		wait, rest = max(wait, w), r
	}
	// Whoever cannot wait so long gets the failure now, and nothing is paid.
	if c.deadline != NoDeadline && (wait >= c.deadline-now) {
		return Decision{Why: NoTime}
	}
	if pay && !c.r.budget.Withdraw(now) {
		return Decision{Why: BudgetExhausted, NotRetryable: true}
	}
	*schedule = rest
	return Decision{Why: why, Wait: wait}
}

// End ends the logical request with the outcome of the attempt that counts.
func (c *Call) End(now time.Duration, class Class) {
	if c.r.policy.Earn == EarnOnSuccess && class == Success {
		c.r.budget.Deposit(now)
	}
	c.r.observer.Logical(class, now-c.start, c.tries)
}
