package retry

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// BudgetConfig says how much may be sent again. There are no hidden defaults:
// start from [DefaultBudget].
type BudgetConfig struct {
	// TTL is how long a request's deposit lives. 1 s to 60 s.
	TTL time.Duration
	// MinPerSecond is the reserve: retries that may be made each second whatever
	// else happened. 0 to 1,000,000.
	MinPerSecond int
	// Share is how many retries a request pays for, 0 to 1000; 0.2 allows 20 % more
	// attempts than requests.
	Share float64
	// BurstReserve makes the reserve one lump of TTL × MinPerSecond that comes back
	// TTL after it was spent, as in Finagle, and lets the balance fall below
	// zero. Then one outage can spend all at once and leave nothing for a whole
	// TTL, not even MinPerSecond. Off, the reserve refills steadily and holds at
	// most a second's worth, and the balance is never negative.
	BurstReserve bool
}

// DefaultBudget is 20 % of the requests of the last 10 s and 10 retries a second.
func DefaultBudget() BudgetConfig {
	return BudgetConfig{TTL: 10 * time.Second, MinPerSecond: 10, Share: 0.2}
}

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (c BudgetConfig) Check() error {
	switch {
	case c.TTL < time.Second || c.TTL > time.Minute:
		return fmt.Errorf("retry: budget ttl is %v; it must be between 1s and 60s", c.TTL)
	case c.MinPerSecond < 0 || c.MinPerSecond > 1_000_000:
		return fmt.Errorf("retry: budget min per second is %d; it must be between 0 and 1000000", c.MinPerSecond)
	case !(c.Share >= 0 && c.Share <= 1000):
		return fmt.Errorf("retry: budget share is %v; it must be between 0 and 1000", c.Share)
	}
	return nil
}

// The unit of the budget's arithmetic.
const depositTokens = 1000

// infiniteBalance is what a budget without limits says it holds.
const infiniteBalance = 100

// Budget limits how many requests are sent again, in proportion to those that
// are sent. Share one among all that talk to the same servers. All methods may be
// called concurrently; now is the time since some fixed moment, the same moment
// for all calls, and may go backwards.
type Budget struct {
	deposit  int64 // tokens a request pays in
	withdraw int64 // tokens a retry costs
	infinite bool

	mu    sync.Mutex
	burst bool

	sum     slidingSum // burst
	reserve int64      // burst

	purse purse  // paced
	paced bucket // paced
}

// NewBudget makes a budget. One with neither reserve nor share is empty.
func NewBudget(c BudgetConfig) (*Budget, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.MinPerSecond == 0 && c.Share == 0 {
		return EmptyBudget(), nil
	}
	b := &Budget{withdraw: 1, burst: c.BurstReserve}
	if c.Share > 0 {
		b.deposit = depositTokens
		// The reserve must not overflow.
		b.withdraw = int64(min(depositTokens/c.Share, math.MaxInt64/(60*1_000_000)))
	}
	perSecond := int64(c.MinPerSecond) * b.withdraw
	b.sum.slice, b.purse.slice = c.TTL/budgetSlices, c.TTL/budgetSlices
	if c.BurstReserve {
		b.reserve = int64(float64(perSecond) * c.TTL.Seconds())
	} else {
		b.paced = bucket{perSecond: perSecond, limit: perSecond, tokens: float64(perSecond)}
	}
	return b, nil
}

// EmptyBudget never allows a retry.
func EmptyBudget() *Budget { return &Budget{withdraw: 1} }

// InfiniteBudget always allows a retry. A failing server then gets as many times
// its load as there are attempts; use it only where something else limits them.
func InfiniteBudget() *Budget { return &Budget{infinite: true} }

func (b *Budget) advance(now time.Duration) {
	if b.burst {
		b.sum.advance(now)
		return
	}
	b.purse.advance(now)
	b.paced.advance(now)
}

func (b *Budget) empty() bool {
	return b.deposit == 0 && b.reserve == 0 && b.paced.limit == 0
}

// Deposit records a request, which pays for Share retries.
func (b *Budget) Deposit(now time.Duration) {
	if b.deposit == 0 {
		return
	}
	b.mu.Lock()
	b.advance(now)
	if b.burst {
		b.sum.add(b.deposit)
	} else {
		b.purse.add(b.deposit)
	}
	b.mu.Unlock()
}

// Withdraw reports whether a retry may be made, and pays for it.
func (b *Budget) Withdraw(now time.Duration) bool {
	if b.infinite || b.empty() {
		return b.infinite
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if b.burst {
		if b.sum.sum()+b.reserve < b.withdraw {
			return false
		}
		b.sum.add(-b.withdraw)
		return true
	}
	if float64(b.purse.total)+b.paced.tokens < float64(b.withdraw) {
		return false
	}
	// What requests have earned goes first: it expires, the reserve does not.
	missing := b.purse.spend(b.withdraw)
	b.paced.tokens -= float64(missing)
	return true
}

// Return gives back what Withdraw took for a retry that was not made after all.
func (b *Budget) Return(now time.Duration) {
	if b.infinite || b.empty() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if b.burst {
		b.sum.add(b.withdraw)
		return
	}
	if b.deposit == 0 {
		b.paced.tokens = min(b.paced.tokens+float64(b.withdraw), float64(b.paced.limit))
		return
	}
	b.purse.add(b.withdraw)
}

// Balance returns how many retries could be made now. With BurstReserve it may
// be negative. An infinite budget says 100.
func (b *Budget) Balance(now time.Duration) int {
	if b.infinite {
		return infiniteBalance
	}
	if b.empty() {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if b.burst {
		return int((b.sum.sum() + b.reserve) / b.withdraw)
	}
	return int((float64(b.purse.total) + b.paced.tokens) / float64(b.withdraw))
}
