package scaling

import "fmt"

// BatchSize is after how many added tasks of the queue a decision is due.
const BatchSize = 100

// Manager decides the partition counts of one queue. All times that it is given as
// now are nanoseconds of one clock that does not jump.
type Manager struct {
	set   Settings
	st    state
	rates rates

	changedAt int64 // of the counts; the loading counts as a change
	targetAt  int64 // of the last change of the target or the cap
	askAt     int64
	observed  float64 // tasks since the last decision
	empty     bitset  // partitions found empty under the counts in effect
	pending   *Proposal
	shadow    int32 // what On would have as the target; 0 for nothing
}

// New makes the manager of a queue from what is stored, nil for nothing.
// random is 64 random bits.
func New(s Settings, row []byte, now int64, random uint64) (*Manager, error) {
	m := &Manager{changedAt: now, targetAt: now}
	if len(row) > 0 {
		if err := m.st.decode(row); err != nil {
			return nil, err
		}
	}
	if err := m.Configure(s, now); err != nil {
		return nil, err
	}
	m.schedule(now, random)
	return m, nil
}

// Configure changes the settings. With an error nothing changes.
func (m *Manager) Configure(s Settings, now int64) error {
	if err := s.Check(); err != nil {
		return err
	}
	m.set = s.WithDefaults()
	m.rates.init(m.set.Up, m.set.Down, now)
	switch {
	case m.set.Mode != Shadow:
		m.shadow = 0
	case m.shadow == 0:
		m.shadow = m.set.clamp(m.set.Configured)
		if !m.st.managed() {
			m.st.base = m.shadow
		}
	}
	if !m.active() {
		m.observed = 0
	}
	return nil
}

// active says whether there is anything to do.
func (m *Manager) active() bool { return m.set.Mode != Off || m.st.managed() }

// Counts are those in effect; not managed when all are zero.
func (m *Manager) Counts() Counts {
	c := m.st.counts()
	if c.BacklogCap == 0 {
		c.Backlog = nil // nobody would look at it
	} else {
		c.Backlog = append([]byte(nil), c.Backlog...)
	}
	return c
}

// Targets are the target in effect, the largest there ever was, and what On would
// have in mode Shadow; 0 where there is none.
func (m *Manager) Targets() (target, largest, shadow int32) {
	return m.st.target, m.st.largest, m.shadow
}

// Observe counts tasks that the root itself has taken from clients. It says whether a
// decision is due: Propose should be called.
func (m *Manager) Observe(now int64, tasks int) (due bool) {
	if m.set.Mode == Off || tasks <= 0 {
		return false
	}
	write := m.st.write
	if !m.st.managed() {
		write = m.set.Configured
	}
	n := float64(tasks) * float64(write) // the others get as many
	m.rates.add(now, n)
	m.observed += n
	return m.observed >= BatchSize
}

// Wake is when Round should be called next; false for not before Configure.
func (m *Manager) Wake() (at int64, ok bool) { return m.askAt, m.active() }

// Round begins a round of questions: each partition from 0 to read - 1 should be
// asked for a Report, under the counts in effect. After the answers that came,
// Propose should be called.
func (m *Manager) Round(now int64, random uint64) (read int32) {
	m.schedule(now, random)
	if !m.active() {
		return 0
	}
	if m.st.managed() {
		return m.st.read
	}
	return m.set.ConfiguredRead
}

// schedule plans the next round: after the interval, or as soon as a partition could
// count as empty, if that is earlier.
func (m *Manager) schedule(now int64, random uint64) {
	jitter := (float64(random>>11)/(1<<53)*2 - 1) * 0.05
	m.askAt = now + int64(float64(m.set.Interval)*(1+jitter))
	if drain := m.changedAt + int64(m.set.DrainBuffer); m.st.managed() && m.st.write < m.st.read && drain > now {
		m.askAt = min(m.askAt, drain)
	}
}

// Report is what a partition says about itself. A partition that cannot be asked has
// none. One that is not in memory can be reported from its rows if nobody can load it
// with older counts meanwhile.
type Report struct {
	Partition int32
	// The counts that it goes by.
	Read, Write int32
	Version     int64
	// Empty: it has no task of any kind that could have to be polled, now or later,
	// and under these counts it never gets one.
	Empty bool
	// Backlog is how many tasks wait.
	Backlog int64
}

// Answer takes a report.
func (m *Manager) Answer(now int64, r Report) {
	read := m.set.ConfiguredRead
	if m.st.managed() {
		read = m.st.read
	}
	if r.Partition < 0 || r.Partition >= read || !m.active() {
		return // of counts that are over
	}
	if m.set.BacklogBase == 0 || r.Backlog < m.set.BacklogReset || r.Backlog == 0 {
		m.st.raised.clear(r.Partition)
	} else if r.Backlog > m.set.BacklogBase {
		m.st.raised.set(r.Partition)
	}
	if !m.st.managed() {
		return
	}
	m.st.levels[r.Partition] = NextLevel(r.Backlog, m.st.levels[r.Partition])
	if r.Empty && m.Draining(now, r.Partition) &&
		r.Version == m.st.version && r.Read == m.st.read && r.Write == m.st.write {
		m.empty.set(r.Partition)
	}
}

// Draining says whether a partition takes no new tasks and has not for so long that
// it can count as empty.
func (m *Manager) Draining(now int64, partition int32) bool {
	return m.st.managed() && partition >= m.st.write && partition < m.st.read && now-m.changedAt >= int64(m.set.DrainBuffer)
}

// Rate is how many tasks are added per second, over the shortest window; 0 before it
// has been observed in full.
func (m *Manager) Rate(now int64) float64 {
	var least *window
	for _, w := range m.rates.windows {
		if least == nil || w.length < least.length {
			least = w
		}
	}
	if least == nil {
		return 0
	}
	rate, _ := least.rate(now)
	return rate
}

// Proposal is a change that takes effect with Commit.
type Proposal struct {
	// Row is the state to store; nil for none: the counts are not managed any more.
	Row []byte
	// Before and After are the counts.
	Before, After Counts
	next          state
	retarget      bool
}

// Propose works out whether the counts should change now; nil when not, or while
// another proposal is neither committed nor discarded. wall is the time of day in
// nanoseconds, for the version.
func (m *Manager) Propose(now, wall int64) *Proposal {
	if m.pending != nil || !m.active() {
		return nil
	}
	m.observed = 0
	cool := now-m.targetAt >= int64(m.set.Cooldown)
	next := m.st.clone()
	for p := m.st.write; p < m.st.read; p++ {
		if m.empty.has(p) {
			next.backlog.clear(p)
		}
	}
	if m.set.Mode == On {
		switch {
		case !m.st.managed():
			next.target = m.set.clamp(m.set.Configured)
			if m.set.Fixed > 0 {
				next.target = m.set.Fixed
			}
			next.base, next.cap = m.set.clamp(m.set.Configured), m.set.BacklogCap
			next.backlog.setBelow(m.set.ConfiguredRead)
		case cool:
			next.target, next.cap = m.decide(&next, now), m.set.BacklogCap
		}
	} else {
		if m.set.Mode == Shadow && cool {
			if want := m.decide(&next, now); want != m.shadow {
				m.shadow, m.targetAt = want, now
			}
			m.st.base = next.base
		}
		if !m.st.managed() {
			return nil
		}
		next.target, next.cap = m.set.Configured, 0
	}
	next.settle(m.set.ShrinkRatio, m.set.ShrinkDelta)
	next.raised.clearFrom(next.read)
	p := &Proposal{Before: m.st.counts()}
	if m.set.Mode != On && next.read == m.set.Configured && next.write == next.read {
		next = state{} // it is as configured
	} else {
		m.st.base = next.base
		if next.target == m.st.target && next.cap == m.st.cap && next.read == m.st.read && next.write == m.st.write &&
			equalBits(&next.backlog, &m.st.backlog) {
			return nil
		}
		next.version = max(wall, m.st.version+1)
		if err := next.check(); err != nil {
			panic(fmt.Sprintf("scaling: a proposal cannot be: %v", err))
		}
		p.Row = next.append(nil)
	}
	p.After, p.next = next.counts(), next
	p.retarget = next.target != m.st.target || next.cap != m.st.cap
	m.pending = p
	return p
}

func (m *Manager) decide(s *state, now int64) int32 {
	s.base = m.set.clamp(m.rates.decide(now, m.set.clamp(s.base)))
	if m.set.Fixed > 0 {
		return m.set.Fixed
	}
	return m.set.clamp(s.base + s.raised.count())
}

// Commit makes a proposal effective: its row has been stored.
func (m *Manager) Commit(now int64, p *Proposal) {
	if p == nil || p != m.pending {
		panic("scaling: a proposal is committed that is not the one under way")
	}
	m.pending = nil
	// What partitions said meanwhile is not lost.
	copy(p.next.levels, m.st.levels)
	p.next.base, p.next.raised = m.st.base, m.st.raised
	if p.next.managed() {
		p.next.raised.clearFrom(p.next.read)
	}
	m.st, m.empty = p.next, bitset{}
	m.changedAt = now
	if p.retarget {
		m.targetAt = now
	}
	if m.st.managed() && m.st.write < m.st.read {
		m.askAt = min(m.askAt, now+int64(m.set.DrainBuffer))
	}
}

// Discard gives a proposal up: it could not be stored.
func (m *Manager) Discard(p *Proposal) {
	if p == nil || p != m.pending {
		panic("scaling: a proposal is discarded that is not the one under way")
	}
	m.pending = nil
}

func equalBits(a, b *bitset) bool {
	n := a.end()
	if n != b.end() {
		return false
	}
	for w := 0; w < int(n+63)/64; w++ {
		if a.words[w] != b.words[w] {
			return false
		}
	}
	return true
}
