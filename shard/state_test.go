package shard

import (
	"errors"
	"testing"
)

// TestState_whatEachAllows is the table of the design.
func TestState_whatEachAllows(t *testing.T) {
	for _, c := range []struct {
		state                State
		name                 string
		read, write, canMove bool
		refusal              Code // of a write
	}{
		{Absent, "ABSENT", false, false, false, WrongBucket},
		{Active, "ACTIVE", true, true, true, 0},
		{Pinned, "PINNED", true, true, false, 0},
		{ReadOnly, "READONLY", true, false, true, TransferIsInProgress},
		{Sending, "SENDING", true, false, false, TransferIsInProgress},
		{Receiving, "RECEIVING", false, false, false, TransferIsInProgress},
		{Sent, "SENT", false, false, false, WrongBucket},
		{Garbage, "GARBAGE", false, false, false, WrongBucket},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.state.String() != c.name {
				t.Errorf("name %q", c.state)
			}
			if back, err := ParseState(c.name); err != nil || back != c.state {
				t.Errorf("ParseState gives %v, %v", back, err)
			}
			if c.state.CanRead() != c.read || c.state.CanWrite() != c.write || c.state.CanMove() != c.canMove {
				t.Errorf("read %v write %v move %v", c.state.CanRead(), c.state.CanWrite(), c.state.CanMove())
			}
			err := c.state.CheckWrite(7, "there")
			if (err == nil) != c.write {
				t.Fatalf("CheckWrite: %v", err)
			}
			if err != nil {
				var e *Error
				if !errors.Is(err, c.refusal) || !errors.As(err, &e) || e.Bucket != 7 || e.Destination != "there" {
					t.Errorf("refused with %v, want %v", err, c.refusal)
				}
			}
			if err := c.state.CheckRead(7, ""); (err == nil) != c.read {
				t.Errorf("CheckRead: %v", err)
			}
		})
	}
}

func TestState_transitions(t *testing.T) {
	allowed := map[[2]State]bool{
		{Absent, Active}: true, {Absent, Receiving}: true,
		{Active, Pinned}: true, {Active, ReadOnly}: true, {Active, Sending}: true,
		{Pinned, Active}:   true,
		{ReadOnly, Active}: true, {ReadOnly, Sending}: true,
		{Sending, Active}: true, {Sending, ReadOnly}: true, {Sending, Sent}: true,
		{Receiving, Active}: true, {Receiving, ReadOnly}: true, {Receiving, Garbage}: true,
		{Sent, Garbage}: true, {Garbage, Absent}: true,
		// The bucket comes back before its old rows are collected.
		{Sent, Receiving}: true, {Garbage, Receiving}: true,
	}
	for from := Absent; from <= Garbage; from++ {
		for to := Absent; to <= Garbage; to++ {
			want := from == to || allowed[[2]State{from, to}]
			if got := from.CanBecome(to); got != want {
				t.Errorf("%v → %v: %v, want %v", from, to, got, want)
			}
		}
	}
	if State(99).CanBecome(Active) || Active.CanBecome(State(99)) || State(99).Valid() {
		t.Error("a state that does not exist was accepted")
	}
}

func TestParseState_unknownName(t *testing.T) {
	if _, err := ParseState("ACTIV"); err == nil {
		t.Error("no error")
	}
}
