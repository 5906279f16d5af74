package shard

import "fmt"

// Verdict is what a replica set answers when the destination of a transfer asks what became of it.
type Verdict uint8

// Verdicts. VerdictSent and VerdictOver are true for ever once given, so any replica may give
// them; the other two only a master that has made sure that it is one.
const (
	// VerdictUnknown: the replica set has not heard of the transfer.
	VerdictUnknown Verdict = 0
	// VerdictLive: the transfer is going on.
	VerdictLive Verdict = 1
	// VerdictSent: the source has logged SENT.
	VerdictSent Verdict = 2
	// VerdictOver: the transfer has ended and will never be SENT.
	VerdictOver Verdict = 3
)

var verdictNames = [...]string{"unknown", "live", "sent", "over"}

// String returns the verdict's name.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Verdict is the answer of a replica set whose row is r to the destination of transfer t. The
// destination asks the source, and, if that one says VerdictUnknown, all replica sets that it knows.
//
// A source whose transfer nobody works on (Row.Chore says ChoreAbort) aborts it first and answers then:
// until it does, the answer is VerdictLive.
func (r Row) Verdict(t uint64) Verdict {
	switch {
	case r.Transfer < t:
		return VerdictUnknown
	case r.Transfer > t:
		return VerdictOver
	case r.Moving():
		return VerdictLive
	case r.State == Sent || r.State == Garbage || r.State == Absent:
		return VerdictSent
	}
	return VerdictOver
}

// OnVerdict returns what the destination of transfer t does about an answer: an event for its log, or
// nothing (false). VerdictUnknown is nothing too: the source has lost what it knew. Then the other
// replica sets are asked, and when none of them says VerdictOver, somebody has to look: the rows here
// may be the last.
func OnVerdict(b BucketID, t uint64, v Verdict) (Event, bool) {
	switch v {
	case VerdictSent:
		return Event{Kind: EventActivate, Bucket: b, Transfer: t}, true
	case VerdictOver:
		return Event{Kind: EventDrop, Bucket: b, Transfer: t}, true
	}
	return Event{}, false
}

// Standing is how a destination stands towards a transfer.
type Standing uint8

// Standings. All but ReplyMissing and ReplyReceiving are true for ever once given.
const (
	// ReplyMissing: the destination has not heard of the transfer.
	ReplyMissing Standing = 0
	// ReplyReceiving: it is taking the bucket; Reply.Taken says how far it is.
	ReplyReceiving Standing = 1
	// ReplyTook: it has made the bucket its own.
	ReplyTook Standing = 2
	// ReplyDropped: it has dropped what came.
	ReplyDropped Standing = 3
	// ReplyNewer: it has seen a newer transfer of the bucket.
	ReplyNewer Standing = 4
)

var standingNames = [...]string{"missing", "receiving", "took", "dropped", "newer"}

// String returns the standing's name.
func (s Standing) String() string {
	if int(s) < len(standingNames) {
		return standingNames[s]
	}
	return fmt.Sprintf("standing(%d)", uint8(s))
}

// Reply is what a destination answers to every message of a transfer, after it has logged
// what the message asked for.
type Reply struct {
	Standing Standing
	// Transfer is the highest transfer id of the bucket that the destination has seen.
	Transfer uint64
	// Taken of ReplyReceiving.
	Taken Progress
}

// Reply is the answer of a destination whose row is r to the source of transfer t. Its
// master gives it, from applied rows.
func (r Row) Reply(t uint64) Reply {
	reply := Reply{Transfer: r.Transfer}
	switch {
	case r.Transfer < t:
		reply.Standing = ReplyMissing
	case r.Transfer > t:
		reply.Standing = ReplyNewer
	case r.State == Receiving:
		reply.Standing, reply.Taken = ReplyReceiving, r.Taken
	case r.Owns():
		reply.Standing = ReplyTook
	default:
		reply.Standing = ReplyDropped
	}
	return reply
}

// Confirm makes the event that ends a transfer, from the destination's answer to the last chunk. given
// is what the source has given in all. The source's master calls it while its row r is SENDING and
// after the last write before SENDING was given: nothing else may make an EventSent.
//
// TRANSFER_IS_OVER: the destination does not take the bucket, abort. BUCKET_RECV_DATA_ERROR: it has
// something else than was given; if Taken.Chunks of the answer is lower, chunks are missing and can be
// given again, else abort.
func (r Row) Confirm(b BucketID, t uint64, given Progress, got Reply) (Event, error) {
	ev := Event{Kind: EventSent, Bucket: b, Transfer: t}
	if r.State != Sending || r.Transfer != t {
		return Event{}, r.over(ev)
	}
	if got.Standing != ReplyReceiving {
		return Event{}, &Error{Code: TransferIsOver, Bucket: b, Destination: r.Peer,
			Reason: fmt.Sprintf("transfer %d: the destination says %v", t, got.Standing)}
	}
	if got.Taken != given {
		return Event{}, &Error{Code: BucketReceiveData, Bucket: b, Destination: r.Peer,
			Reason: fmt.Sprintf("transfer %d: given %d chunks, %d rows, sum %x; taken %d chunks, %d rows, sum %x", t,
				given.Chunks, given.Rows, given.Sum, got.Taken.Chunks, got.Taken.Rows, got.Taken.Sum)}
	}
	return ev, nil
}

// OnReply returns what a source does about an answer to any message but the last chunk of transfer t,
// its row being r: an event for its log, or nothing (false): then it goes on with the transfer, or
// repeats its message. BUCKET_IS_CORRUPTED: the destination says what cannot be; nothing is done, the
// rows here are kept, somebody has to look.
func (r Row) OnReply(b BucketID, t uint64, got Reply) (Event, bool, error) {
	cannotBe := func() error {
		return &Error{Code: BucketIsCorrupted, Bucket: b, Destination: r.Peer,
			Reason: fmt.Sprintf("transfer %d is %v here, and the destination says %v", t, r.State, got.Standing)}
	}
	switch {
	case r.Transfer != t:
		return Event{}, false, nil
	case r.Moving():
		switch got.Standing {
		case ReplyMissing, ReplyReceiving:
			return Event{}, false, nil
		case ReplyTook:
			return Event{}, false, cannotBe()
		}
		return Event{Kind: EventAbort, Bucket: b, Transfer: t}, true, nil
	case r.State == Sent:
		switch got.Standing {
		case ReplyMissing, ReplyReceiving: // a late answer; the destination answers a commit that cannot be with an error
			return Event{}, false, nil
		case ReplyTook, ReplyNewer:
			return Event{Kind: EventCollect, Bucket: b, Transfer: t}, true, nil
		}
		return Event{}, false, cannotBe()
	}
	return Event{}, false, nil
}

// Chore is what a master owes a bucket's row.
type Chore uint8

// Chores.
const (
	// ChoreNone: nothing.
	ChoreNone Chore = 0
	// ChoreAbort: log EventAbort for a transfer that nobody works on (any more), and send drop to
	// Peer, once: if it gets lost, the destination asks.
	ChoreAbort Chore = 1
	// ChoreCommit: send commit to Peer until it answers, then act by OnReply.
	ChoreCommit Chore = 2
	// ChoreAsk: ask Peer for its Verdict, then act by OnVerdict.
	ChoreAsk Chore = 3
	// ChoreDelete: delete the bucket's rows in steps, then log EventDeleted.
	ChoreDelete Chore = 4
	// ChoreForget: log EventForget a minute after the bucket has gone.
	ChoreForget Chore = 5
)

var choreNames = [...]string{"none", "abort", "commit", "ask", "delete", "forget"}

// String returns the chore's name.
func (c Chore) String() string {
	if int(c) < len(choreNames) {
		return choreNames[c]
	}
	return fmt.Sprintf("chore(%d)", uint8(c))
}

// Chore returns what the master has to do about the row r. live says that a running transfer looks
// after the bucket: on the source, that this master began Row.Transfer itself, in this term of its
// mastership, and still works on it; on the destination, that something came lately (a few seconds). A
// master goes through its rows when it becomes one, when a transfer fails, and every few seconds.
func (r Row) Chore(live bool) Chore {
	switch {
	case live:
		return ChoreNone
	case r.Moving():
		return ChoreAbort
	}
	switch r.State {
	case Sent:
		return ChoreCommit
	case Receiving:
		return ChoreAsk
	case Garbage:
		return ChoreDelete
	case Absent:
		if r.Peer != "" {
			return ChoreForget
		}
	}
	return ChoreNone
}
