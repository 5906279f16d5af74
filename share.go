package switchyard

import (
	"runtime"
	"sync"
	"time"
)

// shareLimits bounds how items share requests.
type shareLimits struct {
	// tasks and bytes after which a request takes no further item.
	tasks, bytes int
	// requests on their way at once.
	requests int
	// gather: whose items come from callers that wait for the result and then
	// come back with the next one, so that it pays to let them come back before
	// the next request is cut.
	gather bool
}

// From this much on, a request is worth its own flight whatever else is on its
// way: encoding and decoding it costs more than a shared disk write saves.
const (
	bulkTasks = 256
	bulkBytes = 256 << 10
)

// sharer lets items of many goroutines travel in shared requests: what arrives
// while a request is on its way waits and goes with the next one. An item that
// finds nothing on its way goes at once.
//
// A second request starts while one is on its way only if it is a lone item
// that met another lone one, or carries at least twice as much, or is large.
// Otherwise waiting for the first one's end is better: a server that syncs its
// disk per group of requests answers one request of 64 tasks in one sync, and
// two of 32 in two.
//
// Each request in the air is a flight. A flight is a goroutine of its own, or
// the submitting one (see submit), and carries request after request while
// items wait.
type sharer[T any] struct {
	limits shareLimits
	// send carries a batch and hands out the results. It returns when the answer
	// is there.
	send func(batch []T)
	// running counts the goroutines.
	running *group

	mu      sync.Mutex
	waiting []shared[T]
	// tasks and bytes of the waiting items.
	tasks, bytes int
	// flights in the air, and how many of them are not loaded at the moment
	// because they are about to cut a batch: new items leave themselves to those.
	flights, boarding int
	// flyingTasks counts what is on its way.
	flyingTasks int
	spare       []T // an empty batch to use again
}

type shared[T any] struct {
	item         T
	tasks, bytes int
}

// submit takes an item to be sent. With inline, it may return true instead: then
// nothing is on the way, and the caller must send the item itself, without a
// hand-over to another goroutine, and call landed afterwards.
func (s *sharer[T]) submit(item T, tasks, bytes int, inline bool) (carry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inline && len(s.waiting) == 0 && s.boarding == 0 && s.mayFly(tasks, bytes) {
		s.flights++
		s.flyingTasks += tasks
		return true
	}
	s.waiting = append(s.waiting, shared[T]{item, tasks, bytes})
	s.tasks += tasks
	s.bytes += bytes
	if s.boarding == 0 && s.mayFly(s.tasks, s.bytes) {
		s.takeOff()
	}
	return false
}

// landed ends a flight that submit left to its caller.
func (s *sharer[T]) landed(tasks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flights--
	s.flyingTasks -= tasks
	if len(s.waiting) > 0 && s.boarding == 0 && s.mayFly(s.tasks, s.bytes) {
		s.takeOff()
	}
}

// withdraw takes back the item for which is returns true. It returns false when
// it is on its way already.
func (s *sharer[T]) withdraw(is func(T) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.waiting {
		if is(s.waiting[i].item) {
			s.tasks -= s.waiting[i].tasks
			s.bytes -= s.waiting[i].bytes
			n := copy(s.waiting[i:], s.waiting[i+1:])
			s.waiting[i+n] = shared[T]{}
			s.waiting = s.waiting[:i+n]
			return true
		}
	}
	return false
}

// idle says whether nothing waits and nothing is on its way.
func (s *sharer[T]) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flights == 0 && len(s.waiting) == 0
}

// mayFly says whether a request with that much may start now.
func (s *sharer[T]) mayFly(tasks, bytes int) bool {
	switch {
	case s.flights == 0:
		return true
	case s.flights >= s.limits.requests:
		return false
	}
	return s.flyingTasks <= 1 || tasks >= 2*s.flyingTasks ||
		tasks >= min(bulkTasks, s.limits.tasks) || bytes >= min(bulkBytes, s.limits.bytes)
}

// takeOff starts a flight of its own goroutine. Called with mu held.
func (s *sharer[T]) takeOff() {
	s.flights++
	s.boarding++
	s.running.Add(1)
	go s.fly()
}

// fly carries batches until nothing may be sent.
func (s *sharer[T]) fly() {
	defer s.running.Done()
	s.mu.Lock()
	for {
		batch, tasks := s.board()
		if len(batch) == 0 {
			s.flights--
			s.boarding--
			s.mu.Unlock()
			return
		}
		s.boarding--
		s.flyingTasks += tasks
		// What did not fit may be worth another flight.
		if len(s.waiting) > 0 && s.boarding == 0 && s.mayFly(s.tasks, s.bytes) {
			s.takeOff()
		}
		s.mu.Unlock()

		start := time.Now()
		s.send(batch)
		took := time.Since(start)

		s.mu.Lock()
		s.flyingTasks -= tasks
		s.boarding++
		if s.limits.gather && len(batch) > 1 {
			s.await(len(s.waiting)+len(batch), took)
		}
		clear(batch)
		s.spare = batch[:0]
	}
}

// board takes the items of the next request. Called with mu held.
func (s *sharer[T]) board() (batch []T, tasks int) {
	s.flights-- // itself
	may := len(s.waiting) > 0 && s.mayFly(s.tasks, s.bytes)
	s.flights++
	if !may {
		return nil, 0
	}
	batch, s.spare = s.spare, nil
	bytes, n := 0, 0
	for n < len(s.waiting) {
		next := &s.waiting[n]
		if n > 0 && (tasks+next.tasks > s.limits.tasks || bytes+next.bytes > s.limits.bytes) {
			break
		}
		batch = append(batch, next.item)
		tasks += next.tasks
		bytes += next.bytes
		n++
	}
	s.tasks -= tasks
	s.bytes -= bytes
	left := copy(s.waiting, s.waiting[n:])
	clear(s.waiting[left:])
	s.waiting = s.waiting[:left]
	return batch, tasks
}

// await lets the goroutines that were woken by results come back with their next
// items, until the given number waits. Without it most of them would just miss
// the next request, and two groups of callers would take turns with the half of
// the throughput. It does not sleep, it only steps back for goroutines that are
// ready to run. It gives up when nobody came for a moment, and after a quarter of
// what the last request took in any case: then waiting costs more than it can
// bring. Called with mu held.
func (s *sharer[T]) await(want int, took time.Duration) {
	limit := min(took/4, 500*time.Microsecond)
	patience := min(max(took/16, 20*time.Microsecond), limit)
	start := time.Now()
	last, seen := start, len(s.waiting)
	for len(s.waiting) < want {
		s.mu.Unlock()
		runtime.Gosched()
		now := time.Now()
		s.mu.Lock()
		if len(s.waiting) > seen {
			last, seen = now, len(s.waiting)
		}
		if now.Sub(last) > patience || now.Sub(start) > limit {
			return
		}
	}
}

// group counts goroutines. Unlike a sync.WaitGroup it may grow from zero while
// somebody waits.
type group struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // made by wait, closed at zero
}

func (g *group) Add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n += n
	if g.n == 0 && g.none != nil {
		close(g.none)
		g.none = nil
	}
}

func (g *group) Done() { g.Add(-1) }

// Wait returns when no goroutine is left.
func (g *group) Wait() {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.none == nil {
		g.none = make(chan struct{})
	}
	none := g.none
	g.mu.Unlock()
	<-none
}
