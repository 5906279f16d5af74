package retry

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestSignal_travels(t *testing.T) {
	for _, s := range []Signal{NoSignal, Nack, Never} {
		if got := ParseSignal([]string{s.Value()}); got != s {
			t.Errorf("%d became %d", s, got)
		}
	}
	for want, values := range map[Signal][]string{
		NoSignal: {"", "NACK", "maybe"}, Nack: {"nack", "what"}, Never: {"nack", "never"},
	} {
		if got := ParseSignal(values); got != want {
			t.Errorf("%q: %d, want %d", values, got, want)
		}
	}
}

func TestSignalOf_findsTheOutermost(t *testing.T) {
	base := errors.New("full")
	if WithSignal(nil, Nack) != nil {
		t.Error("no error became one")
	}
	nack := WithSignal(base, Nack)
	for want, err := range map[Signal]error{
		NoSignal: base, Nack: fmt.Errorf("wrapped: %w", nack), Never: WithSignal(nack, Never),
	} {
		if got := SignalOf(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
	if SignalOf(nil) != NoSignal || Bare(nack) != base || Bare(base) != base || !errors.Is(nack, base) {
		t.Error("the error below is lost")
	}
}

func TestAttempt_travelsInTheContext(t *testing.T) {
	ctx := context.Background()
	if AttemptOf(ctx) != nil || NoRetry(ctx) {
		t.Error("an empty context has something")
	}
	if !NoRetry(WithNoRetry(ctx)) {
		t.Error("the mark is lost")
	}
	a := &Attempt{Number: 2}
	if AttemptOf(WithAttempt(ctx, a)) != a {
		t.Fatal("the attempt is lost")
	}
	if list := a.AvoidToo(nil); list != nil {
		t.Errorf("avoids %v before anything was chosen", list)
	}
	a.NotSent()
	a.Chosen("b")
	if a.Endpoint() != "b" || a.Unsent() {
		t.Error("a new choice does not forget what the one before came to")
	}
	a.NotSent()
	old := make([]any, 1, 4)
	old[0] = "a"
	list := a.AvoidToo(old)
	if len(list) != 2 || list[1] != "b" || !a.Unsent() || old[:2][1] != nil {
		t.Errorf("avoids %v; the list before is %v", list, old[:2])
	}
	if again := a.AvoidToo(list); len(again) != 2 {
		t.Errorf("avoids %v", again)
	}
}
