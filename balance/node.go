package balance

import (
	"sync"
	"sync/atomic"
	"time"
)

// A node's word holds all that a draw needs to know, so that two nodes are
// compared with one load each:
//
//	bits 62–63  how bad its status is: 0 open, 1 busy, 2 closed
//	bits 8–39   outstanding requests
//	bits 0–7    flags, which are not compared
//
// So word >> loadShift of a better node is lower: status first, then load.
const (
	flagRemoved = 1 << 0 // no longer in the set
	flagProbe   = 1 << 1 // the next request is a probe
	loadShift   = 8
	oneRequest  = 1 << loadShift
	loadMask    = (1<<32 - 1) << loadShift
	statusShift = 62
)

func wordStatus(w uint64) Status { return Open - Status(w>>statusShift) }
func wordLoad(w uint64) int      { return int(w & loadMask >> loadShift) }
func wordOpen(w uint64) bool     { return w>>statusShift == 0 }

// Outcome is how a request ended, as far as the endpoint is concerned.
type Outcome uint8

const (
	// Success: the endpoint did its work. An application error may well be one.
	Success Outcome = iota
	// Failure: the endpoint failed or did not answer in time.
	Failure
	// Refused: the endpoint said that it did not take the request. For its health
	// that is a failure.
	Refused
	// Unreachable: no connection to the endpoint could be made.
	Unreachable
	// Ignored says nothing about the endpoint, for example a request that its
	// caller gave up.
	Ignored

	outcomes = iota
)

func (o Outcome) String() string {
	return [...]string{"success", "failure", "refused", "unreachable", "ignored"}[min(o, Ignored)]
}

// Node is an endpoint in a balancer, with its load and history. It lives from
// the Update that adds it to the one that removes it, and on until its requests
// have ended.
type Node struct {
	// Written by every request; the first 64 bytes share a cache line.
	word    atomic.Uint64
	cost    atomic.Uint64 // PeakEWMA; see load.go
	stamp   atomic.Int64  // of the last observation
	results [outcomes]atomic.Uint64

	failing   atomic.Uint64 // recent share of failures, float64 bits; see load.go
	failStamp atomic.Int64
	zero      atomic.Uint64 // picks at which both choices were idle
	lastUsed  atomic.Int64  // for expiry; 0 never, or expired since
	clean     atomic.Bool   // successes need not be judged; see health.go
	drained   atomic.Bool

	b        *Balancer
	endpoint Endpoint
	token    uint32    // its place in the random aperture
	weight   float64   // under b.mu
	order    int       // its place in the common order; under b.mu
	heap     heapPlace // under the lock of the heaps

	mu     sync.Mutex
	health health
}

// Endpoint returns what the caller gave to Update, with the weight at the
// time it was added.
func (n *Node) Endpoint() Endpoint { return n.endpoint }

// Address returns the endpoint's address.
func (n *Node) Address() string { return n.endpoint.Address }

// Value returns the endpoint's value.
func (n *Node) Value() any { return n.endpoint.Value }

// Status returns the node's status: the worst of what SetStatus said and what
// failure accrual and fail-fast found.
func (n *Node) Status() Status { return wordStatus(n.word.Load()) }

// Load returns the number of outstanding requests.
func (n *Node) Load() int { return wordLoad(n.word.Load()) }

// SetStatus says what is known about the endpoint from outside, for example from
// the state of its connection. New nodes are Open.
func (n *Node) SetStatus(s Status) {
	n.mu.Lock()
	n.health.link = min(s, Open)
	changed := n.publish()
	n.mu.Unlock()
	if changed {
		n.b.statusChanged(n)
	}
}

// publish writes the effective status and the probe flag into the word. n.mu must
// be held. It reports whether the status changed.
func (n *Node) publish() bool {
	status, probe := n.health.effective()
	set := uint64(Open-status) << statusShift
	if probe {
		set |= flagProbe
	}
	for {
		old := n.word.Load()
		w := old&^(3<<statusShift|flagProbe) | set
		if n.word.CompareAndSwap(old, w) {
			return old>>statusShift != w>>statusShift
		}
	}
}

// latest moves a stamp forward to now and returns how much time passed; 0 when
// the clock went backwards.
func latest(stamp *atomic.Int64, now time.Duration) time.Duration {
	for {
		old := stamp.Load()
		if int64(now) <= old {
			return 0
		}
		if stamp.CompareAndSwap(old, int64(now)) {
			return now - time.Duration(old)
		}
	}
}
