package matching

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

type callID [16]byte

// waitingCall is a call and who waits for it. The table's lock guards what changes.
type waitingCall struct {
	id       callID
	queue    string
	request  *v1.CallRequest
	deadline time.Time
	taken    bool // a worker has it
	settled  bool
	done     chan struct{}
	answer   *v1.CallResponse
	err      error
}

// callPoll is a poll for calls.
type callPoll struct {
	max      int
	identity string
	ended    bool // with its worker
	done     chan struct{}
	calls    []*waitingCall
	over     bool
	err      error
}

// callLine is what waits at one partition.
type callLine struct {
	calls []*waitingCall
	polls []*callPoll
	lent  bool // a poll is at the parent
}

// callTable holds the calls of all partitions of an engine.
type callTable struct {
	mu       sync.Mutex
	lines    map[PartitionID]*callLine
	taken    map[callID]takenCall
	stopping bool
}

type takenCall struct {
	call *waitingCall
	at   PartitionID
}

func (t *callTable) line(id PartitionID) *callLine {
	l := t.lines[id]
	if l == nil {
		if t.lines == nil {
			t.lines, t.taken = map[PartitionID]*callLine{}, map[callID]takenCall{}
		}
		l = &callLine{}
		t.lines[id] = l
	}
	return l
}

func (t *callTable) tidy(id PartitionID, l *callLine) {
	if len(l.calls)+len(l.polls) == 0 && !l.lent {
		delete(t.lines, id)
	}
}

// match gives waiting calls to waiting polls.
func (t *callTable) match(id PartitionID, l *callLine) {
	for len(l.calls) > 0 && len(l.polls) > 0 {
		p := l.polls[0]
		n := min(p.max, len(l.calls))
		for _, c := range l.calls[:n] {
			c.taken = true
			t.taken[c.id] = takenCall{c, id}
			p.calls = append(p.calls, c)
		}
		l.calls = append(l.calls[:0:0], l.calls[n:]...)
		t.endPoll(l, p)
	}
}

func (t *callTable) endPoll(l *callLine, p *callPoll) {
	for i, q := range l.polls {
		if q == p {
			l.polls = append(l.polls[:i:i], l.polls[i+1:]...)
			break
		}
	}
	if !p.over {
		p.over = true
		close(p.done)
	}
}

// settle ends a call, once.
func (t *callTable) settle(c *waitingCall, answer *v1.CallResponse, err error) {
	if c.settled {
		return
	}
	c.settled, c.answer, c.err = true, answer, err
	delete(t.taken, c.id)
	close(c.done)
}

// put queues a call or hands it over; false when it should go to the parent instead.
func (t *callTable) put(id PartitionID, c *waitingCall, mayWait bool) (ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return false, errStopping
	}
	l := t.line(id)
	defer t.tidy(id, l)
	switch {
	case len(l.polls) == 0 && !mayWait:
		return false, nil
	case len(l.calls) >= maxWaitingCalls:
		return false, reason.New(codes.ResourceExhausted, reason.Overloaded, map[string]string{"queue": id.Queue},
			"%d calls wait for a worker of queue %q, which is the limit: start more workers or call less", maxWaitingCalls, id.Queue)
	}
	l.calls = append(l.calls, c)
	t.match(id, l)
	return true, nil
}

// giveUp ends a call whose time is over or whose caller left.
func (t *callTable) giveUp(id PartitionID, c *waitingCall, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[id]; l != nil {
		for i, q := range l.calls {
			if q == c {
				l.calls = append(l.calls[:i:i], l.calls[i+1:]...)
				break
			}
		}
		t.tidy(id, l)
	}
	t.settle(c, nil, err)
}

// errCallAgain sends a call on its way again.
var errCallAgain = errors.New("matching: call was not begun")

// putBack makes calls wait again that were taken and not begun: here at a root, else
// on their way up again.
func (t *callTable) putBack(id PartitionID, calls []*waitingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.line(id)
	_, up := id.parent()
	var again []*waitingCall
	for _, c := range calls {
		switch {
		case c.settled:
		case up:
			t.settle(c, nil, errCallAgain)
		default:
			c.taken = false
			delete(t.taken, c.id)
			again = append(again, c)
		}
	}
	l.calls = append(again, l.calls...)
	t.match(id, l)
	t.tidy(id, l)
}

// stop ends all that waits.
func (t *callTable) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
	for id := range t.lines {
		t.drop(id, errStopping)
	}
	for _, c := range t.taken {
		t.settle(c.call, nil, errStopping)
	}
}

// dropForeign ends what waits at partitions that belong to other nodes: it goes there.
func (t *callTable) dropForeign(owns func(PartitionID) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.lines {
		if !owns(id) {
			t.drop(id, errNotOwned)
		}
	}
}

func (t *callTable) drop(id PartitionID, err error) {
	l := t.lines[id]
	for _, c := range l.calls {
		t.settle(c, nil, err)
	}
	l.calls = nil
	for len(l.polls) > 0 {
		l.polls[0].err = err
		t.endPoll(l, l.polls[0])
	}
	t.tidy(id, l)
}

// poll queues a poll for calls, or says that it should be lent to the parent.
func (t *callTable) poll(id PartitionID, identity string, most int, mayWait bool, limit int) (p *callPoll, lend bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return nil, false, errStopping
	}
	l := t.line(id)
	defer t.tidy(id, l)
	if len(l.polls) >= limit {
		return nil, false, errTooManyPolls(id, limit)
	}
	if _, up := id.parent(); up && !l.lent && len(l.calls) == 0 {
		l.lent = true
		return nil, true, nil
	}
	p = &callPoll{max: most, identity: identity, done: make(chan struct{})}
	l.polls = append(l.polls, p)
	t.match(id, l)
	if !mayWait {
		t.endPoll(l, p)
	}
	return p, false, nil
}

// lentBack notes that a partition has no poll at its parent any more; the next one that
// waits goes there.
func (t *callTable) lentBack(id PartitionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.line(id)
	l.lent = false
	if len(l.polls) > 0 {
		p := l.polls[0]
		p.over = true // see wait
		l.polls = l.polls[1:]
		close(p.done)
	}
	t.tidy(id, l)
}

// wait waits for a poll's end. again says that it was taken out of the line to be lent.
func (t *callTable) wait(ctx context.Context, id PartitionID, p *callPoll, d time.Duration) (again bool, err error) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	over := false
	select {
	case <-p.done:
	case <-timer.C:
		over = true
	case <-ctx.Done():
	}
	t.mu.Lock()
	if l := t.lines[id]; l != nil {
		t.endPoll(l, p)
		t.tidy(id, l)
	}
	calls, err, ended := p.calls, p.err, p.ended
	t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		t.putBack(id, calls)
		return false, ctx.Err()
	case len(calls) > 0 || over || d <= 0 || ended:
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// endPolls ends a worker's polls at one partition and returns how many.
func (t *callTable) endPolls(id PartitionID, identity string) (n int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[id]
	if l == nil {
		return 0
	}
	for _, p := range slices.Clone(l.polls) {
		if p.identity == identity {
			p.ended = true
			t.endPoll(l, p)
			n++
		}
	}
	t.tidy(id, l)
	return n
}

// tooLate is why a call ends whose time is over.
func (t *callTable) tooLate(c *waitingCall) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.taken {
		return reason.New(codes.DeadlineExceeded, reason.NoPoller, map[string]string{"queue": c.queue},
			"no worker of queue %q took the call in time: start one that serves calls, or one more", c.queue)
	}
	return reason.New(codes.DeadlineExceeded, reason.CallTimedOut, map[string]string{"queue": c.queue},
		"a worker of queue %q took the call and has not answered in time", c.queue)
}

func (t *callTable) answer(id PartitionID, call callID, a *v1.AnswerCallsRequest_Answer, identity string) bool {
	t.mu.Lock()
	c, ok := t.taken[call]
	if !ok || c.at != id {
		t.mu.Unlock()
		return false
	}
	if a.GetDeclined() {
		t.mu.Unlock()
		t.putBack(id, []*waitingCall{c.call})
		return true
	}
	answer := &v1.CallResponse{Identity: identity, Error: a.GetError()}
	if answer.Error == "" {
		answer.Payload = a.GetPayload()
	}
	t.settle(c.call, answer, nil)
	t.mu.Unlock()
	return true
}
