package shard

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// The explorer goes through every order of events of the move protocol within bounds. Its world is one
// bucket on up to three replica sets and a network that may lose, repeat and reorder everything: what
// was once sent stays deliverable for ever, and nothing has to be delivered. Data are a version
// number: every acknowledged write makes the next one. What the sets do is decided by the functions of
// this package alone, called the way the storage calls them.

// rules are the functions that decide; a test breaks one of them to see it caught.
type rules struct {
	step      func(Row, Event) (Row, Effect, error)
	verdict   func(Row, uint64) Verdict
	onVerdict func(BucketID, uint64, Verdict) (Event, bool)
	reply     func(Row, uint64) Reply
	confirm   func(Row, BucketID, uint64, Progress, Reply) (Event, error)
	onReply   func(Row, BucketID, uint64, Reply) (Event, bool, error)
	chore     func(Row, bool) Chore
	mayWrite  func(Row) bool
	lenient   bool // states may follow each other in any way
}

func trueRules() rules {
	return rules{
		step: Row.Step, verdict: Row.Verdict, onVerdict: OnVerdict, reply: Row.Reply, confirm: Row.Confirm,
		onReply: Row.OnReply, chore: Row.Chore,
		mayWrite: func(r Row) bool { return r.CheckWrite(1) == nil },
	}
}

// bounds limit an exploration.
type bounds struct {
	sets                  int
	sends, writes, chunks uint8 // chunks: of one transfer
	toggles               uint8 // changes between ACTIVE, READONLY and PINNED
	startReadOnly         bool
	lateProposals         bool // commands reach the log any time after they were proposed, even twice
	states                int  // fail above
}

const maxSets = 3

var setNames = [maxSets]string{"a", "b", "c"}

func setOf(name string) int {
	for i, n := range setNames {
		if n == name {
			return i
		}
	}
	panic("no such set " + name)
}

// node is one replica set: what its log says, and what its master remembers.
type node struct {
	row  Row
	data uint8
	// In the master's memory: a transfer is worked on, chunks given, version given.
	live        bool
	next, given uint8
}

type messageKind uint8

const (
	msgPrepare messageKind = iota
	msgChunk
	msgCommit
	msgDrop
	msgReply
	msgLook
	msgVerdict
	msgProposal
)

var messageNames = [...]string{"prepare", "chunk", "commit", "drop", "reply", "look", "verdict", "log"}

type message struct {
	kind     messageKind
	from, to uint8
	t        uint64
	readOnly bool
	seq, ver uint8
	reply    Reply
	verdict  Verdict
	event    EventKind
}

func (m message) String() string {
	s := fmt.Sprintf("%s→%s %s t%d", setNames[m.from], setNames[m.to], messageNames[m.kind], m.t)
	switch m.kind {
	case msgChunk:
		s += fmt.Sprintf(" #%d v%d", m.seq, m.ver)
	case msgReply:
		s += fmt.Sprintf(" %v %+v", m.reply.Standing, m.reply.Taken)
	case msgVerdict:
		s += " " + m.verdict.String()
	case msgProposal:
		s += " " + m.event.String()
	}
	return s
}

const messageWords = 10

type messageSet [messageWords]uint64

// add reports whether there was something new in o.
func (s *messageSet) add(o *messageSet) (added bool) {
	for i, v := range o {
		added = added || v&^s[i] != 0
		s[i] |= v
	}
	return added
}

type world struct {
	n             [maxSets]node
	sent          messageSet
	acked         uint8
	sends, toggle uint8
	readOnly      bool // what the owner was told last
}

// key is what the replica sets know and remember, in few bytes.
type key struct {
	n    [maxSets]uint64
	rest uint64
}

func (n *node) key() uint64 {
	v := uint64(n.row.State) | b2u(n.row.ReadOnly)<<3 | b2u(n.live)<<4
	if n.row.Peer != "" {
		v |= uint64(setOf(n.row.Peer)+1) << 5
	}
	v |= n.row.Transfer<<7 | n.row.Taken.Chunks<<15 | n.row.Taken.Rows<<23 | n.row.Taken.Sum<<25 // 8, 8, 2, 8 bits
	return v | uint64(n.data)<<33 | uint64(n.next)<<41 | uint64(n.given)<<49
}

func (w *world) key() key {
	k := key{rest: uint64(w.acked) | b2u(w.readOnly)<<8}
	for i := range w.n {
		k.n[i] = w.n[i].key()
	}
	return k
}

// deliveries holds what comes of each message for one state of one replica set; it depends on nothing else.
type deliveries struct {
	outcome []delivered // by message
	known   messageSet  // which of them are filled in
	changes messageSet  // which of them change more than the messages under way
}

type delivered struct {
	node    node
	sent    messageSet
	problem error
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// covers reports whether all that can come of o can come of w, which has the same key: more messages
// are under way and less trouble has been spent.
func (w *world) covers(o *world) bool {
	for i := range w.sent {
		if o.sent[i]&^w.sent[i] != 0 {
			return false
		}
	}
	return w.sends <= o.sends && w.toggle <= o.toggle
}

// explorer holds what all worlds share.
type explorer struct {
	rules
	bounds
	messages []message
	numbers  map[message]int

	seen   map[key][]int32
	worlds []world
	parent []int32

	quiet map[key]string // worlds without messages → what is wrong with their quiet end

	deliveries [maxSets]map[uint64]*deliveries

	steps   int
	problem error // of the step that is being made
}

func newExplorer(r rules, b bounds) *explorer {
	x := &explorer{rules: r, bounds: b, numbers: map[message]int{}, seen: map[key][]int32{}, quiet: map[key]string{}}
	for i := range x.deliveries {
		x.deliveries[i] = map[uint64]*deliveries{}
	}
	return x
}

func (x *explorer) send(w *world, m message) {
	id, ok := x.numbers[m]
	if !ok {
		id = len(x.messages)
		if id >= messageWords*64 {
			x.fault("more than %d different messages", messageWords*64)
			return
		}
		x.messages = append(x.messages, m)
		x.numbers[m] = id
	}
	w.sent[id/64] |= 1 << (id % 64)
}

func (x *explorer) fault(format string, args ...any) {
	if x.problem == nil {
		x.problem = fmt.Errorf(format, args...)
	}
}

// propose brings a command into the log of set i: at once, or at any time from now on.
func (x *explorer) propose(w *world, i int, ev Event) {
	if x.lateProposals {
		x.send(w, message{kind: msgProposal, from: uint8(i), to: uint8(i), t: ev.Transfer, event: ev.Kind})
		return
	}
	x.apply(w, i, ev, 0)
}

// apply is a command at its place of the log of set i.
func (x *explorer) apply(w *world, i int, ev Event, ver uint8) {
	n := &w.n[i]
	ev.Bucket = 1
	before := n.row
	row, effect, err := x.step(before, ev)
	if errors.Is(err, BucketIsCorrupted) {
		x.fault("%s: %v", setNames[i], err)
		return
	}
	if err != nil {
		if row != before || effect != EffectNone {
			x.fault("%s: %v failed and changed something", setNames[i], ev.Kind)
		}
		return
	}
	if !x.lenient && !before.State.CanBecome(row.State) {
		x.fault("%s: %v made %v out of %v", setNames[i], ev.Kind, row.State, before.State)
	}
	if effect&EffectWipe != 0 || ev.Kind == EventDeleted && row.State == Absent {
		n.data = 0
	}
	if effect&EffectTake != 0 {
		n.data = ver
		row.Taken.Rows, row.Taken.Sum = uint64(min(ver, 1)), uint64(ver)
	}
	n.row = row
	if !n.row.Moving() {
		n.live, n.next, n.given = false, 0, 0
	}
	// What is always sent after such a step.
	m := message{from: uint8(i), t: ev.Transfer}
	switch {
	case ev.Kind == EventAbort && before.Moving() && !row.Moving():
		m.kind, m.to = msgDrop, uint8(setOf(before.Peer))
		x.send(w, m)
	case row.State == Sent:
		m.kind, m.to, m.t = msgCommit, uint8(setOf(row.Peer)), row.Transfer
		x.send(w, m)
	case row.State == Receiving && x.chore(row, false) == ChoreAsk:
		m.kind, m.to, m.t = msgLook, uint8(setOf(row.Peer)), row.Transfer
		x.send(w, m)
	}
}

// to returns the deliveries to set i as it is in w.
func (x *explorer) to(w *world, i int) *deliveries {
	k := w.n[i].key()
	d := x.deliveries[i][k]
	if d == nil {
		d = &deliveries{}
		x.deliveries[i][k] = d
	}
	return d
}

// outcome is what comes of message id, d being the deliveries to its receiver.
func (x *explorer) outcome(w *world, d *deliveries, id int) *delivered {
	word, bit := id/64, uint64(1)<<(id%64)
	if d.known[word]&bit == 0 {
		to := x.messages[id].to
		var alone world
		problem := x.problem
		x.problem = nil
		alone.n[to] = w.n[to]
		x.deliverNow(&alone, x.messages[id])
		for len(d.outcome) <= id {
			d.outcome = append(d.outcome, delivered{})
		}
		d.outcome[id] = delivered{alone.n[to], alone.sent, x.problem}
		d.known[word] |= bit
		if alone.n[to] != w.n[to] || x.problem != nil {
			d.changes[word] |= bit
		}
		x.problem = problem
	}
	return &d.outcome[id]
}

// deliver hands a message to its receiver.
func (x *explorer) deliver(w *world, id int) {
	to := int(x.messages[id].to)
	r := x.outcome(w, x.to(w, to), id)
	w.n[to] = r.node
	w.sent.add(&r.sent)
	if x.problem == nil {
		x.problem = r.problem
	}
}

func (x *explorer) deliverNow(w *world, m message) {
	to := int(m.to)
	n := &w.n[to]
	answer := func() {
		x.send(w, message{kind: msgReply, from: m.to, to: m.from, t: m.t, reply: x.reply(n.row, m.t)})
	}
	switch m.kind {
	case msgPrepare:
		x.apply(w, to, Event{Kind: EventReceive, Transfer: m.t, Peer: setNames[m.from], ReadOnly: m.readOnly}, 0)
		answer()
	case msgChunk:
		x.apply(w, to, Event{Kind: EventChunk, Transfer: m.t, Seq: uint64(m.seq)}, m.ver)
		answer()
	case msgCommit:
		x.apply(w, to, Event{Kind: EventActivate, Transfer: m.t}, 0)
		answer()
	case msgDrop:
		x.apply(w, to, Event{Kind: EventDrop, Transfer: m.t}, 0)
	case msgReply:
		x.replied(w, to, m)
	case msgLook:
		v := x.verdict(n.row, m.t)
		if v == VerdictUnknown {
			x.fault("%s has not heard of transfer %d, which %s is receiving", setNames[to], m.t, setNames[m.from])
		}
		x.send(w, message{kind: msgVerdict, from: m.to, to: m.from, t: m.t, verdict: v})
	case msgVerdict:
		if ev, ok := x.onVerdict(1, m.t, m.verdict); ok {
			x.propose(w, to, ev)
		}
	case msgProposal:
		x.apply(w, to, Event{Kind: m.event, Transfer: m.t}, 0)
	}
}

// replied is what the source's master does about an answer.
func (x *explorer) replied(w *world, i int, m message) {
	n := &w.n[i]
	if n.row.Moving() && !n.live {
		return // a new master aborts; that is a step of its own
	}
	if n.row.State == Sending && n.given == n.data && n.next > 0 {
		given := Progress{Chunks: uint64(n.next), Rows: uint64(min(n.given, 1)), Sum: uint64(n.given)}
		ev, err := x.confirm(n.row, 1, m.t, given, m.reply)
		switch {
		case err == nil:
			x.propose(w, i, ev)
		case errors.Is(err, TransferIsOver):
			x.propose(w, i, Event{Kind: EventAbort, Transfer: m.t})
		}
		return
	}
	ev, ok, err := x.onReply(n.row, 1, m.t, m.reply)
	if err != nil {
		x.fault("%s: %v", setNames[i], err)
	}
	if ok {
		x.propose(w, i, ev)
	}
}

// next calls visit with every world that can follow w and how it came about.
func (x *explorer) nextWorlds(w *world, visit func(next *world, how func() string)) {
	try := func(how func() string, change func(*world)) {
		next := *w
		x.problem = nil
		change(&next)
		if x.problem == nil {
			x.saturate(&next)
		}
		visit(&next, how)
	}
	for i := range x.sets {
		x.ownSteps(w, i, try)
	}
	// The deliveries that change a replica set; saturate has made the others.
	var d [maxSets]*deliveries
	for i := range x.sets {
		d[i] = x.to(w, i)
	}
	for word, set := range w.sent {
		for ; set != 0; set &= set - 1 {
			b := bits.TrailingZeros64(set)
			id := word*64 + b
			to := d[x.messages[id].to]
			if x.outcome(w, to, id); to.changes[word]&(1<<b) == 0 {
				continue
			}
			try(func() string { return "deliver " + x.messages[id].String() }, func(next *world) { x.deliver(next, id) })
		}
	}
}

// saturate delivers all messages whose delivery changes nothing but the messages that are under way:
// what can come of w can come of the result as well, because no message has to be delivered.
func (x *explorer) saturate(w *world) {
	var d [maxSets]*deliveries
	for i := range x.sets {
		d[i] = x.to(w, i)
	}
	for done := (messageSet{}); ; {
		again := false
		for word := range w.sent {
			for set := w.sent[word] &^ done[word]; set != 0; set &= set - 1 {
				b := bits.TrailingZeros64(set)
				done[word] |= 1 << b
				id := word*64 + b
				to := d[x.messages[id].to]
				if r := x.outcome(w, to, id); to.changes[word]&(1<<b) == 0 && w.sent.add(&r.sent) {
					again = true
				}
			}
		}
		if !again {
			return
		}
	}
}

// ownSteps are those that need no message.
func (x *explorer) ownSteps(w *world, i int, try func(func() string, func(*world))) {
	n := &w.n[i]
	say := func(s string) func() string { return func() string { return setNames[i] + " " + s } }
	if x.mayWrite(n.row) && w.acked < x.writes {
		try(say("writes"), func(next *world) { next.acked++; next.n[i].data = next.acked })
	}
	if n.row.State.CanMove() && !n.row.Moving() && w.sends < x.sends {
		for d := range x.sets {
			if d == i {
				continue
			}
			try(say("begins to send to "+setNames[d]), func(next *world) { x.begin(next, i, d) })
		}
	}
	if n.live && n.row.Moving() {
		t := n.row.Transfer
		if n.next < x.chunks && (n.next == 0 || n.given != n.data) {
			try(say("gives a chunk"), func(next *world) { x.give(next, i) })
		}
		if n.row.State != Sending && n.next > 0 {
			try(say("seals"), func(next *world) { x.propose(next, i, Event{Kind: EventSeal, Transfer: t}) })
		}
		try(say("cancels"), func(next *world) { x.propose(next, i, Event{Kind: EventAbort, Transfer: t}) })
	}
	if n.live {
		try(say("gets a new master"), func(next *world) {
			next.n[i].live, next.n[i].next, next.n[i].given = false, 0, 0
		})
	}
	switch x.chore(n.row, n.live) {
	case ChoreAbort:
		try(say("aborts what it finds"), func(next *world) { x.propose(next, i, Event{Kind: EventAbort, Transfer: n.row.Transfer}) })
	case ChoreDelete:
		try(say("has deleted"), func(next *world) { x.propose(next, i, Event{Kind: EventDeleted, Transfer: n.row.Transfer}) })
	case ChoreForget:
		try(say("forgets"), func(next *world) { x.propose(next, i, Event{Kind: EventForget, Transfer: n.row.Transfer}) })
	}
	if w.toggle < x.toggles {
		for _, kind := range [...]EventKind{EventPin, EventUnpin, EventReadOnly, EventReadWrite} {
			if row, _, err := x.step(n.row, Event{Kind: kind}); err != nil || row == n.row {
				continue
			}
			try(say(kind.String()), func(next *world) {
				next.toggle++
				x.apply(next, i, Event{Kind: kind}, 0)
				next.readOnly = next.n[i].row.State == ReadOnly
			})
		}
	}
}

func (x *explorer) begin(w *world, i, d int) {
	n := &w.n[i]
	w.sends++
	readOnly := n.row.State == ReadOnly
	x.apply(w, i, Event{Kind: EventSend, Peer: setNames[d]}, 0)
	n.live, n.next, n.given = true, 0, 0
	x.send(w, message{kind: msgPrepare, from: uint8(i), to: uint8(d), t: n.row.Transfer, readOnly: readOnly})
}

func (x *explorer) give(w *world, i int) {
	n := &w.n[i]
	x.send(w, message{kind: msgChunk, from: uint8(i), to: uint8(setOf(n.row.Peer)), t: n.row.Transfer, seq: n.next, ver: n.data})
	n.next++
	n.given = n.data
}

// check returns what is wrong with a world by itself.
func (x *explorer) check(w *world) error {
	owners := 0
	for i := range x.sets {
		n := &w.n[i]
		if n.row.Owns() {
			owners++
			if n.row.State != Sending && (n.row.State == ReadOnly) != w.readOnly {
				return fmt.Errorf("%s is %v, and read-only was %v", setNames[i], n.row.State, w.readOnly)
			}
		}
		if n.row.State.CanRead() && n.data != w.acked {
			return fmt.Errorf("%s is %v with version %d, and %d was acknowledged", setNames[i], n.row.State, n.data, w.acked)
		}
		if n.row.State == Receiving && (n.row.Peer == "" || w.n[setOf(n.row.Peer)].row.Transfer < n.row.Transfer) {
			return fmt.Errorf("%s is RECEIVING transfer %d from %q, which does not know it", setNames[i], n.row.Transfer, n.row.Peer)
		}
	}
	for i := range x.sets {
		r := &w.n[i].row
		if (r.State == Garbage || r.State == Absent) && r.Peer != "" {
			if d := &w.n[setOf(r.Peer)].row; d.State == Receiving && d.Transfer == r.Transfer {
				return fmt.Errorf("%s is %v before %s has made the bucket its own", setNames[i], r.State, r.Peer)
			}
		}
	}
	if owners > 1 {
		return errors.New("two replica sets own the bucket")
	}
	return nil
}

func (w *world) String() string {
	var b strings.Builder
	for i := range w.n {
		n := &w.n[i]
		fmt.Fprintf(&b, "%s: %v ro=%v peer=%s t%d taken %+v v%d live=%v given #%d v%d; ", setNames[i],
			n.row.State, n.row.ReadOnly, n.row.Peer, n.row.Transfer, n.row.Taken, n.data, n.live, n.next, n.given)
	}
	fmt.Fprintf(&b, "acknowledged v%d", w.acked)
	return b.String()
}
