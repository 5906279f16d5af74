package switchyard

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func newDispatch(o WorkerOptions) *dispatch {
	d := new(dispatch)
	d.init(o)
	return d
}

// batchOf returns n jobs with a lease of 30 s from now.
func batchOf(n int) []Job {
	jobs := make([]Job, n)
	for i := range jobs {
		jobs[i].lease = 30 * time.Second
		jobs[i].deadline = time.Now().Add(30 * time.Second)
	}
	return jobs
}

func TestDispatch_asksForAsMuchAsHandlersAreFree(t *testing.T) {
	d := newDispatch(WorkerOptions{Concurrency: 10, Polls: 2})
	if n := d.reserve(); n != 5 {
		t.Errorf("first poll asks for %d, want half", n)
	}
	if n := d.reserve(); n != 5 {
		t.Errorf("second poll asks for %d, want the rest", n)
	}
	d.deliver(5, batchOf(3), time.Now())
	if n := d.reserve(); n != 2 {
		t.Errorf("with 3 waiting and 5 asked for: asks for %d, want 2", n)
	}
}

func TestDispatch_aSingleHandlerWithoutPrefetchHasOnePoll(t *testing.T) {
	d := newDispatch(WorkerOptions{Concurrency: 1, Polls: 2, Prefetch: -1})
	if n := d.reserve(); n != 1 {
		t.Errorf("asks for %d", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.ask(); n != 0 {
		t.Errorf("a second poll would ask for %d", n)
	}
}

func TestDispatch_prefetchIsRefilledInBulk(t *testing.T) {
	d := newDispatch(WorkerOptions{Concurrency: 2, Polls: 1, Prefetch: 10})
	if n := d.reserve(); n != 12 {
		t.Fatalf("asks for %d", n)
	}
	d.deliver(12, batchOf(12), time.Now())
	late := func(*Job) { t.Error("late") }
	d.next(false, late)
	d.next(false, late)
	for i := range 4 {
		d.next(true, late)
		d.mu.Lock()
		if n := d.ask(); n != 0 {
			t.Errorf("asks for %d with %d of 10 waiting", n, 9-i)
		}
		d.mu.Unlock()
	}
	d.next(true, late)
	if n := d.reserve(); n != 5 {
		t.Errorf("asks for %d when half is used, want 5", n)
	}
}

// The store of waiting tasks follows the pace: what is done within two round
// trips.
func TestDispatch_prefetchFollowsThePace(t *testing.T) {
	for name, c := range map[string]struct {
		handler, roundTrip time.Duration
		min, max           int
	}{
		"slow handlers":     {time.Second, 2 * time.Millisecond, 0, 0},
		"medium handlers":   {10 * time.Millisecond, 5 * time.Millisecond, 5, 15},
		"no time at all":    {time.Microsecond, 2 * time.Millisecond, 100, 320},
		"a distant server":  {10 * time.Millisecond, 100 * time.Millisecond, 100, 250},
		"ever more distant": {time.Microsecond, time.Second, 200, 320},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDispatch(WorkerOptions{Concurrency: 10, Polls: 2})
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						for n := d.reserve(); n > 0; n = d.reserve() {
							time.Sleep(c.roundTrip)
							d.observe(c.roundTrip)
							d.deliver(n, batchOf(n), time.Now())
						}
					})
				}
				for range 10 {
					wg.Go(func() {
						for done := false; d.next(done, func(*Job) {}) != nil; done = true {
							time.Sleep(c.handler)
						}
					})
				}
				time.Sleep(20 * time.Second)
				d.mu.Lock()
				prefetch, waiting := d.prefetch, d.waiting
				d.mu.Unlock()
				d.stop()
				wg.Wait()
				if prefetch < c.min || prefetch > c.max {
					t.Errorf("up to %d tasks wait, want %d to %d", prefetch, c.min, c.max)
				}
				if waiting > c.max+10 {
					t.Errorf("%d tasks wait", waiting)
				}
			})
		})
	}
}

func TestDispatch_doesNotStartWhatHasNoTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatch(WorkerOptions{Concurrency: 1, Polls: 1, Prefetch: 10})
		n := d.reserve()
		jobs := batchOf(3)
		jobs[0].deadline = time.Now().Add(5 * time.Second) // of 30
		jobs[2].deadline = time.Now().Add(-time.Second)
		d.deliver(n, jobs, time.Now())
		var late []*Job
		if job := d.next(false, func(job *Job) { late = append(late, job) }); job != &jobs[1] {
			t.Error("not the one with time left")
		}
		if len(late) != 1 || late[0] != &jobs[0] {
			t.Errorf("%d late", len(late))
		}
		done := make(chan *Job)
		go func() { done <- d.next(true, func(job *Job) { late = append(late, job) }) }()
		synctest.Wait()
		if len(late) != 2 || late[1] != &jobs[2] {
			t.Errorf("%d late", len(late))
		}
		d.stop()
		if job := <-done; job != nil {
			t.Error("a task after the stop")
		}
	})
}

func TestDispatch_overdueTasksGoFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatch(WorkerOptions{Concurrency: 4, Polls: 1, Prefetch: 10})
		first, second := batchOf(2), batchOf(1)
		d.deliver(d.reserve(), first, time.Now())
		time.Sleep(6 * time.Second)
		d.deliver(d.reserve(), second, time.Now())
		time.Sleep(4 * time.Second) // a third of the first lease
		if got := d.overdue(time.Now()); len(got) != 2 || got[0] != &first[0] || got[1] != &first[1] {
			t.Errorf("%d are overdue", len(got))
		}
		if n := d.numbers(); n.waiting != 1 {
			t.Errorf("%d wait", n.waiting)
		}
		if got := d.drain(); len(got) != 1 || got[0] != &second[0] {
			t.Errorf("%d are left", len(got))
		}
	})
}

func TestDispatch_overdueTasksMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatch(WorkerOptions{Concurrency: 1, Polls: 1, Prefetch: 10})
		d.deliver(d.reserve(), batchOf(11), time.Now())
		asked := make(chan int, 1)
		go func() { asked <- d.reserve() }()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		if n := len(d.overdue(time.Now())); n != 11 {
			t.Errorf("%d are overdue", n)
		}
		synctest.Wait()
		select {
		case n := <-asked:
			if n != 11 {
				t.Errorf("asks for %d", n)
			}
		default:
			t.Error("the poller still waits")
			d.stop()
			<-asked
		}
	})
}

func TestDispatch_stopEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatch(WorkerOptions{Concurrency: 2, Polls: 2, Prefetch: -1})
		n := d.reserve() + d.reserve()
		results := make(chan int, 3)
		go func() { results <- d.reserve() }()
		for range 2 {
			go func() {
				if d.next(false, nil) == nil {
					results <- 0
				}
			}()
		}
		synctest.Wait()
		d.stop()
		for range 3 {
			if n := <-results; n != 0 {
				t.Errorf("got %d", n)
			}
		}
		if d.deliver(n, batchOf(1), time.Now()) {
			t.Error("tasks were taken after the stop")
		}
	})
}
