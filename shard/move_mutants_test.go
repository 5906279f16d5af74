package shard

import (
	"strings"
	"testing"
)

// TestMove_brokenRulesAreCaught breaks one rule of the protocol at a time. The explorer must find a
// story in which that hurts.
func TestMove_brokenRulesAreCaught(t *testing.T) {
	// ids makes kinds of events pass as if they belonged to the transfer that the row knows.
	ids := func(r *rules, kinds ...EventKind) {
		r.step = func(row Row, ev Event) (Row, Effect, error) {
			for _, k := range kinds {
				if ev.Kind == k {
					ev.Transfer = row.Transfer
				}
			}
			return row.Step(ev)
		}
	}
	withoutWrites := []exploration{{"without writes",
		bounds{sets: 2, sends: 1, chunks: 1, lateProposals: true, states: 1 << 20}, bounds{}}}
	for _, m := range []struct {
		name string
		want string        // in the story's end
		in   []exploration // nil for all
		mend func(*rules)
	}{
		{"SENT before the destination has confirmed", "", nil, func(r *rules) {
			r.confirm = func(row Row, b BucketID, tr uint64, _ Progress, _ Reply) (Event, error) {
				return Event{Kind: EventSent, Bucket: b, Transfer: tr}, nil
			}
		}},
		{"count and sum are not compared", "", nil, func(r *rules) {
			r.confirm = func(row Row, b BucketID, tr uint64, given Progress, got Reply) (Event, error) {
				got.Taken = given
				return row.Confirm(b, tr, given, got)
			}
		}},
		{"the source takes any transfer's answer as a confirmation", "", nil, func(r *rules) {
			r.confirm = func(row Row, b BucketID, _ uint64, given Progress, got Reply) (Event, error) {
				return row.Confirm(b, row.Transfer, given, got)
			}
		}},
		{"chunks of any transfer are taken", "", nil, func(r *rules) { ids(r, EventChunk) }},
		{"a commit of any transfer is taken", "", nil, func(r *rules) { ids(r, EventActivate) }},
		{"a drop of any transfer is taken", "", nil, func(r *rules) { ids(r, EventDrop) }},
		{"any transfer's SENT is logged", "", explorations[1:2], func(r *rules) { ids(r, EventSent) }},
		{"an older transfer may begin again at the destination", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				if ev.Kind == EventReceive && !row.Owns() && row.State != Receiving {
					row.Transfer = 0
				}
				return row.Step(ev)
			}
		}},
		{"transfer ids are used twice", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				next, effect, err := row.Step(ev)
				if ev.Kind == EventSend && err == nil && row.Transfer > 0 {
					next.Transfer = row.Transfer
				}
				return next, effect, err
			}
		}},
		{"an absent bucket's transfer id is forgotten", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				next, effect, err := row.Step(ev)
				if next.State == Absent {
					next.Transfer = 0
				}
				return next, effect, err
			}
		}},
		{"ACTIVE twice: a transfer is called off after SENT", "two replica sets own", withoutWrites, func(r *rules) {
			r.lenient = true
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				if ev.Kind == EventAbort && row.State == Sent && row.Transfer == ev.Transfer {
					return Row{State: Active, Transfer: row.Transfer}, EffectNone, nil
				}
				return row.Step(ev)
			}
		}},
		{"a live transfer counts as sent", "", nil, func(r *rules) {
			r.verdict = func(row Row, tr uint64) Verdict {
				if v := row.Verdict(tr); v != VerdictLive {
					return v
				}
				return VerdictSent
			}
		}},
		{"a destination gives up by itself, and SENT comes after", "", nil, func(r *rules) {
			r.onVerdict = func(b BucketID, tr uint64, v Verdict) (Event, bool) {
				if v == VerdictLive {
					v = VerdictOver
				}
				return OnVerdict(b, tr, v)
			}
		}},
		{"a source says that a SENT transfer is over", "", nil, func(r *rules) {
			r.verdict = func(row Row, tr uint64) Verdict {
				if v := row.Verdict(tr); v != VerdictSent {
					return v
				}
				return VerdictOver
			}
		}},
		{"a collected source says that the transfer is over", "", nil, func(r *rules) {
			r.verdict = func(row Row, tr uint64) Verdict {
				if row.State == Garbage || row.State == Absent {
					return VerdictOver
				}
				return row.Verdict(tr)
			}
		}},
		{"a repeated prepare wipes what was taken", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				next, effect, err := row.Step(ev)
				if ev.Kind == EventReceive && err == nil && row.State == Receiving {
					effect |= EffectWipe
				}
				return next, effect, err
			}
		}},
		{"rows of an earlier transfer stay when the next one begins", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				next, effect, err := row.Step(ev)
				if ev.Kind == EventReceive && err == nil && next.Transfer > row.Transfer {
					next.Taken = row.Taken
				}
				return next, effect, err
			}
		}},
		{"chunks are written in any order", "", nil, func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				if ev.Kind == EventChunk && ev.Seq < row.Taken.Chunks && row.Transfer == ev.Transfer && row.State == Receiving {
					return row, EffectTake, nil // a repeated chunk is written again; the sum was compared before
				}
				return row.Step(ev)
			}
			r.confirm = func(row Row, b BucketID, tr uint64, given Progress, got Reply) (Event, error) {
				got.Taken.Sum, got.Taken.Rows = given.Sum, given.Rows
				return row.Confirm(b, tr, given, got)
			}
		}},
		{"SENDING takes writes", "was acknowledged", nil, func(r *rules) {
			r.mayWrite = func(row Row) bool { return row.CheckWrite(1) == nil || row.State == Sending }
		}},
		{"SENT takes writes", "was acknowledged", nil, func(r *rules) {
			r.mayWrite = func(row Row) bool { return row.CheckWrite(1) == nil || row.State == Sent }
		}},
		{"a new master does not abort what it finds", "a quiet time does not heal it", nil, func(r *rules) {
			r.chore = func(row Row, live bool) Chore {
				if c := row.Chore(live); c != ChoreAbort {
					return c
				}
				return ChoreNone
			}
		}},
		{"commit is not repeated and not asked for", "a quiet time does not heal it", nil, func(r *rules) {
			r.chore = func(row Row, live bool) Chore {
				if c := row.Chore(live); c != ChoreCommit && c != ChoreAsk {
					return c
				}
				return ChoreNone
			}
		}},
		{"a destination never asks", "a quiet time does not heal it", nil, func(r *rules) {
			r.chore = func(row Row, live bool) Chore {
				if c := row.Chore(live); c != ChoreAsk {
					return c
				}
				return ChoreNone
			}
		}},
		{"nobody deletes", "a quiet time does not heal it", nil, func(r *rules) {
			r.chore = func(row Row, live bool) Chore {
				if c := row.Chore(live); c != ChoreDelete {
					return c
				}
				return ChoreNone
			}
		}},
		{"an abort forgets READONLY", "read-only was", explorations[2:3], func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				if ev.Kind == EventAbort {
					row.ReadOnly = false
				}
				return row.Step(ev)
			}
		}},
		{"the destination is not told of READONLY", "read-only was", explorations[2:3], func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				ev.ReadOnly = false
				return row.Step(ev)
			}
		}},
		{"a moving bucket can be made READONLY", "", explorations[2:3], func(r *rules) {
			r.step = func(row Row, ev Event) (Row, Effect, error) {
				if ev.Kind == EventReadOnly && row.State == Active {
					row.State = ReadOnly
					return row, EffectNone, nil
				}
				return row.Step(ev)
			}
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r := trueRules()
			m.mend(&r)
			states := 0
			if m.in == nil {
				m.in = explorations
			}
			for _, e := range m.in {
				x := newExplorer(r, e.quick)
				story := x.run()
				states += len(x.worlds)
				if story == "" {
					continue
				}
				end := story[strings.LastIndex(story, "⇒"):]
				if strings.HasPrefix(story, "more than") || !strings.Contains(end, m.want) {
					t.Errorf("caught for another reason than %q:\n%s", m.want, story)
				}
				t.Logf("caught after %d states (%s):\n%s", states, e.name, story)
				return
			}
			t.Errorf("not caught in %d states", states)
		})
	}
}
