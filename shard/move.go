package shard

import "fmt"

// The move of a bucket from one replica set, the source, to another, the destination.
//
// # Two logs, one decision
//
// Each of the two keeps one Row about the bucket in its own replicated rows and changes it
// only by Row.Step, at one position of its own log. The source decides: a transfer is done at
// the moment the source logs EventSent, and until then the source may call it off alone, by
// logging EventAbort. The destination never decides. What it has been given stays RECEIVING,
// readable by nobody, until the source's log says SENT (it logs EventActivate) or says that
// the transfer is over (it logs EventDrop). So neither a dead destination nor a lost message
// keeps a bucket from being written, and there is no order of events in which both own it.
//
// # Transfer ids
//
// A bucket's transfers are numbered 1, 2, 3, … over all replica sets: only the owner starts one,
// with the number after the highest that the bucket ever had, and hands that number on with
// the bucket. Row.Transfer is the highest number that a replica set has seen of a bucket. It
// never falls, and it is kept when the bucket is ABSENT. Two things follow:
//
//   - a replica set refuses what belongs to a lower number, however late it comes;
//   - whoever sees a higher number knows that all lower ones have ended.
//
// # The way of a transfer t
//
//	source's log                 on the wire           destination's log
//	EventSend      ACTIVE
//	                             prepare t        →    EventReceive   RECEIVING
//	                             chunk 0, 1, …    →    EventChunk     RECEIVING
//	EventSeal      SENDING
//	                             chunk n (last)   →    EventChunk     RECEIVING
//	                             ← taken so far
//	EventSent      SENT          (only through Confirm)
//	                             commit t         →    EventActivate  ACTIVE
//	                             ← took t
//	EventCollect   GARBAGE
//	EventDeleted   ABSENT        (still knows where the bucket went)
//	EventForget    ABSENT
//
// Whatever ends it early: the source logs EventAbort, sends drop t, and starts again with t+1
// if it wants to. What a master does about rows that no running transfer looks after is in
// Row.Chore.
//
// What is in flight of a transfer (which keys were written since the last round, which chunks
// were not acknowledged) is in the memory of the source's master, and is gone with it: a new
// master of the source aborts the transfers that it finds. A new master of the destination
// goes on with them, because what was taken is in its log.

// Row is what one replica set knows of one bucket. Its zero value is a bucket that has never
// been here. Rows can be compared with ==. Storage keeps them in the space _bucket; a row
// with a Transfer must be kept when its state is ABSENT too.
type Row struct {
	// State is the bucket's state here.
	State State
	// ReadOnly: when the transfer ends, the bucket is READONLY and not ACTIVE, here if it is
	// aborted (SENDING) or done (RECEIVING). False in all other states.
	ReadOnly bool
	// Peer is the replica set at the other end. ACTIVE, READONLY: where the bucket is being
	// copied to, empty when it is not moving. SENDING, SENT: the destination. RECEIVING: the
	// source. GARBAGE, ABSENT: where the bucket is or was last, empty when not known.
	Peer string
	// Transfer is the highest transfer id of this bucket that this replica set has seen, 0 for
	// none. While the bucket is moving here or away, it is the transfer that does it.
	Transfer uint64
	// Taken is what a RECEIVING bucket has been given, else zero.
	Taken Progress
}

// Progress is how much of a transfer has reached the destination: the source counts what it
// gave, the destination what it took, and both must be equal before the source logs SENT.
type Progress struct {
	// Chunks that were taken, and so the number of the next one.
	Chunks uint64
	// Rows that the bucket has.
	Rows uint64
	// Sum is the sum, modulo 2^64, of the hashes of the bucket's rows, in any order.
	Sum uint64
}

// EventKind says what is to happen to a bucket.
type EventKind uint8

// Events. Each is a command in the log of one replica set, for one bucket or for many; the
// numbers may be stored in logs. "Again" says what a repetition does: every command may be
// proposed twice by a master that does not know the outcome of the first.
const (
	// EventSend, source: begins a transfer to Peer, which gets the id Row.Transfer+1, or
	// Event.Transfer if that is higher: 0, or one above what the destination said with
	// ReplyNewer to an attempt before (only repairs by force make that happen). From this
	// position of the log on, the master notes which keys are written. Again: refused with
	// TRANSFER_IS_IN_PROGRESS. BUCKET_IS_PINNED, WRONG_BUCKET. The caller has checked that
	// Peer exists, is not this replica set and neither is locked.
	EventSend EventKind = 1
	// EventSeal, source: SENDING, writes wait. Proposed when what is left to copy is small.
	// Again: nothing.
	EventSeal EventKind = 2
	// EventSent, source: SENT, the bucket is the destination's. Proposed only with an event
	// that Confirm made. Again: nothing.
	EventSent EventKind = 3
	// EventAbort, source: ends a transfer that is not SENT; the bucket takes writes again.
	// Again, or when the transfer ended before: nothing. TRANSFER_IS_OVER when it is SENT:
	// then the transfer must be completed.
	EventAbort EventKind = 4
	// EventCollect, source: SENT becomes GARBAGE. Proposed once the destination has said
	// ReplyTook (or ReplyNewer), the last reader is gone and half a second has passed. Again:
	// nothing.
	EventCollect EventKind = 5
	// EventDeleted, both: all rows of a GARBAGE bucket are deleted, it is ABSENT. Again, or when
	// the bucket is on its way back: nothing.
	EventDeleted EventKind = 6
	// EventForget, both: an ABSENT bucket's Peer is forgotten, a minute after it went. The
	// transfer id stays. Again, or in another state: nothing.
	EventForget EventKind = 7

	// EventReceive, destination: RECEIVING from Peer, ReadOnly if the bucket is so there. Again:
	// nothing, so it also tells the source how far the destination is. TRANSFER_IS_OVER,
	// BUCKET_ALREADY_EXISTS. The caller has checked that Peer is known, that this
	// replica set is not locked and how many buckets it is receiving.
	EventReceive EventKind = 16
	// EventChunk, destination: chunk number Seq is to be taken (EffectTake). Again: nothing, and the chunk's
	// rows must not be written. BUCKET_RECV_DATA_ERROR when one before it is missing: the
	// source goes on from Taken.Chunks. TRANSFER_IS_OVER.
	EventChunk EventKind = 17
	// EventActivate, destination: the source has logged SENT, the bucket is ours. Again:
	// nothing. BUCKET_IS_CORRUPTED when this replica set does not have what it confirmed.
	EventActivate EventKind = 18
	// EventDrop, destination: the source has ended the transfer, what came is GARBAGE. Again,
	// or when the transfer is not known: nothing.
	EventDrop EventKind = 19

	// EventPin, owner: ACTIVE becomes PINNED. Again: nothing.
	EventPin EventKind = 32
	// EventUnpin, owner: PINNED becomes ACTIVE. Again, or when the bucket is not pinned: nothing.
	EventUnpin EventKind = 33
	// EventReadOnly, owner: ACTIVE becomes READONLY. Again: nothing. BUCKET_IS_PINNED.
	EventReadOnly EventKind = 34
	// EventReadWrite, owner: READONLY becomes ACTIVE. Again: nothing.
	EventReadWrite EventKind = 35

	// EventForceCreate, for repair: an ABSENT or GARBAGE bucket becomes ACTIVE and empty, a RECEIVING
	// or SENT one ACTIVE with the rows that are here. If another replica set owns the bucket,
	// there are two of them from now on; if not, whatever is not here is lost. Transfer should
	// be the highest id that any replica set that can be asked has seen.
	EventForceCreate EventKind = 48
	// EventForceDrop, for repair: the bucket becomes GARBAGE here, whatever it was. If no other
	// replica set owns it, its rows are lost. A bucket that is moving away is refused
	// with TRANSFER_IS_IN_PROGRESS: abort that first. Of a RECEIVING bucket the caller has asked the
	// source; if the source then logs SENT nevertheless, the rows are there until collected.
	EventForceDrop EventKind = 49
)

var eventNames = map[EventKind]string{
	EventSend: "send", EventSeal: "seal", EventSent: "sent", EventAbort: "abort", EventCollect: "collect",
	EventDeleted: "deleted", EventForget: "forget",
	EventReceive: "receive", EventChunk: "chunk", EventActivate: "activate", EventDrop: "drop",
	EventPin: "pin", EventUnpin: "unpin", EventReadOnly: "readonly", EventReadWrite: "readwrite",
	EventForceCreate: "force-create", EventForceDrop: "force-drop",
}

// String returns the event's name.
func (k EventKind) String() string {
	if n, ok := eventNames[k]; ok {
		return n
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is one thing that happens to one bucket.
type Event struct {
	Kind EventKind
	// Bucket is for errors.
	Bucket BucketID
	// Transfer that the event belongs to. EventSend and EventForceCreate make one and say what
	// they use it for; those of the owner and EventForceDrop have none.
	Transfer uint64
	// Peer is the destination of EventSend and the source of EventReceive.
	Peer string
	// ReadOnly of EventReceive: the bucket is READONLY at the source.
	ReadOnly bool
	// Seq is the number of the chunk of an EventChunk, from 0.
	Seq uint64
}

// Effect says what a command must do to the bucket's rows besides storing the new Row, in
// the same position of the log.
type Effect uint8

// Effects.
const (
	// EffectNone: nothing.
	EffectNone Effect = 0
	// EffectWipe: delete all rows of the bucket, before anything else.
	EffectWipe Effect = 1
	// EffectTake: write and delete the rows that the chunk brought, and add them to
	// Taken.Rows and Taken.Sum of the new Row.
	EffectTake Effect = 2
)

// forcedJump is added to the transfer id by a forced creation: more than all transfers that
// somebody could have started meanwhile without being known.
const forcedJump = 1 << 32

// Owns reports whether the replica set owns the bucket: it may write it or will be able to
// without asking anybody.
func (r Row) Owns() bool {
	return r.State == Active || r.State == Pinned || r.State == ReadOnly || r.State == Sending
}

// Moving reports whether the bucket is on its way from here and not SENT yet.
func (r Row) Moving() bool {
	return r.State == Sending || (r.State == Active || r.State == ReadOnly) && r.Peer != ""
}

// Valid reports whether there can be such a row. Storage checks it when it reads one.
func (r Row) Valid() bool {
	switch {
	case !r.State.Valid():
		return false
	case r.State == Pinned && r.Peer != "":
		return false
	case (r.State == Receiving || r.State == Sending || r.State == Sent || r.Moving()) && (r.Peer == "" || r.Transfer == 0):
		return false
	case r.ReadOnly && r.State != Sending && r.State != Receiving:
		return false
	}
	return r.Taken == Progress{} || r.State == Receiving
}

// CheckWrite returns nil when the bucket takes writes, else the error for the caller.
func (r Row) CheckWrite(bucket BucketID) error { return r.State.CheckWrite(bucket, r.Peer) }

// CheckRead is CheckWrite for reads.
func (r Row) CheckRead(bucket BucketID) error { return r.State.CheckRead(bucket, r.Peer) }

// Step returns the row after ev and what to do with the bucket's rows. It decides by its
// arguments only, and allocates nothing unless it returns an error. The row of an event that changes
// nothing equals r and need not be stored. With an error, which is an *Error, the row is r and nothing
// is to be done; a command on a list of buckets can so be tried on all before the first is changed.
//
// Storage calls Step where it applies the log's commands, on every replica, and nowhere else.
func (r Row) Step(ev Event) (Row, Effect, error) {
	switch {
	case ev.Kind <= EventForget:
		return r.stepSource(ev)
	case ev.Kind <= EventDrop:
		return r.stepDestination(ev)
	case ev.Kind <= EventReadWrite:
		return r.stepOwner(ev)
	}
	return r.stepForce(ev)
}

func (r Row) stepSource(ev Event) (Row, Effect, error) {
	t := ev.Transfer
	mine := r.Transfer == t // the newest transfer that the bucket has had here
	switch ev.Kind {
	case EventSend:
		return r.stepSend(ev)
	case EventSeal:
		if mine && r.State == Sending {
			return r, EffectNone, nil
		}
		if !mine || !r.Moving() {
			return r, EffectNone, r.over(ev)
		}
		r.ReadOnly = r.State == ReadOnly
		r.State = Sending
		return r, EffectNone, nil
	case EventSent:
		if mine && r.State == Sent {
			return r, EffectNone, nil
		}
		if !mine || r.State != Sending {
			return r, EffectNone, r.over(ev)
		}
		r.State, r.ReadOnly = Sent, false
		return r, EffectNone, nil
	case EventAbort:
		if mine && r.State == Sent {
			return r, EffectNone, r.over(ev)
		}
		if !mine || !r.Moving() {
			return r, EffectNone, nil
		}
		if r.State == Sending {
			r.State = owned(r.ReadOnly)
		}
		r.ReadOnly, r.Peer = false, ""
		return r, EffectNone, nil
	case EventCollect:
		if mine && r.State == Sent {
			r.State = Garbage
		}
		return r, EffectNone, nil
	case EventDeleted:
		if mine && r.State == Garbage {
			r.State = Absent
		}
		return r, EffectNone, nil
	case EventForget:
		if mine && r.State == Absent {
			r.Peer = ""
		}
		return r, EffectNone, nil
	}
	return r, EffectNone, r.unknown(ev)
}

func (r Row) stepSend(ev Event) (Row, Effect, error) {
	switch {
	case ev.Peer == "":
		return r, EffectNone, &Error{Code: InvalidArguments, Bucket: ev.Bucket, Reason: "a destination is needed"}
	case r.State == Pinned:
		return r, EffectNone, &Error{Code: BucketIsPinned, Bucket: ev.Bucket}
	case r.Moving():
		return r, EffectNone, r.moving(ev)
	case !r.State.CanMove():
		return r, EffectNone, r.State.refuse(ev.Bucket, r.Peer)
	}
	r.Transfer = max(r.Transfer+1, ev.Transfer)
	r.Peer = ev.Peer
	return r, EffectNone, nil
}

// owned is the state of a bucket that its owner does not move.
func owned(readOnly bool) State {
	if readOnly {
		return ReadOnly
	}
	return Active
}

func (r Row) stepOwner(ev Event) (Row, Effect, error) {
	if !r.Owns() {
		return r, EffectNone, r.State.refuse(ev.Bucket, r.Peer)
	}
	want, from := Active, Pinned
	switch ev.Kind {
	case EventPin:
		want, from = Pinned, Active
	case EventReadOnly:
		want, from = ReadOnly, Active
	case EventReadWrite:
		from = ReadOnly
	case EventUnpin:
	default:
		return r, EffectNone, r.unknown(ev)
	}
	switch {
	case ev.Kind == EventUnpin && r.State != Pinned:
		return r, EffectNone, nil
	case r.Moving():
		return r, EffectNone, r.moving(ev)
	case r.State == want:
		return r, EffectNone, nil
	case r.State == Pinned && ev.Kind != EventUnpin:
		return r, EffectNone, &Error{Code: BucketIsPinned, Bucket: ev.Bucket}
	case r.State != from:
		return r, EffectNone, &Error{Code: BucketInvalidUpdate, Bucket: ev.Bucket, Reason: fmt.Sprintf("from %v to %v", r.State, want)}
	}
	r.State = want
	return r, EffectNone, nil
}

func (r Row) stepForce(ev Event) (Row, Effect, error) {
	switch ev.Kind {
	case EventForceCreate:
		if r.Owns() {
			return r, EffectNone, &Error{Code: BucketAlreadyExists, Bucket: ev.Bucket, Reason: "it is " + r.State.String() + " here"}
		}
		effect := EffectNone
		if r.State == Garbage {
			effect = EffectWipe
		}
		return Row{State: owned(r.ReadOnly), Transfer: max(r.Transfer, ev.Transfer) + forcedJump}, effect, nil
	case EventForceDrop:
		if r.Moving() {
			return r, EffectNone, r.moving(ev)
		}
		switch r.State {
		case Absent, Garbage:
			return r, EffectNone, nil
		case Active, Pinned, ReadOnly:
			// The id grows so that no transfer which brought the bucket can be taken for refused.
			r.Transfer++
		}
		r.State, r.ReadOnly, r.Taken = Garbage, false, Progress{}
		return r, EffectNone, nil
	}
	return r, EffectNone, r.unknown(ev)
}

func (r Row) moving(ev Event) error {
	return &Error{Code: TransferIsInProgress, Bucket: ev.Bucket, Destination: r.Peer,
		Reason: fmt.Sprintf("transfer %d is going on", r.Transfer)}
}

func (r Row) over(ev Event) error {
	return &Error{Code: TransferIsOver, Bucket: ev.Bucket,
		Reason: fmt.Sprintf("%v of transfer %d, but the bucket is %v here and its transfer %d", ev.Kind, ev.Transfer, r.State, r.Transfer)}
}

func (r Row) corrupted(ev Event) error {
	return &Error{Code: BucketIsCorrupted, Bucket: ev.Bucket,
		Reason: fmt.Sprintf("%v of transfer %d, but the bucket is %v here and its transfer %d, which cannot be",
			ev.Kind, ev.Transfer, r.State, r.Transfer)}
}

func (r Row) unknown(ev Event) error {
	return &Error{Code: InvalidArguments, Bucket: ev.Bucket, Reason: fmt.Sprintf("there is no %v", ev.Kind)}
}
