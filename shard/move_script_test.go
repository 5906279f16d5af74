package shard

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestMove_scripts runs the stories of testdata/move. They have one command:
//
//	steps      one step a line; the output has a line for each
//	----
//
// A step is "SET EVENT [arguments]", an event in the log of that replica set, or one of
//
//	SET is STATE [readonly] [peer=SET] [t=N]                   puts a row there
//	SET confirms [t=N] given=CHUNKS/ROWS/SUM from=SET    the source hears the destination's answer to the last chunk
//	SET hears-of [t=N] from=SET                          the source hears any other answer, and logs what follows
//	SET asks SET [t=N]                                   the destination asks what became of a transfer, and logs what follows
//	SET chore [live]                                     what its master owes the bucket
//	SET reads, SET writes                                a call
//
// Without t=N a step is about the transfer that the set's row has.
func TestMove_scripts(t *testing.T) {
	datadriven.Walk(t, "testdata/move", func(t *testing.T, path string) {
		s := script{rows: map[string]Row{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "steps" {
				d.Fatalf(t, "there is no command %q", d.Cmd)
			}
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				if words := strings.Fields(line); len(words) >= 2 {
					fmt.Fprintf(&out, "%s: %s\n", words[0], s.step(t, words[0], words[1], words[2:]))
				} else {
					d.Fatalf(t, "%q is not a step", line)
				}
			}
			return out.String()
		})
	})
}

type script struct{ rows map[string]Row }

// arguments of a step.
type arguments struct {
	words map[string]bool
	value map[string]string
	t     *testing.T
}

func (a arguments) number(name string, otherwise uint64) uint64 {
	v, ok := a.value[name]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		a.t.Fatalf("%s=%s: %v", name, v, err)
	}
	return n
}

func (a arguments) progress(name string) (p Progress) {
	if _, err := fmt.Sscanf(a.value[name], "%d/%d/%x", &p.Chunks, &p.Rows, &p.Sum); err != nil {
		a.t.Fatalf("%s=%s is not CHUNKS/ROWS/SUM: %v", name, a.value[name], err)
	}
	return p
}

func (s *script) step(t *testing.T, set, what string, words []string) string {
	a := arguments{words: map[string]bool{}, value: map[string]string{}, t: t}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			a.value[name] = value
		} else {
			a.words[w] = true
		}
	}
	row := s.rows[set]
	tr := a.number("t", row.Transfer)
	switch what {
	case "is":
		state, err := ParseState(words[0])
		if err != nil {
			t.Fatal(err)
		}
		s.rows[set] = Row{State: state, ReadOnly: a.words["readonly"], Peer: a.value["peer"], Transfer: tr}
		return describe(s.rows[set])
	case "confirms":
		from := s.rows[a.value["from"]].Reply(tr)
		ev, err := row.Confirm(7, tr, a.progress("given"), from)
		if err != nil {
			return describeError(err)
		}
		return s.log(set, ev, Progress{})
	case "hears-of":
		from := s.rows[a.value["from"]].Reply(tr)
		ev, ok, err := row.OnReply(7, tr, from)
		switch {
		case err != nil:
			return fmt.Sprintf("hears %v, %s", from.Standing, describeError(err))
		case !ok:
			return fmt.Sprintf("hears %v, does nothing", from.Standing)
		}
		return fmt.Sprintf("hears %v, %s", from.Standing, s.log(set, ev, Progress{}))
	case "asks":
		v := s.rows[words[0]].Verdict(tr)
		ev, ok := OnVerdict(7, tr, v)
		if !ok {
			return fmt.Sprintf("hears %v, does nothing", v)
		}
		return fmt.Sprintf("hears %v, %s", v, s.log(set, ev, Progress{}))
	case "chore":
		return row.Chore(a.words["live"]).String()
	case "reads", "writes":
		check := Row.CheckRead
		if what == "writes" {
			check = Row.CheckWrite
		}
		if err := check(row, 7); err != nil {
			return describeError(err)
		}
		return "yes"
	}
	for kind, name := range eventNames {
		if name == what {
			ev := Event{Kind: kind, Bucket: 7, Transfer: tr, Peer: a.value["peer"], ReadOnly: a.words["readonly"], Seq: a.number("seq", 0)}
			if kind == EventSend || kind == EventForceCreate {
				ev.Transfer = a.number("t", 0)
			}
			var brings Progress
			if kind == EventChunk {
				brings = Progress{Rows: a.number("rows", 0), Sum: a.number("sum", 0)}
			}
			return s.log(set, ev, brings)
		}
	}
	t.Fatalf("there is no step %q", what)
	return ""
}

// log applies an event as storage does.
func (s *script) log(set string, ev Event, brings Progress) string {
	before := s.rows[set]
	row, effect, err := before.Step(ev)
	if err != nil {
		return fmt.Sprintf("%v: %s", ev.Kind, describeError(err))
	}
	said := ""
	if effect&EffectWipe != 0 {
		said += ", old rows wiped"
	}
	if effect&EffectTake != 0 {
		row.Taken.Rows += brings.Rows
		row.Taken.Sum += brings.Sum
		said += ", chunk taken"
	}
	s.rows[set] = row
	if row == before {
		return fmt.Sprintf("%v: nothing changes", ev.Kind)
	}
	return fmt.Sprintf("%v: %s%s", ev.Kind, describe(row), said)
}

func describe(r Row) string {
	s := r.State.String()
	if r.ReadOnly {
		s += " (READONLY)"
	}
	switch {
	case r.Peer == "":
	case r.State == Receiving:
		s += " from " + r.Peer
	case r.State == Garbage || r.State == Absent:
		s += ", went to " + r.Peer
	default:
		s += " to " + r.Peer
	}
	if r.Transfer != 0 {
		s += fmt.Sprintf(", transfer %d", r.Transfer)
	}
	if r.Taken != (Progress{}) {
		s += fmt.Sprintf(", taken %d/%d/%x", r.Taken.Chunks, r.Taken.Rows, r.Taken.Sum)
	}
	return s
}

func describeError(err error) string { return "refused: " + err.Error() }
