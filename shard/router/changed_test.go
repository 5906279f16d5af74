package router

import (
	"testing"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestChanged_tellsOfWhatReplicaSetsSayOfThemselves(t *testing.T) {
	groups := newMovers(t, false, storage.NewRegistry, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	ctx := testContext(t)
	a := groups[0].store
	heard := func() uint64 {
		s := r.set("a")
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.facts
	}
	eventually(t, "the router knows how it is", func() bool { return heard() == a.FactsSum() })
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"the weight", func() error { return a.SetWeight(ctx, 2) }},
		{"the lock", func() error { return a.SetLock(ctx, true) }},
		{"the other replica sets", func() error { return a.RememberReplicaSet(ctx, "b") }},
		{"rebalancing", func() error { return a.SetRebalancing(ctx, false, 0) }},
		{"a pin", func() error { return a.Pin(ctx, []shard.BucketID{1}) }},
	} {
		before, changed := heard(), r.Changed()
		if err := c.do(); err != nil {
			t.Fatal(c.what, err)
		}
		if a.FactsSum() == before {
			t.Errorf("%s changed, and the sum did not", c.what)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%s changed, and nobody was told", c.what)
		}
		eventually(t, c.what+" is known", func() bool { return heard() == a.FactsSum() })
	}
	// What was changed back is as it was, and moves change nothing.
	sum := a.FactsSum()
	for _, do := range []func() error{
		func() error { return a.Unpin(ctx, []shard.BucketID{1}) },
		func() error { return a.SetLock(ctx, false) },
		func() error {
			_, err := r.SendBuckets(ctx, []shard.BucketID{2, 3}, "b")
			return err
		},
		func() error { return a.Pin(ctx, []shard.BucketID{1}) },
		func() error { return a.SetLock(ctx, true) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if a.FactsSum() != sum {
		t.Error("the sum is another, though everything is as it was")
	}
}
