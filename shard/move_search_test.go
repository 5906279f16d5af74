package shard

import (
	commandline "flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var deep = commandline.Bool("deep", false, "explore the move protocol with wider bounds (about a minute)")

// run explores breadth first and returns the shortest story that breaks a rule, or "".
func (x *explorer) run() string {
	first := world{readOnly: x.startReadOnly}
	first.n[0].row.State = owned(x.startReadOnly)
	x.add(&first, -1)
	for at := 0; at < len(x.worlds); at++ {
		w := x.worlds[at]
		story := ""
		x.nextWorlds(&w, func(next *world, how func() string) {
			if story != "" {
				return
			}
			x.steps++
			err := x.problem
			if err == nil {
				if x.known(next) {
					return
				}
				err = x.check(next)
			}
			if err == nil {
				err = x.ends(next)
			}
			if err != nil {
				story = fmt.Sprintf("%s  %s\n  ⇒ %v\n  %v", x.story(int32(at)), how(), err, next)
				return
			}
			x.add(next, int32(at))
		})
		if story != "" {
			return story
		}
		if len(x.worlds) > x.states {
			return fmt.Sprintf("more than %d states", x.states)
		}
	}
	return ""
}

func (x *explorer) add(w *world, parent int32) {
	k := w.key()
	x.seen[k] = append(x.seen[k], int32(len(x.worlds)))
	x.worlds = append(x.worlds, *w)
	x.parent = append(x.parent, parent)
}

func (x *explorer) known(w *world) bool {
	for _, i := range x.seen[w.key()] {
		if x.worlds[i].covers(w) {
			return true
		}
	}
	return false
}

// story tells how a world came about, by going its way again.
func (x *explorer) story(at int32) string {
	if x.parent[at] < 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(x.story(x.parent[at]))
	w, want, found := x.worlds[x.parent[at]], x.worlds[at], false
	x.nextWorlds(&w, func(next *world, how func() string) {
		if !found && *next == want {
			found = true
			fmt.Fprintf(&b, "  %s\n", how())
		}
	})
	return b.String()
}

// ends reports what is wrong when from w on nothing fails any more, but everything that is under way
// is lost, with and without the masters' memory.
func (x *explorer) ends(w *world) error {
	calm := *w
	calm.sent = messageSet{}
	calm.sends, calm.toggle = 0, 0
	for _, forget := range [...]bool{false, true} {
		if forget {
			for i := range calm.n {
				calm.n[i].live, calm.n[i].next, calm.n[i].given = false, 0, 0
			}
		}
		k := calm.key()
		bad, known := x.quiet[k]
		if !known {
			bad = x.settle(calm)
			x.quiet[k] = bad
		}
		if bad != "" {
			return fmt.Errorf("a quiet time does not heal it: %s", bad)
		}
	}
	return nil
}

// settle lets every master do its chores and every message arrive, until nothing changes.
func (x *explorer) settle(w world) string {
	for range 50 {
		before := w
		x.problem = nil
		for i := range x.sets {
			x.quietStep(&w, i)
		}
		for word := range w.sent {
			for b := range 64 {
				if w.sent[word]&(1<<b) != 0 {
					w.sent[word] &^= 1 << b
					x.deliver(&w, word*64+b)
				}
			}
		}
		if x.problem != nil {
			return x.problem.Error()
		}
		if err := x.check(&w); err != nil {
			return err.Error()
		}
		if w == before {
			break
		}
	}
	owners := 0
	for i := range x.sets {
		switch r := w.n[i].row; {
		case r.Owns() && !r.Moving():
			owners++
		case r.State != Absent:
			return fmt.Sprintf("%s stays %v: %v", setNames[i], r.State, &w)
		}
	}
	if owners != 1 {
		return fmt.Sprintf("%d replica sets own the bucket: %v", owners, &w)
	}
	return ""
}

// quietStep is what the master of set i does when it is left alone.
func (x *explorer) quietStep(w *world, i int) {
	n := &w.n[i]
	t := n.row.Transfer
	if n.live && n.row.Moving() {
		dest := &w.n[setOf(n.row.Peer)].row
		if dest.State != Receiving || dest.Transfer != t || dest.Taken.Chunks != uint64(n.next) {
			x.apply(w, i, Event{Kind: EventAbort, Transfer: t}, 0) // something was lost: time ran out
			return
		}
		if n.row.State != Sending {
			x.apply(w, i, Event{Kind: EventSeal, Transfer: t}, 0)
		}
		if n.next == 0 || n.given != n.data {
			x.give(w, i)
			return
		}
		x.send(w, message{kind: msgReply, from: uint8(setOf(n.row.Peer)), to: uint8(i), t: t, reply: x.reply(*dest, t)})
		return
	}
	switch x.chore(n.row, n.live) {
	case ChoreAbort:
		x.apply(w, i, Event{Kind: EventAbort, Transfer: t}, 0)
	case ChoreCommit:
		x.send(w, message{kind: msgCommit, from: uint8(i), to: uint8(setOf(n.row.Peer)), t: t})
	case ChoreAsk:
		x.send(w, message{kind: msgLook, from: uint8(i), to: uint8(setOf(n.row.Peer)), t: t})
	case ChoreDelete:
		x.apply(w, i, Event{Kind: EventDeleted, Transfer: t}, 0)
	case ChoreForget:
		x.apply(w, i, Event{Kind: EventForget, Transfer: t}, 0)
	}
}

type exploration struct {
	name       string
	quick, far bounds
}

var explorations = []exploration{
	{"two replica sets",
		bounds{sets: 2, sends: 2, writes: 2, chunks: 2, states: 1 << 20},
		bounds{sets: 2, sends: 3, writes: 2, chunks: 2, states: 1 << 25}},
	{"two replica sets, late commands",
		bounds{sets: 2, sends: 2, writes: 1, chunks: 2, lateProposals: true, states: 1 << 20},
		bounds{sets: 2, sends: 2, writes: 2, chunks: 3, lateProposals: true, states: 1 << 25}},
	{"two replica sets, read-only and pins",
		bounds{sets: 2, sends: 2, writes: 1, chunks: 1, toggles: 2, startReadOnly: true, states: 1 << 20},
		bounds{sets: 2, sends: 3, writes: 1, chunks: 1, toggles: 3, startReadOnly: true, states: 1 << 25}},
	{"two replica sets, there and back and there",
		bounds{sets: 2, sends: 3, chunks: 1, states: 1 << 20},
		bounds{sets: 2, sends: 4, chunks: 1, states: 1 << 25}},
	{"three replica sets, sent on at once",
		bounds{sets: 3, sends: 2, writes: 1, chunks: 2, states: 1 << 20},
		bounds{sets: 3, sends: 3, writes: 1, chunks: 1, states: 1 << 25}},
}

// TestMove_everyOrderOfEvents explores messages that are lost, repeated and late, crashes, new masters
// and cancelled moves: at no time two owners, no acknowledged write missing where the bucket can be
// read, and from everywhere a way back to exactly one owner.
func TestMove_everyOrderOfEvents(t *testing.T) {
	for _, e := range explorations {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			b := e.quick
			if *deep {
				b = e.far
			}
			start := time.Now()
			x := newExplorer(trueRules(), b)
			if story := x.run(); story != "" {
				t.Fatalf("after %d states:\n%s", len(x.worlds), story)
			}
			t.Logf("%d states, %d steps, %d messages, %d calm worlds, %v", len(x.worlds), x.steps, len(x.messages), len(x.quiet),
				time.Since(start).Round(time.Millisecond))
		})
	}
}
