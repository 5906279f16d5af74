package scaling

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// partition is one of a fleet: it has tasks, and the counts that it has heard of.
type partition struct {
	tasks  int64
	loaded bool
	counts Counts
	// cut: the root cannot reach it.
	cut bool
}

// fleet is a queue in virtual time: partitions that hear of counts from the root,
// and clients that go by what they heard last.
type fleet struct {
	t          testing.TB
	rng        *rand.Rand
	now        int64
	m          *Manager
	set        Settings
	row        []byte // what is stored
	decodedRow []byte
	decoded    Counts // of decodedRow
	partitions [MaxPartitions]partition
	added      int64
	polled     int64
	changes    []string
	failStores bool
	used       int32 // partitions from here on never had a task
}

func newFleet(t testing.TB, seed uint64, s Settings) *fleet {
	f := &fleet{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: int64(time.Hour), set: s}
	f.load()
	return f
}

// load is what happens when the root gets another owner.
func (f *fleet) load() {
	m, err := New(f.set, f.row, f.now, f.rng.Uint64())
	if err != nil {
		f.t.Fatal(err)
	}
	f.m = m
}

func (f *fleet) configure(change func(*Settings)) {
	change(&f.set)
	if err := f.m.Configure(f.set, f.now); err != nil {
		f.t.Fatal(err)
	}
	f.propose()
}

// stored are the counts that a partition gets when it is loaded, and clients that
// know none: managed ones, else the configured.
func (f *fleet) stored() Counts {
	if !bytes.Equal(f.row, f.decodedRow) || f.row == nil {
		c, err := DecodeCounts(f.row)
		if err != nil {
			f.t.Fatal(err)
		}
		f.decodedRow, f.decoded = f.row, c
	}
	return f.orConfigured(f.decoded)
}

func (f *fleet) orConfigured(c Counts) Counts {
	if c.Managed() {
		return c
	}
	s := f.set.WithDefaults()
	return Counts{Read: s.ConfiguredRead, Write: s.Configured}
}

// add is a client that adds a task to a partition; refused when that takes none.
func (f *fleet) add(p int32) bool {
	x := &f.partitions[p]
	if !x.loaded {
		x.loaded, x.counts = true, f.stored()
	}
	if p >= f.orConfigured(x.counts).Write {
		return false
	}
	x.tasks++
	f.used = max(f.used, p+1)
	f.added++
	if p == 0 && f.m.Observe(f.now, 1) {
		f.propose()
	}
	return true
}

// poll is a worker that takes up to n tasks from a partition.
func (f *fleet) poll(p int32, n int64) {
	x := &f.partitions[p]
	n = min(n, x.tasks)
	x.tasks -= n
	f.polled += n
}

// ask is a round, as the shell does it.
func (f *fleet) ask() {
	read := f.m.Round(f.now, f.rng.Uint64())
	c := f.m.Counts()
	for p := range read {
		x := &f.partitions[p]
		switch {
		case x.cut:
			continue
		case !x.loaded: // fenced, and looked up in the store
			f.m.Answer(f.now, Report{p, c.Read, c.Write, c.Version, x.tasks == 0, x.tasks})
			continue
		}
		if c.Version >= x.counts.Version {
			x.counts = c
		}
		f.m.Answer(f.now, Report{p, x.counts.Read, x.counts.Write, x.counts.Version, x.tasks == 0 && p >= x.counts.Write, x.tasks})
	}
	f.propose()
}

func (f *fleet) propose() {
	p := f.m.Propose(f.now, f.now)
	if p == nil {
		return
	}
	if f.failStores {
		f.m.Discard(p)
		return
	}
	f.row = p.Row
	f.m.Commit(f.now, p)
	f.changes = append(f.changes, fmt.Sprintf("%v: target %d, read %d, write %d",
		time.Duration(f.now)-time.Hour, f.m.st.target, p.After.Read, p.After.Write))
	for q := range f.partitions[:max(p.Before.Read, p.After.Read)] {
		if x := &f.partitions[q]; x.loaded && !x.cut && (p.After.Version >= x.counts.Version || !p.After.Managed()) {
			x.counts = p.After
		}
	}
	f.check()
}

// check: every task is where it is polled, and the counts can be.
func (f *fleet) check() {
	f.t.Helper()
	c := f.stored()
	if c.Write < 1 || c.Read < c.Write || c.Read > MaxPartitions {
		f.t.Fatalf("counts %+v", c)
	}
	for p := c.Read; p < f.used; p++ {
		if n := f.partitions[p].tasks; n > 0 {
			f.t.Fatalf("partition %d has %d tasks and nobody polls it: %+v\n%q", p, n, c, f.changes)
		}
	}
}

// run lets time pass in steps: rate tasks a second are added by clients that know
// the counts, and up to as many polled, and the rounds are made that are due.
func (f *fleet) run(d time.Duration, rate, polls float64) {
	const step = 100 * time.Millisecond
	for end := f.now + int64(d); f.now < end; {
		f.now += int64(step)
		c := f.stored()
		for range int(rate * step.Seconds()) {
			for try := 0; !f.add(f.rng.Int32N(c.Write)); try++ {
				if c = f.stored(); try > 100 {
					f.t.Fatal("a client with the right counts is refused again and again")
				}
			}
		}
		for range int(polls * step.Seconds()) {
			f.poll(f.rng.Int32N(c.Read), 1)
		}
		if at, ok := f.m.Wake(); ok && f.now >= at {
			f.ask()
		}
	}
	f.check()
}
