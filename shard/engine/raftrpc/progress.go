package raftrpc

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// progress is what the answers of other members say about them, while this member is
// the master.
type progress struct {
	mu    sync.Mutex
	stamp uint64
	of    map[raft.ServerID]*peerProgress
	// changed is closed and replaced when somebody confirmed or acknowledged something.
	changed chan struct{}
	waiting bool
}

type peerProgress struct {
	term      uint64
	match     uint64
	contact   time.Time
	confirmed uint64 // largest stamp of a request that was answered in favour of term
}

func (p *progress) init() {
	p.of = make(map[raft.ServerID]*peerProgress)
	p.changed = make(chan struct{})
}

func (p *progress) at(id raft.ServerID, term uint64) *peerProgress {
	pp := p.of[id]
	if pp == nil {
		pp = &peerProgress{}
		p.of[id] = pp
	}
	if term > pp.term {
		*pp = peerProgress{term: term, contact: pp.contact}
	}
	return pp
}

// begin returns the stamp of a request that is about to be sent.
func (p *progress) begin() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stamp++
	return p.stamp
}

// answer notes an answer to the request of that stamp: with ok, that the member still
// took this one for the master of the term when it answered, and has the log up to match.
func (p *progress) answer(id raft.ServerID, term, stamp, match uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pp := p.at(id, term)
	pp.contact = time.Now()
	if !ok || term < pp.term {
		return
	}
	pp.match = max(pp.match, match)
	pp.confirmed = max(pp.confirmed, stamp)
	if p.waiting {
		p.waiting = false
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// Stamp returns a number; every request sent later has a larger one.
func (t *Transport) Stamp() uint64 { return t.progress.begin() }

// Confirmed returns the largest stamp of a request to which the member answered that it
// takes this one for the master of that term; 0 for none.
func (t *Transport) Confirmed(id string, term uint64) uint64 {
	t.progress.mu.Lock()
	defer t.progress.mu.Unlock()
	if pp := t.progress.of[raft.ServerID(id)]; pp != nil && pp.term == term {
		return pp.confirmed
	}
	return 0
}

// Progress returns the last log entry that a member acknowledged to this one as the
// master of that term, and when it last answered; zero when it did not.
func (t *Transport) Progress(id string, term uint64) (match uint64, contact time.Time) {
	t.progress.mu.Lock()
	defer t.progress.mu.Unlock()
	pp := t.progress.of[raft.ServerID(id)]
	if pp == nil {
		return 0, time.Time{}
	}
	if pp.term == term {
		match = pp.match
	}
	return match, pp.contact
}

// Changed returns a channel that is closed when Confirmed or Progress of any member may
// have grown after the call.
func (t *Transport) Changed() <-chan struct{} {
	t.progress.mu.Lock()
	defer t.progress.mu.Unlock()
	t.progress.waiting = true
	return t.progress.changed
}
