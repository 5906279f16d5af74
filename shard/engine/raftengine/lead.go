package raftengine

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// mastership is one time of being the master, from the moment on at which everything from
// before was applied.
type mastership struct {
	term uint64
	lost chan struct{} // closed when it ends
}

// leading is what the engine knows of who leads. All but the atomics and the watchers
// belongs to followLeadership.
type leading struct {
	master atomic.Pointer[mastership]
	won    chan bool // from Raft: mastership won, lost
	ready  chan ready
	wake   chan struct{}
	// elected is closed when this member is the master for the first time.
	elected chan struct{}
	// walk is held while proposals are answered that were with Raft when it lost mastership.
	walk chan struct{}

	// hangs is set while the disk does not answer; see checkDisk.
	hangs atomic.Bool

	attempt  int  // counts what came from won
	leads    bool // Raft says so
	observer *raft.Observer

	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// ready is the outcome of the first command of a mastership.
type ready struct {
	attempt int
	value   []byte
	err     error
}

// watcher is one caller of Watch.
type watcher struct {
	fn   func(engine.Leadership)
	mu   sync.Mutex // held while fn runs
	off  bool
	told *engine.Leadership
}

func (l *leading) init() {
	l.won, l.ready, l.wake = make(chan bool, 8), make(chan ready, 16), make(chan struct{}, 1)
	l.elected, l.walk = make(chan struct{}), make(chan struct{}, 1)
	l.watchers = make(map[*watcher]struct{})
}

// observe makes changes of the master wake followLeadership.
func (l *leading) observe(r *raft.Raft) {
	l.observer = raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if _, ok := o.Data.(raft.LeaderObservation); ok {
			l.poke()
		}
		return false
	})
	r.RegisterObserver(l.observer)
	l.poke()
}

func (l *leading) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Watch implements engine.Engine.
func (e *Engine) Watch(fn func(engine.Leadership)) (stop func()) {
	w := &watcher{fn: fn}
	e.lead.mu.Lock()
	e.lead.watchers[w] = struct{}{}
	e.lead.mu.Unlock()
	e.lead.poke()
	return func() {
		e.lead.mu.Lock()
		delete(e.lead.watchers, w)
		e.lead.mu.Unlock()
		w.mu.Lock()
		w.off = true
		w.mu.Unlock()
	}
}

// publish tells the watchers what they do not know yet.
func (e *Engine) publish() {
	now := e.leadership()
	e.lead.mu.Lock()
	all := make([]*watcher, 0, len(e.lead.watchers))
	for w := range e.lead.watchers {
		all = append(all, w)
	}
	e.lead.mu.Unlock()
	for _, w := range all {
		w.mu.Lock()
		if !w.off && (w.told == nil || *w.told != now) {
			w.told = &now
			w.fn(now)
		}
		w.mu.Unlock()
	}
}

func (e *Engine) leadership() engine.Leadership {
	term := e.raft.CurrentTerm()
	if m := e.lead.master.Load(); m != nil {
		return engine.Leadership{Here: true, Master: e.id(), Term: m.term}
	}
	return engine.Leadership{Master: e.knownMaster(), Term: term}
}

func (e *Engine) id() string { return e.meta.Load().MemberID }

// knownMaster returns the id of the master if it is another member and known.
func (e *Engine) knownMaster() string {
	if e.closing.Load() || e.failure() != nil {
		return ""
	}
	_, id := e.raft.LeaderWithID()
	if string(id) == e.id() {
		return "" // elected, and not ready yet
	}
	return string(id)
}

// notMaster is the answer to what only the master can do.
func (e *Engine) notMaster() error {
	err := &shard.Error{Code: shard.NonMaster, Master: e.knownMaster()}
	switch {
	case err.Master != "":
	case !e.bootstrapped():
		err.Reason = "this member is not part of a group yet"
	case e.lead.hangs.Load():
		err.Reason = "its disk hangs"
	case e.raft.State() == raft.Leader:
		err.Reason = "it was elected and is catching up"
	default:
		err.Reason = "none is known at the moment"
	}
	return err
}

// bootstrapped tells whether this member knows of a group.
func (e *Engine) bootstrapped() bool {
	return len(e.raft.GetConfiguration().Configuration().Servers) > 0
}

// tickEvery is how often a member looks whether it has caught up and whether its disk answers,
// and watchEvery how often a master looks for members that are silent.
const (
	tickEvery  = 100 * time.Millisecond
	watchEvery = 2 * time.Second
)

// followLeadership follows what Raft says about mastership. A group of one without a
// transport loses it only when the log cannot be written, which ends the engine.
func (e *Engine) followLeadership() {
	defer e.background.Done()
	defer func() {
		e.endMastership()
		e.publish()
	}()
	often := time.NewTicker(tickEvery)
	defer often.Stop()
	look := time.NewTicker(watchEvery)
	defer look.Stop()
	down := e.down
	silent := make(map[string]bool)
	for {
		select {
		case <-e.stop:
			return
		case <-down:
			down = nil
			e.endMastership()
		case won := <-e.lead.won:
			e.lead.attempt++
			e.lead.leads = won
			switch {
			case e.closing.Load() || e.failure() != nil:
				e.endMastership()
			case won:
				e.prepare()
			default:
				e.stepDown()
			}
		case r := <-e.lead.ready:
			if r.attempt == e.lead.attempt && e.lead.leads && r.err == nil && e.failure() == nil && !e.lead.hangs.Load() {
				e.takeOver(r.value)
			}
		case <-e.lead.wake:
			e.checkVoice()
		case <-often.C:
			e.checkVoice()
			e.checkDisk()
			continue
		case <-look.C:
			e.lookForSilent(silent)
			continue
		}
		e.publish()
	}
}

// prepare proposes the first command after an election. When it is done, everything from
// before is applied.
func (e *Engine) prepare() {
	e.metrics.elected.Add(1)
	attempt := e.lead.attempt
	err := e.queue.add(&engine.Command{Function: readyFunction}, &e.clock, true, func(value []byte, err error) {
		select {
		case e.lead.ready <- ready{attempt, value, err}:
		case <-e.stop:
		}
	})
	if err != nil {
		e.opts.Logger.Error("a new master cannot begin", "error", err)
	}
}

// readyValue is what the first command of a mastership gives: its term, and the latest
// time of a command before it.
func readyValue(term uint64, at int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, 16), term), uint64(at))
}

func (e *Engine) takeOver(value []byte) {
	m := &mastership{term: binary.BigEndian.Uint64(value), lost: make(chan struct{})}
	e.lead.master.Store(m)
	e.queue.open(&e.clock, int64(binary.BigEndian.Uint64(value[8:])))
	if !isClosed(e.lead.elected) {
		close(e.lead.elected)
	}
	if e.opts.Transport != nil {
		e.opts.Logger.Info("this member is the master now", "term", m.term)
	}
}

// endMastership notes that this member is not the master any more.
func (e *Engine) endMastership() {
	if m := e.lead.master.Swap(nil); m != nil {
		close(m.lost)
		e.metrics.deposed.Add(1)
	}
}

// stepDown answers everything in flight when mastership was lost.
func (e *Engine) stepDown() {
	if e.opts.Transport == nil {
		e.fail(errors.New("this member stopped being the master of its group of one"))
		return
	}
	was := e.lead.master.Load()
	e.endMastership()
	if was != nil {
		e.opts.Logger.Info("this member is not the master any more", "term", was.term)
	}
	e.lead.walk <- struct{}{}
	defer func() { <-e.lead.walk }()
	if e.closing.Load() || e.failure() != nil {
		return // Raft may never answer now; see abort
	}
	for _, s := range e.queue.demote(e.notMaster) {
		switch err := s.f.Error(); {
		case err == nil:
			// Applied here after all, and answered by the fsm.
		case errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress):
			e.queue.lose(s, e.notMaster())
		default:
			e.queue.lose(s, &shard.Error{Code: shard.OutcomeUnknown, Reason: "mastership was lost while the command was on its way to the other members", Master: e.knownMaster()})
		}
	}
}

// waitWalk waits until no goroutine waits for Raft to let go of proposals: once Raft is
// told to stop, it may never do so.
func (l *leading) waitWalk(ctx context.Context) {
	select {
	case l.walk <- struct{}{}:
		<-l.walk
	case <-ctx.Done():
	}
}

// silentAfter is when a master says that it does not hear of a member.
const silentAfter = 5 * time.Second

// lookForSilent says once of each member that does not answer any more, and that it does
// again.
func (e *Engine) lookForSilent(silent map[string]bool) {
	if e.lead.master.Load() == nil {
		clear(silent)
		return
	}
	for _, m := range e.memberList() {
		if m.ID == e.id() {
			continue
		}
		gone := m.Silent > silentAfter
		if gone != silent[m.ID] {
			silent[m.ID] = gone
			if gone {
				e.opts.Logger.Warn("a member does not answer", "member", m.ID, "address", m.Address, "for", m.Silent.Round(time.Second))
			} else {
				e.opts.Logger.Info("a member answers again", "member", m.ID)
			}
		}
	}
}
