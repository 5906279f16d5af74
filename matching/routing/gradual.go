package routing

import (
	"math"
	"math/big"
	"time"

	"github.com/switchyard-dev/switchyard/membership/ring"
)

// Gradual is a setting that goes from Old to New between two points in time: each key
// changes at a moment of its own, by its hash, and every node whose clock is right sees
// it change then. The zero times make it New at once.
type Gradual[T any] struct {
	Old, New   T
	Start, End time.Time
}

// Fixed is a setting that does not change.
func Fixed[T any](v T) Gradual[T] { return Gradual[T]{Old: v, New: v} }

// steps is the number of hashes.
const steps = float64(math.MaxUint32)

// Value returns what holds for a key at a time.
func (g Gradual[T]) Value(key []byte, now time.Time) T {
	switch {
	case !now.Before(g.End):
		return g.New
	case !now.After(g.Start):
		return g.Old
	}
	share := float64(now.Sub(g.Start)) / float64(g.End.Sub(g.Start))
	if ring.Fingerprint32(key) < uint32(share*steps) {
		return g.New
	}
	return g.Old
}

// When returns about the time at which a key changes, as the reference computes it. At
// that very time the value may still be the old one, by rounding; a timer must wait until
// Settled.
func (g Gradual[T]) When(key []byte) time.Time {
	share := float64(ring.Fingerprint32(key)) / steps
	return g.Start.Add(time.Duration(share * float64(g.End.Sub(g.Start))))
}

// Settled returns the first nanosecond at which Value is New for a key and stays it, so
// that whoever looks again then, or later, cannot miss the change.
func (g Gradual[T]) Settled(key []byte) time.Time {
	if !g.Start.Before(g.End) {
		return g.End
	}
	test := Gradual[bool]{New: true, Start: g.Start, End: g.End}
	// Value is monotonous: old up to some nanosecond, new from there on. The window may be
	// longer than a Duration can say.
	low, high := new(big.Int), new(big.Int).Sub(nanos(g.End), nanos(g.Start)) // old at low, new at high
	one := big.NewInt(1)
	at := func(n *big.Int) time.Time { return addNanos(g.Start, n) }
	for new(big.Int).Sub(high, low).Cmp(one) > 0 {
		mid := new(big.Int).Rsh(new(big.Int).Add(low, high), 1)
		if test.Value(key, at(mid)) {
			high = mid
		} else {
			low = mid
		}
	}
	return at(high)
}

func nanos(t time.Time) *big.Int {
	n := new(big.Int).Mul(big.NewInt(t.Unix()), big.NewInt(int64(time.Second)))
	return n.Add(n, big.NewInt(int64(t.Nanosecond())))
}

func addNanos(t time.Time, n *big.Int) time.Time {
	s, ns := new(big.Int).DivMod(n, big.NewInt(int64(time.Second)), new(big.Int))
	return time.Unix(t.Unix()+s.Int64(), int64(t.Nanosecond())+ns.Int64()).In(t.Location())
}

// BatchSize returns the batch size that holds for a partition at a time. It does not
// allocate for names of usual length.
func BatchSize(g Gradual[int], p Partition, now time.Time) int {
	if g.Old == g.New {
		return g.New
	}
	var room [256]byte
	return g.Value(p.gradualKey(room[:0]), now)
}
