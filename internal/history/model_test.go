package history

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A small model of a queue with its clients, in virtual time. Requests travel
// for a while, take effect, and their answers travel back or are lost; clients
// give up before or after the effect. Without a fault everything it records is
// what a correct queue may answer. A fault is injected once, at the first moment
// where the records will prove it.

type fault int

const (
	noFault fault = iota
	dropAcknowledged
	deliverTwice
	deliverCompleted
	deliverInvented
	deliverDead
	retryEarly
	changeContent
	completeSuperseded
	showCompleted
	repeatToken
	faults // how many
)

var faultKinds = [faults][]Kind{
	dropAcknowledged:   {Lost},
	deliverTwice:       {UnderLease, CompletedTwice},
	deliverCompleted:   {AfterComplete, CompletedTwice},
	deliverInvented:    {Invented},
	deliverDead:        {AfterDead},
	retryEarly:         {UnderLease, CompletedTwice},
	changeContent:      {Changed},
	completeSuperseded: {UnderLease, CompletedTwice, BadLease},
	showCompleted:      {AfterComplete},
	repeatToken:        {BadLease},
}

const (
	maxTravel = 20_000_000  // one way, ns
	leaseTime = 300_000_000 // ns
	addUntil  = 2_000_000_000
	stopAt    = 20_000_000_000
)

// modelLease is what the model's server and, once told, the client know.
type modelLease struct {
	token    string
	deadline int64
	told     int64 // when the worker got it; 0 until then
	shaky    bool  // something unanswered was sent under it
	endSent  bool  // a failure, release or completion was sent under it
}

type modelTask struct {
	id        string
	sum       uint32
	attempt   int32
	notBefore int64
	lease     *modelLease // nil when nobody has it
	old       *modelLease // the lease before, when it ran out
	gone      bool        // completed
	dead      bool
	toldGone  int64 // when the acknowledgement of its completion, or of its last failure, arrived
	toldAdded bool
	toldRetry int64 // when the acknowledgement of a failure arrived
}

type event struct {
	at, seq int64
	do      func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type model struct {
	rnd     *rand.Rand
	fault   fault
	done    bool // the fault was injected
	now     int64
	seq     int64
	queue   events
	tasks   []*modelTask
	byID    map[string]*modelTask
	tokens  int
	history []Record
}

func runModel(seed uint64, f fault) ([]Record, bool) {
	m := &model{rnd: rand.New(rand.NewPCG(seed, 1)), fault: f, now: 1, byID: map[string]*modelTask{}}
	for i := range 1 + m.rnd.IntN(3) {
		m.after(m.travel(), func() { m.produce(fmt.Sprintf("p%d", i), 0) })
	}
	for i := range 1 + m.rnd.IntN(4) {
		m.after(m.travel(), func() { m.poll(fmt.Sprintf("w%d", i)) })
	}
	for len(m.queue) > 0 {
		next := heap.Pop(&m.queue).(event)
		m.now = next.at
		next.do()
	}
	m.now++
	for _, t := range m.tasks {
		show := m.fault == showCompleted && !m.done && t.toldGone != 0 && !t.dead
		if show {
			m.done = true
		}
		if !t.gone || show {
			m.history = append(m.history, Record{Op: Left, Outcome: OK, Task: t.id, Start: m.now, End: m.now})
		}
	}
	m.rnd.Shuffle(len(m.history), func(i, j int) { m.history[i], m.history[j] = m.history[j], m.history[i] })
	return m.history, m.done
}

func (m *model) after(d int64, do func()) {
	m.seq++
	heap.Push(&m.queue, event{m.now + d, m.seq, do})
}

func (m *model) travel() int64         { return 1 + m.rnd.Int64N(maxTravel) }
func (m *model) chance(p float64) bool { return m.rnd.Float64() < p }
func (m *model) inject(f fault) bool   { return m.fault == f && !m.done }

// request sends one: effect runs when it arrives, if it does; answered runs when
// the answer is there, lost when the client gave up. Each gets the time of
// sending. sure: nothing gets lost.
func (m *model) request(sure bool, effect, answered, lost func(sent int64)) {
	sent := m.now
	switch {
	case sure || m.chance(0.9):
		m.after(m.travel(), func() {
			effect(sent)
			m.after(m.travel(), func() { answered(sent) })
		})
	case m.chance(0.5): // lost on the way there
		m.after(m.travel(), func() { lost(sent) })
	default: // the answer is lost; the client may give up before the effect
		m.after(m.travel(), func() { lost(sent) })
		m.after(2*m.travel(), func() { effect(sent) })
	}
}

func (m *model) record(r Record, sent int64) {
	r.Start, r.End = sent, m.now
	m.history = append(m.history, r)
}

// ---- producers

func (m *model) produce(who string, n int) {
	if m.now > addUntil {
		return
	}
	id := fmt.Sprintf("%s-%d", who, n)
	m.add(who, id, m.rnd.Uint32()|1, func() { m.after(m.travel(), func() { m.produce(who, n+1) }) })
}

func (m *model) add(who, id string, sum uint32, next func()) {
	outcome := OK
	m.request(false, func(int64) {
		if m.byID[id] != nil {
			outcome = Already
			return
		}
		t := &modelTask{id: id, sum: sum}
		m.byID[id] = t
		m.tasks = append(m.tasks, t)
	}, func(sent int64) {
		m.byID[id].toldAdded = true
		m.record(Record{Op: Add, Outcome: outcome, Client: who, Task: id, Sum: sum}, sent)
		next()
	}, func(sent int64) {
		m.record(Record{Op: Add, Outcome: Unknown, Client: who, Task: id, Sum: sum}, sent)
		if m.chance(0.7) {
			m.add(who, id, sum, next)
		} else {
			next()
		}
	})
}

// ---- workers

func (m *model) poll(who string) {
	if m.now > stopAt {
		return
	}
	var task *modelTask
	var given Record
	again := func() { m.after(5*m.travel(), func() { m.poll(who) }) }
	sure := m.fault != noFault && !m.done
	m.request(sure, func(sent int64) {
		if task = m.pick(sent); task == nil {
			return
		}
		given = m.lease(task)
		given.Client = who
	}, func(sent int64) {
		if task == nil {
			again()
			return
		}
		if task.lease != nil && task.lease.token == string(given.Token) {
			task.lease.told = m.now
		}
		m.record(given, sent)
		m.work(who, task, given, again)
	}, func(int64) { again() })
}

// pick chooses a task for a poll: one that is ready, or a wrong one for a fault.
func (m *model) pick(sent int64) *modelTask {
	for _, t := range m.tasks {
		l := t.lease
		switch {
		case m.inject(dropAcknowledged) && t.toldAdded && !t.gone && l == nil && t.old == nil && t.attempt == 0:
			t.gone, m.done = true, true
		case m.inject(deliverTwice) && !t.gone && l != nil && l.told != 0 && !l.shaky && !l.endSent && m.now+maxTravel < l.deadline,
			m.inject(deliverCompleted) && t.toldGone != 0 && !t.dead && t.toldGone < sent,
			m.inject(deliverDead) && t.dead && t.toldGone != 0 && t.toldGone < sent,
			m.inject(retryEarly) && !t.gone && !t.dead && l == nil && t.toldRetry != 0 && m.now+maxTravel < t.notBefore:
			m.done = true
			t.gone, t.dead = false, false
			return t
		}
	}
	if m.inject(deliverInvented) {
		m.done = true
		t := &modelTask{id: "nobody's", sum: 1}
		m.tasks = append(m.tasks, t)
		m.byID[t.id] = t
		return t
	}
	var ready []*modelTask
	for _, t := range m.tasks {
		if t.lease != nil && t.lease.deadline <= m.now {
			t.old, t.lease = t.lease, nil
		}
		if !t.gone && !t.dead && t.lease == nil && t.notBefore <= m.now {
			ready = append(ready, t)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	return ready[m.rnd.IntN(len(ready))]
}

func (m *model) lease(t *modelTask) Record {
	m.tokens++
	t.attempt++
	token := fmt.Sprintf("t%d", m.tokens)
	if m.inject(repeatToken) && t.old != nil && t.old.told != 0 {
		token, m.done = t.old.token, true
	}
	t.lease = &modelLease{token: token, deadline: m.now + leaseTime}
	sum := t.sum
	if m.inject(changeContent) {
		sum, m.done = sum+2, true
	}
	return Record{Op: Deliver, Outcome: OK, Task: t.id, Token: []byte(token), Deadline: t.lease.deadline, Attempt: t.attempt, Sum: sum}
}

// live returns the lease of a token when it has not been superseded.
func (t *modelTask) live(token []byte) *modelLease {
	if t.gone || t.dead {
		return nil
	}
	for _, l := range []*modelLease{t.lease, t.old} {
		// One that ran out counts as long as nobody else got the task.
		if l != nil && l.token == string(token) && (l == t.lease || t.lease == nil) {
			return l
		}
	}
	return nil
}

func (m *model) work(who string, t *modelTask, given Record, next func()) {
	switch p := m.rnd.Float64(); {
	case p < 0.08: // vanishes
		next()
	case p < 0.16, p < 0.6 && m.inject(completeSuperseded): // dawdles beyond the lease
		m.after(leaseTime+10*m.travel(), func() { m.complete(who, t, given, next) })
	case p < 0.24:
		m.fail(who, t, given, next)
	case p < 0.30:
		m.release(who, t, given, next)
	case p < 0.45:
		m.after(m.travel(), func() { m.extend(who, t, given, func() { m.complete(who, t, given, next) }) })
	default:
		m.after(m.travel(), func() { m.complete(who, t, given, next) })
	}
}

// send is a request under a lease. effect is called with the lease when it is
// live and may fill in the record.
func (m *model) send(op Op, who string, t *modelTask, given Record, effect func(*modelLease, *Record), told func(), next func()) {
	r := Record{Op: op, Outcome: Refused, Client: who, Task: t.id, Token: given.Token}
	if op == Extend {
		r.LeaseTime = leaseTime
	}
	if l := t.live(given.Token); l != nil {
		l.endSent = l.endSent || op != Extend
	}
	sure := op == Complete && m.inject(completeSuperseded) // only an answer proves it
	m.request(sure, func(sent int64) {
		l := t.live(given.Token)
		if l == nil && op == Complete && m.inject(completeSuperseded) && !t.gone && t.lease != nil && t.lease.told != 0 && t.lease.told < sent &&
			t.old != nil && t.old.token == string(given.Token) {
			m.done, l = true, t.old
		}
		if l == nil {
			return
		}
		r.Outcome = OK
		effect(l, &r)
	}, func(sent int64) {
		if r.Outcome == OK && told != nil {
			told()
		}
		m.record(r, sent)
		next()
	}, func(sent int64) {
		if l := t.live(given.Token); l != nil {
			l.shaky = true
		}
		unknown := Record{Op: op, Outcome: Unknown, Client: who, Task: t.id, Token: given.Token, LeaseTime: r.LeaseTime}
		m.record(unknown, sent)
		next()
	})
}

func (m *model) complete(who string, t *modelTask, given Record, next func()) {
	m.send(Complete, who, t, given, func(*modelLease, *Record) { t.gone, t.lease, t.old = true, nil, nil },
		func() { t.toldGone = m.now }, next)
}

func (m *model) fail(who string, t *modelTask, given Record, next func()) {
	m.send(Fail, who, t, given, func(_ *modelLease, r *Record) {
		t.lease, t.old = nil, nil
		if m.chance(0.3) {
			t.dead, r.Dead = true, true
			return
		}
		t.notBefore = m.now + leaseTime
		r.Deadline = t.notBefore
	}, func() {
		if t.dead {
			t.toldGone = m.now
		} else {
			t.toldRetry = m.now
		}
	}, next)
}

func (m *model) release(who string, t *modelTask, given Record, next func()) {
	m.send(Release, who, t, given, func(*modelLease, *Record) {
		t.lease, t.old = nil, nil
		t.attempt--
	}, nil, next)
}

func (m *model) extend(who string, t *modelTask, given Record, next func()) {
	m.send(Extend, who, t, given, func(l *modelLease, r *Record) {
		l.deadline = m.now + leaseTime
		r.Deadline = l.deadline
		t.lease, t.old = l, nil
	}, nil, next)
}

// ---- tests

func checkModel(t *testing.T, seed uint64, f fault) (injected bool) {
	t.Helper()
	records, injected := runModel(seed, f)
	report := Check(records, Options{})
	switch {
	case !injected:
		if len(report.Violations) != 0 {
			t.Fatalf("seed %d: a correct history was blamed: %s", seed, report)
		}
	case !slices.ContainsFunc(kinds(report), func(k Kind) bool { return slices.Contains(faultKinds[f], k) }):
		t.Fatalf("seed %d: fault %d was not caught: %s", seed, f, report)
	}
	return injected
}

func TestModel_correctQueuesPass(t *testing.T) {
	var sum Report
	for seed := range uint64(100) {
		checkModel(t, seed, noFault)
		records, _ := runModel(seed, noFault)
		r := Check(records, Options{})
		sum.Tasks += r.Tasks
		sum.Redeliveries += r.Redeliveries
		sum.Unknown += r.Unknown
		sum.Completed += r.Completed
	}
	t.Log(sum)
	if sum.Redeliveries < 500 || sum.Unknown < 500 || sum.Completed < 500 {
		t.Errorf("the model is too tame to prove anything: %s", sum)
	}
}

func TestModel_everyFaultIsCaught(t *testing.T) {
	for f := noFault + 1; f < faults; f++ {
		t.Run(fmt.Sprint(faultKinds[f][0], "-", int(f)), func(t *testing.T) {
			caught := 0
			for seed := range uint64(40) {
				if checkModel(t, seed, f) {
					caught++
				}
			}
			if caught < 10 {
				t.Errorf("the fault was injected in %d of 40 runs only", caught)
			}
			t.Log(caught, "of 40 runs")
		})
	}
}

func FuzzModel(f *testing.F) {
	for i := range uint8(faults) {
		f.Add(uint64(i)*1000, i)
	}
	f.Fuzz(func(t *testing.T, seed uint64, which uint8) {
		checkModel(t, seed, fault(which)%faults)
	})
}
