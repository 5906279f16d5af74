package switchyard

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Add adds a task to a queue. When it returns without an error the task is
// durable. After an error the task may have been added or not, unless the error
// has a reason that says so; adding it once more with the same ID is safe for 10
// minutes.
//
// Add copies the task before it returns, whatever happens.
func (c *Client) Add(ctx context.Context, queue string, task Task) (AddResult, error) {
	id := task.ID
	if id == "" {
		id = NewID()
	}
	a, err := c.adder(queue)
	if err != nil {
		return AddResult{}, err
	}
	call := newAddCall(1)
	if call.encoded, err = appendTask(call.encoded, &task, id); err != nil {
		call.recycle()
		return AddResult{}, addError(ctx, queue, err)
	}
	for try := 1; ; try++ {
		err = a.add(ctx, call)
		if errors.Is(err, errAbandoned) { // the call still belongs to its request
			return AddResult{}, addError(ctx, queue, ctx.Err())
		}
		if err == nil {
			err = call.outcomes[0].err
		}
		if err == nil {
			already := call.outcomes[0].alreadyAdded
			call.recycle()
			return AddResult{ID: id, AlreadyAdded: already && (try == 1 || task.ID != "")}, nil
		}
		if !transient(err) || !a.pauseCall(ctx, call, try) {
			call.recycle()
			return AddResult{}, addError(ctx, queue, err)
		}
	}
}

// AddMany adds tasks to a queue. The results are in the order of the tasks. If
// some tasks were not added the error is a *BatchError and the results say which
// and why; results may also come with another error: then those with neither ID
// nor Err are of tasks of which nothing is known.
//
// Many tasks travel in several requests (see AddSharing), each added or not by
// itself; AddMany is not a transaction.
func (c *Client) AddMany(ctx context.Context, queue string, tasks []Task) ([]AddResult, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	a, err := c.adder(queue)
	if err != nil {
		return nil, err
	}
	m := manyAdds{adder: a, tasks: tasks, results: make([]AddResult, len(tasks))}
	fillIDs(tasks, m.results)
	if err := m.run(ctx); err != nil {
		return m.finish(addError(ctx, queue, err))
	}
	return m.finish(nil)
}

func addError(ctx context.Context, queue string, err error) error {
	return callError(ctx, "add to queue", quote(queue), err)
}

// fillIDs gives each result its task's id, made where it is missing. The new
// ones share one piece of memory.
func fillIDs(tasks []Task, results []AddResult) {
	missing := 0
	for i := range tasks {
		if results[i].ID = tasks[i].ID; tasks[i].ID == "" {
			missing++
		}
	}
	if missing == 0 {
		return
	}
	text := make([]byte, missing*idLength)
	now := time.Now().UnixNano()
	for i := range results {
		if results[i].ID != "" {
			continue
		}
		id := text[:idLength:idLength]
		text = text[idLength:]
		putID((*[idLength]byte)(id), nextIDTime(&lastIDTime, now), rand.Uint64())
		// Nothing writes to these bytes any more.
		results[i].ID = unsafe.String(&id[0], idLength)
	}
}

// manyAdds is one AddMany.
type manyAdds struct {
	adder   *adder
	tasks   []Task
	results []AddResult
	// known[i]: results[i] is final.
	known []bool
}

// run sends all tasks, in requests of the allowed size, a few at once.
func (m *manyAdds) run(ctx context.Context) error {
	limits := m.adder.share.limits
	m.known = make([]bool, len(m.tasks))
	// Twice what is on its way, so that the next is encoded meanwhile.
	window := make(chan struct{}, 2*limits.requests)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	ctx, cancel := m.adder.client.bounded(ctx)
	defer cancel()

	send := func(call *addCall, items []int) {
		if err := m.send(ctx, call, items); err != nil {
			mu.Lock()
			if first == nil {
				first = err
			}
			mu.Unlock()
		}
	}
	for next := 0; next < len(m.tasks); {
		mu.Lock()
		stop := first != nil
		mu.Unlock()
		if stop {
			break
		}
		var call *addCall
		var items []int
		call, items, next = m.cut(next)
		if len(items) == 0 {
			call.recycle()
			continue
		}
		if next == len(m.tasks) { // the last one needs no goroutine
			send(call, items)
			break
		}
		window <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			send(call, items)
			<-window
		}()
	}
	wg.Wait()
	return first
}

// cut encodes tasks from next on until a request is full. Tasks that cannot be
// encoded get their result at once.
func (m *manyAdds) cut(next int) (call *addCall, items []int, after int) {
	limits := m.adder.share.limits
	call = newAddCall(0)
	for ; next < len(m.tasks) && len(items) < limits.tasks && len(call.encoded) < limits.bytes; next++ {
		if m.encode(call, next) {
			items = append(items, next)
		}
	}
	return call, items, next
}

func (m *manyAdds) encode(call *addCall, i int) bool {
	encoded, err := appendTask(call.encoded, &m.tasks[i], m.results[i].ID)
	if err != nil {
		m.results[i].Err, m.known[i] = err, true
		return false
	}
	call.encoded = encoded
	call.outcomes = append(call.outcomes, addOutcome{})
	return true
}

// send sends the items of call, and again those that failed for a moment.
func (m *manyAdds) send(ctx context.Context, call *addCall, items []int) error {
	for try := 1; ; try++ {
		err := m.adder.add(ctx, call)
		if errors.Is(err, errAbandoned) {
			return ctx.Err()
		}
		if err != nil {
			if !transient(err) || !m.adder.pauseCall(ctx, call, try) {
				call.recycle()
				return err
			}
			continue
		}
		again := items[:0:0]
		for i, item := range items {
			outcome := &call.outcomes[i]
			result := &m.results[item]
			result.AlreadyAdded = outcome.alreadyAdded && (try == 1 || m.tasks[item].ID != "")
			result.Err = outcome.err
			m.known[item] = true
			if transient(outcome.err) {
				again = append(again, item)
			}
		}
		if len(again) == 0 || !m.adder.pauseCall(ctx, call, try) {
			call.recycle()
			return nil
		}
		items = again
		call.reset(0)
		for _, item := range items {
			m.encode(call, item) // it was encoded before
		}
	}
}

// finish makes what AddMany returns.
func (m *manyAdds) finish(err error) ([]AddResult, error) {
	failed := BatchError{Total: len(m.results)}
	for i := range m.results {
		if m.known != nil && !m.known[i] {
			m.results[i] = AddResult{}
			continue
		}
		if itemErr := m.results[i].Err; itemErr != nil {
			m.results[i].ID = ""
			if failed.Failed++; failed.First == nil {
				failed.First = itemErr
			}
		}
	}
	if err == nil && failed.Failed > 0 {
		err = &failed
	}
	return m.results, err
}

// addCall is what one caller adds with one request: one task or several.
type addCall struct {
	// encoded holds the tasks as fields of an AddTasksRequest.
	encoded []byte
	// deadline is when the caller stops waiting.
	deadline time.Time
	// outcomes has one place per task.
	outcomes []addOutcome
	// err is why the request failed, when done says that it is over.
	err  error
	done chan struct{}
}

var addCalls = sync.Pool{New: func() any { return &addCall{done: make(chan struct{}, 1)} }}

func newAddCall(tasks int) *addCall {
	call := addCalls.Get().(*addCall)
	call.reset(tasks)
	return call
}

func (call *addCall) reset(tasks int) {
	call.encoded = call.encoded[:0]
	call.outcomes = slices.Grow(call.outcomes[:0], tasks)[:tasks]
	clear(call.outcomes)
	call.err = nil
	call.deadline = time.Time{}
}

// recycle must not be called for a call that a request still has.
func (call *addCall) recycle() {
	const keep = 1 << 20
	if cap(call.encoded) > keep {
		return
	}
	clear(call.outcomes)
	addCalls.Put(call)
}

// errAbandoned says that the caller's context ended while its call was on its
// way: the call still belongs to the request.
var errAbandoned = errors.New("switchyard: abandoned")

// adder adds the tasks of one queue in shared requests.
type adder struct {
	client *Client
	// prefix is the encoded start of each request.
	prefix []byte
	share  sharer[*addCall]
}

// Adders without work are dropped when there are more than this.
const maxIdleAdders = 1024

func (c *Client) adder(queue string) (*adder, error) {
	c.mu.RLock()
	a, closed := c.adders[queue], c.closed
	c.mu.RUnlock()
	if closed {
		return nil, ErrClientClosed
	}
	if a != nil {
		return a, nil
	}
	if queue == "" {
		return nil, reason.New(codes.InvalidArgument, reason.InvalidQueueName, nil, "the queue name is empty")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.adders[queue]; a != nil {
		return a, nil
	}
	if len(c.adders) >= maxIdleAdders {
		for name, other := range c.adders {
			// One that is picked up at this moment by a caller works on; it just
			// shares nothing with its successor.
			if other.share.idle() {
				delete(c.adders, name)
			}
		}
	}
	a = &adder{client: c, prefix: appendQueuePrefix(nil, c.opts.namespace, queue)}
	a.share = sharer[*addCall]{
		limits: shareLimits{
			tasks:    c.opts.sharing.MaxTasks,
			bytes:    c.opts.sharing.MaxBytes,
			requests: c.opts.sharing.MaxRequests,
			gather:   true,
		},
		send:    a.send,
		running: &c.flights,
	}
	c.adders[queue] = a
	return a, nil
}

// add makes one try of a call. The error is of the whole request; the outcomes
// have those of the tasks.
func (a *adder) add(ctx context.Context, call *addCall) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if call.deadline.IsZero() {
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(a.client.opts.timeout)
		}
		call.deadline = deadline
	}
	tasks := len(call.outcomes)
	if a.share.submit(call, tasks, len(call.encoded), true) {
		defer a.share.landed(tasks)
		return a.sendOwn(ctx, call)
	}
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
	}
	if a.share.withdraw(func(other *addCall) bool { return other == call }) {
		return ctx.Err()
	}
	select {
	case <-call.done: // in the same moment
		return call.err
	default:
		return errAbandoned
	}
}

// sendOwn sends a call alone, under its caller's context.
func (a *adder) sendOwn(ctx context.Context, call *addCall) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, call.deadline)
		defer cancel()
	}
	return a.invoke(ctx, []*addCall{call})
}

// send sends the calls of several callers, and lets them go when the answer is
// there. The request goes on until the last of them stops waiting.
func (a *adder) send(calls []*addCall) {
	latest := calls[0].deadline
	for _, call := range calls[1:] {
		if call.deadline.After(latest) {
			latest = call.deadline
		}
	}
	ctx, cancel := context.WithDeadline(a.client.ctx, latest)
	err := a.invoke(ctx, calls)
	cancel()
	for _, call := range calls {
		call.err = err
		call.done <- struct{}{}
	}
}

func (a *adder) invoke(ctx context.Context, calls []*addCall) error {
	err := a.client.hot.Invoke(ctx, v1.TaskService_AddTasks_FullMethodName,
		&addRequest{a.prefix, calls}, &addResponse{calls})
	if err != nil && a.client.ctx.Err() != nil {
		return ErrClientClosed
	}
	return err
}

// pauseCall waits before the next try of a call, and readies it.
func (a *adder) pauseCall(ctx context.Context, call *addCall, try int) bool {
	delay := a.client.opts.backoff.Delay(try, rand.Float64())
	if time.Until(call.deadline) <= delay || !sleep(ctx, delay) {
		return false
	}
	clear(call.outcomes)
	call.err = nil
	return true
}
