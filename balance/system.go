package balance

import (
	"math/rand/v2"
	"time"
)

// Clock returns the time since some fixed moment. It should be monotonic; where
// it goes backwards, the newest time seen counts.
type Clock func() time.Duration

// Rand returns 64 random bits. It must be safe for concurrent use if the
// balancer is used concurrently.
type Rand func() uint64

var processStart = time.Now()

// SystemClock is the machine's monotonic clock.
func SystemClock() time.Duration { return time.Since(processStart) }

// SystemRand is the generator of math/rand/v2, which takes no lock.
func SystemRand() uint64 { return rand.Uint64() }
