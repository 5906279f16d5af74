package retry

import "time"

// Count is something that is counted.
type Count uint8

const (
	// CountRequeues, CountRetries, CountConnects: attempts beyond the first, by why.
	CountRequeues Count = iota
	CountRetries
	CountConnects
	// CountBudgetExhausted: a retry was held back by the budget or the end of its
	// schedule.
	CountBudgetExhausted
	// CountRequestLimit: a request had been sent as often as one may be.
	CountRequestLimit
	// CountNoTime: the deadline left no time for another attempt.
	CountNoTime
	// CountNotRetryable: an outcome was flagged as not to be retried.
	CountNotRetryable
	// CountNoEndpoints: there was nothing to send to.
	CountNoEndpoints
	// CountHedges: backup requests sent. CountHedgesWon: those whose answer was
	// used. CountHedgeBudgetExhausted: those held back by a budget.
	CountHedges
	CountHedgesWon
	CountHedgeBudgetExhausted

	// Counts is the number of counts.
	Counts = iota
)

var countNames = [Counts]string{
	"requeues", "retries", "connects", "budget_exhausted", "request_limit", "no_time", "not_retryable",
	"no_endpoints", "hedges", "hedges_won", "hedge_budget_exhausted",
}

// String returns the name that metrics use.
func (c Count) String() string {
	if c < Counts {
		return countNames[c]
	}
	return "unknown"
}

// Observer hears what happens. Its methods are called on the path of requests,
// concurrently, and must be quick.
type Observer interface {
	// Attempt is called at the end of each attempt, backup requests included; one
	// that was given up because another had answered is Ignored.
	Attempt(class Class, latency time.Duration)
	// Logical is called once at the end of each logical request; latency includes
	// all attempts and waits.
	Logical(class Class, latency time.Duration, tries Tries)
	// Count is called whenever what it counts happens.
	Count(c Count)
}

// NoObserver observes nothing.
type NoObserver struct{}

// Attempt implements Observer.
func (NoObserver) Attempt(Class, time.Duration) {}

// Logical implements Observer.
func (NoObserver) Logical(Class, time.Duration, Tries) {}

// Count implements Observer.
func (NoObserver) Count(Count) {}
