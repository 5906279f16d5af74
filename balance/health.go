package balance

import (
	"sync/atomic"
	"time"
)

// What failure accrual and fail-fast think of a node:
//
//	alive ──convicted──▶ dead ──sentence over──▶ probeOpen ──a request──▶ probing
//	  ▲                    ▲                        ▲                       │
//	  │                    └──── failed, convicted ─┼── failed, acquitted ──┤
//	  └──────────────────────── succeeded ──────────┴─────── ignored ───────┘
//
// Dead and probing show as Busy. With Connections, a node that was unreachable
// is probed by a connection attempt instead of a request.
type life uint8

const (
	alive life = iota
	dead
	probeOpen
	probing
)

// health is the slow part of a node, under its mutex.
type health struct {
	link        Status // what SetStatus said
	life        life
	until       time.Duration // when dead: the end of the sentence
	unreachable bool          // when not alive: because no connection could be made
	attempts    int           // failed connections in a row
	policy      FailurePolicy // nil: no failure accrual

	// Since when, and after how many successes, the node has been clean: nothing
	// that a success would change. Then Done does not come here with successes.
	cleanSince time.Duration
	cleanFrom  uint64
}

func (h *health) effective() (s Status, probe bool) {
	s = h.link
	if h.life == dead || h.life == probing {
		s = min(s, Busy)
	}
	return s, h.life == probeOpen
}

// healthCounters are a balancer's counters of events.
type healthCounters struct {
	removals, revivals, probes      atomic.Uint64
	removedFor                      atomic.Int64
	markedDead, markedAvailable     atomic.Uint64
	panicked, rebuilds, busyClasses atomic.Uint64
	widened, narrowed, expired      atomic.Uint64
}

// begin is called with a request that found flagProbe: it becomes the probe,
// unless another was quicker.
func (n *Node) begin() {
	n.mu.Lock()
	changed := false
	if n.health.life == probeOpen {
		n.health.life = probing
		n.b.count.probes.Add(1)
		changed = n.publish()
	}
	n.mu.Unlock()
	if changed {
		n.b.statusChanged(n)
	}
}

// judge takes the outcome of a request into the node's health.
func (n *Node) judge(o Outcome, now time.Duration) {
	n.mu.Lock()
	h := &n.health
	wake := time.Duration(-1)
	if n.clean.Load() {
		if f, ok := h.policy.(Forgiving); ok {
			successes := n.results[Success].Load() - h.cleanFrom
			if o == Success && successes > 0 {
				successes--
			}
			f.CatchUp(successes, h.cleanSince, now)
		}
		n.clean.Store(false)
	}
	switch o {
	case Success:
		n.succeeded(now)
	case Ignored:
		if h.life == probing {
			h.life = probeOpen
		}
	default:
		wake = n.failed(o == Unreachable, now)
	}
	n.tidy(now)
	changed := n.publish()
	n.mu.Unlock()
	if wake >= 0 {
		n.b.wakeAt(wake)
	}
	if changed {
		n.b.statusChanged(n)
	}
}

// tidy finds out whether the node is clean.
func (n *Node) tidy(now time.Duration) {
	h := &n.health
	if h.life != alive || h.attempts != 0 {
		return
	}
	if h.policy != nil {
		if f, ok := h.policy.(Forgiving); !ok || !f.Spotless() {
			return
		}
	}
	h.cleanSince, h.cleanFrom = now, n.results[Success].Load()
	n.clean.Store(true)
}

func (n *Node) succeeded(now time.Duration) {
	h := &n.health
	if h.policy != nil {
		h.policy.Success(now)
	}
	h.attempts = 0
	if h.life != probing && h.life != probeOpen {
		return
	}
	if h.unreachable {
		n.b.count.markedAvailable.Add(1)
	} else {
		n.b.count.revivals.Add(1)
	}
	h.life, h.unreachable = alive, false
	if h.policy != nil {
		h.policy.Revived(now)
	}
}

// failed returns when the node must be woken, or -1.
func (n *Node) failed(unreachable bool, now time.Duration) time.Duration {
	h, b := &n.health, n.b
	var sentence time.Duration
	fire := false
	if h.policy != nil {
		sentence, fire = h.policy.Failure(now)
	}
	noConnection := false
	if ff := b.config.FailFast; unreachable && ff != nil && b.size() > 1 {
		d := JitteredSentence(ff.Initial, ff.Max)(h.attempts, b.config.Rand())
		noConnection = !fire || d > sentence
		sentence, fire = max(sentence, d), true
		h.attempts++
	}
	switch {
	case fire && h.life == dead:
		// Requests that were under way when it was convicted do not lengthen it.
		return -1
	case fire:
		if h.life == alive {
			if noConnection {
				b.count.markedDead.Add(1)
			} else {
				b.count.removals.Add(1)
			}
			h.unreachable = noConnection
		}
		h.life, h.until = dead, now+max(sentence, 0)
		b.count.removedFor.Add(int64(max(sentence, 0)))
		return h.until
	case h.life == probing:
		h.life = probeOpen
	}
	return -1
}

// wake ends a sentence that is over at now. It returns when the node's sentence
// ends, -1 if it has none, and whether a connection should be tried.
func (n *Node) wake(now time.Duration) (until time.Duration, connect bool) {
	n.mu.Lock()
	h := &n.health
	if h.life != dead {
		n.mu.Unlock()
		return -1, false
	}
	if until = h.until; now < until {
		n.mu.Unlock()
		return until, false
	}
	h.life = probeOpen
	if h.unreachable && n.b.config.Connections != nil {
		h.life = probing
		connect = true
		n.b.count.probes.Add(1)
	}
	changed := n.publish()
	n.mu.Unlock()
	if changed {
		n.b.statusChanged(n)
	}
	return -1, connect
}
