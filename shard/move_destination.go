package shard

import "fmt"

func (r Row) stepDestination(ev Event) (Row, Effect, error) {
	switch ev.Kind {
	case EventReceive:
		return r.stepReceive(ev)
	case EventChunk:
		if r.State != Receiving || r.Transfer != ev.Transfer {
			return r, EffectNone, r.over(ev)
		}
		switch {
		case ev.Seq < r.Taken.Chunks:
			return r, EffectNone, nil
		case ev.Seq > r.Taken.Chunks:
			return r, EffectNone, &Error{Code: BucketReceiveData, Bucket: ev.Bucket,
				Reason: fmt.Sprintf("chunk %d of transfer %d came, and %d is the next", ev.Seq, ev.Transfer, r.Taken.Chunks)}
		}
		r.Taken.Chunks++
		return r, EffectTake, nil
	case EventActivate:
		switch {
		case r.Transfer > ev.Transfer:
			return r, EffectNone, nil // the bucket was here, and went on
		case r.Transfer < ev.Transfer || !r.Owns() && r.State != Receiving:
			return r, EffectNone, r.corrupted(ev)
		case r.State != Receiving:
			return r, EffectNone, nil
		}
		return Row{State: owned(r.ReadOnly), Transfer: r.Transfer}, EffectNone, nil
	case EventDrop:
		switch {
		case r.Transfer != ev.Transfer:
			return r, EffectNone, nil
		case r.Owns():
			return r, EffectNone, r.corrupted(ev)
		case r.State != Receiving:
			return r, EffectNone, nil
		}
		r.State, r.ReadOnly, r.Taken = Garbage, false, Progress{}
		return r, EffectNone, nil
	}
	return r, EffectNone, r.unknown(ev)
}

func (r Row) stepReceive(ev Event) (Row, Effect, error) {
	switch {
	case ev.Peer == "" || ev.Transfer == 0:
		return r, EffectNone, &Error{Code: InvalidArguments, Bucket: ev.Bucket, Reason: "a source and a transfer are needed"}
	case r.State == Receiving && r.Transfer == ev.Transfer && r.Peer == ev.Peer:
		return r, EffectNone, nil
	case ev.Transfer <= r.Transfer:
		return r, EffectNone, r.over(ev)
	case r.Owns():
		return r, EffectNone, &Error{Code: BucketAlreadyExists, Bucket: ev.Bucket,
			Reason: fmt.Sprintf("%s wants to send it, and it is %v here", ev.Peer, r.State)}
	}
	// A higher id: the transfer that is RECEIVING, SENT or GARBAGE here has ended, and what it
	// left is of no use to anybody.
	effect := EffectNone
	if r.State != Absent {
		effect = EffectWipe
	}
	return Row{State: Receiving, ReadOnly: ev.ReadOnly, Peer: ev.Peer, Transfer: ev.Transfer}, effect, nil
}
