package matching

import "math"

// bucket is a token bucket: rate tokens a second come in, and those of one second, or
// one token, have room in it. A rate of 0 lets nothing out.
type bucket struct {
	rate   float64
	tokens float64
	at     int64 // when tokens was right
}

// newBucket starts with a single token, and what has come in since an earlier time:
// right after a partition was loaded nobody knows what went out before.
func newBucket(rate float64, since, now int64) *bucket {
	b := &bucket{rate: rate, tokens: 1, at: since}
	b.fill(now)
	return b
}

func (b *bucket) room() float64 { return max(b.rate, 1) }

func (b *bucket) fill(now int64) {
	if now > b.at {
		b.tokens = min(b.room(), b.tokens+b.rate*float64(now-b.at)/1e9)
		b.at = now
	}
}

// almost makes up for what is lost in computing with fractions.
const almost = 1 - 1e-6

// ready says whether a token is there, and if not, when there is one.
func (b *bucket) ready(now int64) (ok bool, at int64) {
	if b.rate <= 0 {
		return false, math.MaxInt64
	}
	b.fill(now)
	if b.tokens >= almost {
		return true, now
	}
	wait := (1 - b.tokens) / b.rate * 1e9
	if wait > math.MaxInt64/4 {
		return false, math.MaxInt64
	}
	return false, now + int64(wait) + 1
}

// take takes a token that ready has seen.
func (b *bucket) take() { b.tokens-- }

// full says whether it is as if nothing had ever been taken.
func (b *bucket) full(now int64) bool {
	b.fill(now)
	return b.rate > 0 && b.tokens >= b.room()*almost
}

// setRate changes the rate from now on.
func (b *bucket) setRate(rate float64, now int64) {
	if rate == b.rate {
		return
	}
	b.fill(now)
	b.rate = rate
	b.tokens = min(b.tokens, b.room())
}
