package shard

import "fmt"

// State is what one replica set knows about one bucket. Its numbers are on disk.
type State uint8

// States of a bucket. A moving bucket goes ACTIVE or READONLY (while it is copied) →
// SENDING → SENT → GARBAGE → Absent on the source and Absent → RECEIVING → ACTIVE or READONLY
// on the destination.
const (
	// Absent: the bucket is not on this replica set.
	Absent State = 0
	// Active: reads and writes.
	Active State = 1
	// Pinned: as Active, and never moved.
	Pinned State = 2
	// ReadOnly: reads only.
	ReadOnly State = 3
	// Sending: leaving; reads still work, writes wait.
	Sending State = 4
	// Receiving: being filled; refuses everything.
	Receiving State = 5
	// Sent: gone; the destination is known.
	Sent State = 6
	// Garbage: its rows are being deleted.
	Garbage State = 7
)

var stateNames = [...]string{"ABSENT", "ACTIVE", "PINNED", "READONLY", "SENDING", "RECEIVING", "SENT", "GARBAGE"}

// String returns the state's name, as it stands in errors, metrics and tables.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("STATE(%d)", uint8(s))
}

// ParseState returns the state of a name that String gave.
func ParseState(name string) (State, error) {
	for i, n := range stateNames {
		if n == name {
			return State(i), nil
		}
	}
	return Absent, fmt.Errorf("there is no bucket state %q", name)
}

// Valid reports whether s is a state at all, Absent included.
func (s State) Valid() bool { return s <= Garbage }

// CanWrite reports whether a bucket in this state takes writes.
func (s State) CanWrite() bool { return s == Active || s == Pinned }

// CanRead reports whether a bucket in this state answers reads.
func (s State) CanRead() bool {
	return s == Active || s == Pinned || s == ReadOnly || s == Sending
}

// CanMove reports whether a bucket in this state may start to move away.
func (s State) CanMove() bool { return s == Active || s == ReadOnly }

// Passing reports whether the state is one of a move in progress, so that a caller
// who was refused should ask again soon.
func (s State) Passing() bool {
	return s == ReadOnly || s == Sending || s == Receiving
}

// transitions says which states may follow which, repairs by force aside. A state may always
// follow itself. Row.Step says when.
var transitions = [...][]State{
	Absent:    {Active, Receiving},
	Active:    {Pinned, ReadOnly, Sending},
	Pinned:    {Active},
	ReadOnly:  {Active, Sending},
	Sending:   {Active, ReadOnly, Sent},
	Receiving: {Active, ReadOnly, Garbage},
	Sent:      {Garbage, Receiving},
	Garbage:   {Absent, Receiving},
}

// CanBecome reports whether a bucket in state s may be put into state next.
func (s State) CanBecome(next State) bool {
	if !s.Valid() || !next.Valid() {
		return false
	}
	if s == next {
		return true
	}
	for _, t := range transitions[s] {
		if t == next {
			return true
		}
	}
	return false
}

// CheckWrite returns nil when a bucket in state s takes writes, else the error for
// the caller. destination is the Row's Peer: where the bucket is or will be, of a Receiving
// one where it comes from; it may be empty.
func (s State) CheckWrite(bucket BucketID, destination string) error {
	if s.CanWrite() {
		return nil
	}
	return s.refuse(bucket, destination)
}

// CheckRead is CheckWrite for reads.
func (s State) CheckRead(bucket BucketID, destination string) error {
	if s.CanRead() {
		return nil
	}
	return s.refuse(bucket, destination)
}

func (s State) refuse(bucket BucketID, destination string) error {
	code := WrongBucket
	if s.Passing() {
		code = TransferIsInProgress
	}
	return &Error{Code: code, Bucket: bucket, Destination: destination, Reason: "the bucket is " + s.String() + " here"}
}
