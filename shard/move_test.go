package shard

import (
	"testing"
)

// allRows calls fn with every kind of row that can be.
func allRows(fn func(Row)) {
	for state := Absent; state <= Garbage; state++ {
		for _, readOnly := range [...]bool{false, true} {
			for _, peer := range [...]string{"", "x", "y"} {
				for _, transfer := range [...]uint64{0, 1, 2, 3} {
					for _, taken := range [...]Progress{{}, {Chunks: 2, Rows: 1, Sum: 9}} {
						if r := (Row{state, readOnly, peer, transfer, taken}); r.Valid() {
							fn(r)
						}
					}
				}
			}
		}
	}
}

func allEvents(fn func(Event)) {
	for kind := range 256 {
		for _, peer := range [...]string{"", "x"} {
			for _, transfer := range [...]uint64{0, 1, 2, 3} {
				for _, seq := range [...]uint64{0, 2, 3} {
					fn(Event{Kind: EventKind(kind), Bucket: 7, Transfer: transfer, Peer: peer, ReadOnly: seq == 2, Seq: seq})
				}
			}
		}
	}
}

// TestRow_Step_everyRowAndEvent checks what holds for all of them.
func TestRow_Step_everyRowAndEvent(t *testing.T) {
	rows, changes, refusals := 0, 0, 0
	allRows(func(r Row) {
		rows++
		allEvents(func(ev Event) {
			next, effect, err := r.Step(ev)
			_, known := eventNames[ev.Kind]
			forced := ev.Kind == EventForceCreate || ev.Kind == EventForceDrop
			switch {
			case err != nil && (next != r || effect != EffectNone):
				t.Errorf("%+v %+v: refused and changed to %+v, effect %v", r, ev, next, effect)
			case !known && err == nil:
				t.Errorf("%+v: unknown event %v is taken", r, ev.Kind)
			case !next.Valid():
				t.Errorf("%+v %+v: gives %+v, which cannot be", r, ev, next)
			case next.Transfer < r.Transfer:
				t.Errorf("%+v %+v: the transfer id falls to %d", r, ev, next.Transfer)
			case !forced && !r.State.CanBecome(next.State):
				t.Errorf("%+v %+v: %v becomes %v", r, ev, r.State, next.State)
			case next == r && effect != EffectNone:
				t.Errorf("%+v %+v: nothing changes but effect %v", r, ev, effect)
			}
			switch {
			case err != nil:
				refusals++
			case next != r:
				changes++
			}
			// A command that is applied twice in a row does what it did once.
			if err == nil && ev.Kind != EventSend && !forced {
				if again, effect, err := next.Step(ev); err != nil && effect != EffectNone || again != next {
					t.Errorf("%+v %+v: a repetition gives %+v, effect %v, %v", r, ev, again, effect, err)
				}
			}
		})
	})
	if rows < 40 || changes < 500 || refusals < 1000 {
		t.Errorf("only %d rows, %d changes, %d refusals were tried", rows, changes, refusals)
	}
}

// TestRow_Step_ownershipChangesHandsOnlyBySentAndActivate is the heart of the protocol, seen from one log.
func TestRow_Step_ownershipChangesHandsOnlyBySentAndActivate(t *testing.T) {
	allRows(func(r Row) {
		allEvents(func(ev Event) {
			next, _, _ := r.Step(ev)
			forced := ev.Kind == EventForceCreate || ev.Kind == EventForceDrop
			if r.Owns() == next.Owns() || forced {
				return
			}
			if r.Owns() && (ev.Kind != EventSent || r.State != Sending || r.Transfer != ev.Transfer) {
				t.Errorf("%+v %+v: gives the bucket away", r, ev)
			}
			if next.Owns() && (ev.Kind != EventActivate || r.State != Receiving || r.Transfer != ev.Transfer) {
				t.Errorf("%+v %+v: takes the bucket", r, ev)
			}
		})
	})
}

func TestRow_Step_aSourceTakesWritesAgainByItself(t *testing.T) {
	allRows(func(r Row) {
		next, _, err := r.Step(Event{Kind: EventAbort, Transfer: r.Transfer})
		if r.Moving() && (err != nil || !next.State.CanMove() || next.Moving()) {
			t.Errorf("%+v cannot be aborted: %+v, %v", r, next, err)
		}
	})
}

func TestRow_Chore_everyPassingStateHasOne(t *testing.T) {
	allRows(func(r Row) {
		passing := r.Moving() || !r.Owns() && r.State != Absent
		if c := r.Chore(false); passing && c == ChoreNone {
			t.Errorf("nobody looks after %+v", r)
		}
		if c := r.Chore(true); c != ChoreNone {
			t.Errorf("%+v has chore %v although a transfer looks after it", r, c)
		}
	})
}

func TestRow_Step_allocatesNothing(t *testing.T) {
	// The way of one bucket on both sides, without refusals.
	steps := func() {
		a, b := Row{State: Active}, Row{}
		for _, ev := range [...]Event{{Kind: EventSend, Peer: "b"}, {Kind: EventSeal, Transfer: 1}, {Kind: EventSent, Transfer: 1},
			{Kind: EventCollect, Transfer: 1}, {Kind: EventDeleted, Transfer: 1}} {
			a, _, _ = a.Step(ev)
		}
		for _, ev := range [...]Event{{Kind: EventReceive, Peer: "a", Transfer: 1}, {Kind: EventChunk, Transfer: 1},
			{Kind: EventActivate, Transfer: 1}} {
			b, _, _ = b.Step(ev)
		}
		if a.State != Absent || b.State != Active {
			panic("the bucket did not move")
		}
	}
	if n := testing.AllocsPerRun(100, steps); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRow_Valid_refusesWhatCannotBe(t *testing.T) {
	for _, r := range []Row{
		{State: 99},
		{State: Receiving, Transfer: 1},
		{State: Receiving, Peer: "x"},
		{State: Sending, Transfer: 1},
		{State: Sent, Transfer: 1},
		{State: Pinned, Peer: "x", Transfer: 1},
		{State: Active, Peer: "x"},
		{State: Active, ReadOnly: true},
		{State: Active, Taken: Progress{Rows: 1}},
	} {
		if r.Valid() {
			t.Errorf("%+v", r)
		}
	}
	if !(Row{}).Valid() {
		t.Error("the zero row")
	}
}

func TestNames_ofWhatIsNotThere(t *testing.T) {
	for got, want := range map[string]string{
		EventKind(200).String(): "event(200)", Verdict(9).String(): "verdict(9)",
		Standing(9).String(): "standing(9)", Chore(9).String(): "chore(9)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func BenchmarkRow_Step(b *testing.B) {
	b.ReportAllocs()
	r := Row{State: Receiving, Peer: "a", Transfer: 1}
	for range b.N {
		r, _, _ = r.Step(Event{Kind: EventChunk, Transfer: 1, Seq: r.Taken.Chunks})
	}
}
