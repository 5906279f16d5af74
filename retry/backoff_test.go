package retry

import (
	"math"
	"testing"
	"time"
)

func TestDelay_growsByTheMultiplierUpToMax(t *testing.T) {
	b := Backoff{Initial: time.Second, Max: 10 * time.Second, Multiplier: 2}
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if got := b.Delay(i+1, 0.7); got != want*time.Second {
			t.Errorf("Delay(%d) = %v, want %v", i+1, got, want*time.Second)
		}
	}
}

func TestDelay_jitterTakesAwayAShare(t *testing.T) {
	b := Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2, Jitter: 0.25}
	for _, c := range []struct {
		attempt int
		random  float64
		want    time.Duration
	}{
		{1, 0, time.Second},
		{1, 0.5, 875 * time.Millisecond},
		{1, 1, 750 * time.Millisecond},
		{3, 1, 3 * time.Second},
		{100, 1, 45 * time.Second},
		{0, 0, time.Second},
		{-5, 0, time.Second},
	} {
		if got := b.Delay(c.attempt, c.random); got != c.want {
			t.Errorf("Delay(%d, %v) = %v, want %v", c.attempt, c.random, got, c.want)
		}
	}
}

func TestDelay_zeroValueDoesNotWait(t *testing.T) {
	var b Backoff
	for _, attempt := range []int{-1, 0, 1, 2, math.MaxInt} {
		if got := b.Delay(attempt, 0.5); got != 0 {
			t.Errorf("Delay(%d) = %v, want 0", attempt, got)
		}
	}
}

func TestDelay_withoutMaxStopsAtTheLongestDuration(t *testing.T) {
	b := Backoff{Initial: time.Second, Multiplier: 2}
	if got := b.Delay(2000, 0); got != math.MaxInt64 {
		t.Errorf("Delay(2000) = %v, want the longest duration", got)
	}
	if got := (Backoff{Multiplier: 2}).Delay(2000, 0); got != 0 {
		t.Errorf("without an initial wait: Delay(2000) = %v, want 0", got)
	}
}

func TestCheck_namesTheFieldOutOfRange(t *testing.T) {
	good := Backoff{Initial: time.Second, Max: time.Hour, Multiplier: 2, Jitter: 0.25}
	if err := good.Check(); err != nil {
		t.Fatalf("good backoff: %v", err)
	}
	for name, change := range map[string]func(*Backoff){
		"negative initial":    func(b *Backoff) { b.Initial = -1 },
		"negative max":        func(b *Backoff) { b.Max = -1 },
		"initial over max":    func(b *Backoff) { b.Max = time.Millisecond },
		"multiplier below 1":  func(b *Backoff) { b.Multiplier = 0.5 },
		"multiplier NaN":      func(b *Backoff) { b.Multiplier = math.NaN() },
		"multiplier infinite": func(b *Backoff) { b.Multiplier = math.Inf(1) },
		"jitter negative":     func(b *Backoff) { b.Jitter = -0.1 },
		"jitter over 1":       func(b *Backoff) { b.Jitter = 1.1 },
		"jitter NaN":          func(b *Backoff) { b.Jitter = math.NaN() },
	} {
		b := good
		change(&b)
		if b.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDelay_staysWithinBounds(f *testing.F) {
	f.Add(int64(time.Second), int64(time.Hour), 2.0, 0.25, 3, 0.5)
	f.Add(int64(-1), int64(-1), math.NaN(), math.NaN(), -3, 2.0)
	f.Add(int64(math.MaxInt64), int64(0), math.Inf(1), 1.0, math.MaxInt, 0.99)
	f.Fuzz(func(t *testing.T, initial, limit int64, multiplier, jitter float64, attempt int, random float64) {
		b := Backoff{Initial: time.Duration(initial), Max: time.Duration(limit), Multiplier: multiplier, Jitter: jitter}
		got := b.Delay(attempt, random)
		if got < 0 {
			t.Fatalf("%+v.Delay(%d, %v) = %v, negative", b, attempt, random, got)
		}
		if b.Max > 0 && got > b.Max {
			t.Fatalf("%+v.Delay(%d, %v) = %v, more than Max", b, attempt, random, got)
		}
		if base := b.Base(attempt); got > base {
			t.Fatalf("%+v.Delay(%d, %v) = %v, more than Base %v", b, attempt, random, got, base)
		}
	})
}

func BenchmarkDelay(b *testing.B) {
	backoff := Backoff{Initial: time.Second, Max: time.Hour, Multiplier: 2, Jitter: 0.25}
	for i := 0; b.Loop(); i++ {
		backoff.Delay(i&7, 0.5)
	}
}
