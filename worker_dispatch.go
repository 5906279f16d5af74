package switchyard

import (
	"math"
	"sync"
	"time"
)

// dispatch is the worker's store of fetched tasks, between the polls that fill
// it and the handlers that empty it. It decides how many tasks to fetch.
type dispatch struct {
	concurrency, maxPolls int
	// maxPrefetch bounds the tasks that wait here; fixed: always so many.
	maxPrefetch int
	fixed       bool

	mu sync.Mutex
	// work wakes handlers, room wakes pollers.
	work, room sync.Cond
	batches    []jobBatch // the oldest first
	waiting    int        // tasks in batches
	running    int
	// idle handlers wait for work; waking: one of them was signalled and has not
	// arrived. It will wake the next one if there is more to do, so that a batch
	// wakes as many handlers as it keeps busy and not all of them.
	idle   int
	waking bool
	// asked is the number of tasks that outstanding polls may bring.
	asked, polls int
	idlePollers  int
	stopping     bool

	// Pace: how fast tasks are worked off, to see how many to fetch ahead.
	finished   int64
	prefetch   int
	rate       float64 // tasks per second
	roundTrip  float64 // seconds
	paceAt     time.Time
	paceCount  int64
	roundTrips int
}

type jobBatch struct {
	jobs     []Job // those that have not started
	received time.Time
}

const (
	// The most tasks that one poll asks for; servers allow 1000 by default.
	maxPollTasks = 1000
	// firstRoundTrip is what a round trip is taken to last until one was
	// measured, in seconds.
	firstRoundTrip = 0.002
)

func (d *dispatch) init(o WorkerOptions) {
	d.concurrency, d.maxPolls = o.Concurrency, o.Polls
	switch {
	case o.Prefetch > 0:
		d.maxPrefetch, d.prefetch, d.fixed = o.Prefetch, o.Prefetch, true
	case o.Prefetch == 0:
		d.maxPrefetch = min(32*o.Concurrency, maxPollTasks)
	}
	d.work.L, d.room.L = &d.mu, &d.mu
	d.roundTrip = firstRoundTrip
}

// next returns the next task to run, and nil when the worker stops. It waits.
// finished says that the caller ran the one before. Tasks whose lease is nearly
// over are given to late instead.
func (d *dispatch) next(finished bool, late func(*Job)) *Job {
	for {
		job, tooLate := d.await(finished)
		for _, job := range tooLate {
			late(job)
		}
		if job != nil || len(tooLate) == 0 {
			return job
		}
		finished = false
	}
}

// await waits for a task, or for some that are late.
func (d *dispatch) await(finished bool) (job *Job, late []*Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if finished {
		d.running--
		d.finished++
	}
	for {
		if d.stopping {
			return nil, nil
		}
		if job, late = d.take(); job != nil {
			break
		}
		if len(late) > 0 {
			return nil, late
		}
		if d.idlePollers > 0 && d.ask() > 0 {
			d.room.Signal()
		}
		d.idle++
		d.work.Wait()
		d.idle--
		d.waking = false
	}
	d.running++
	d.wakeHandler()
	if d.idlePollers > 0 && d.ask() > 0 {
		d.room.Signal()
	}
	return job, late
}

func (d *dispatch) wakeHandler() {
	if d.waiting > 0 && d.idle > 0 && !d.waking {
		d.waking = true
		d.work.Signal()
	}
}

func (d *dispatch) take() (job *Job, late []*Job) {
	if d.waiting == 0 {
		return nil, nil
	}
	now := time.Now()
	for len(d.batches) > 0 {
		batch := &d.batches[0]
		job := &batch.jobs[0]
		batch.jobs = batch.jobs[1:]
		if len(batch.jobs) == 0 {
			d.dropBatch()
		}
		d.waiting--
		if job.deadline.Sub(now) >= minimumLeft(job.lease) {
			return job, late
		}
		late = append(late, job)
	}
	return nil, late
}

// minimumLeft is how much of its lease a task needs to start: enough for the
// first extension to arrive in time.
func minimumLeft(lease time.Duration) time.Duration { return lease / 5 }

// longestWait is how long a task may wait here before it is handed back.
func longestWait(lease time.Duration) time.Duration { return lease / 3 }

func (d *dispatch) dropBatch() {
	n := copy(d.batches, d.batches[1:])
	d.batches[n] = jobBatch{}
	d.batches = d.batches[:n]
}

// reserve waits until tasks should be fetched and returns how many; 0 when the
// worker stops. Each reservation ends with deliver.
func (d *dispatch) reserve() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.stopping {
			return 0
		}
		d.setPace(time.Now())
		if n := d.ask(); n > 0 {
			d.asked += n
			d.polls++
			return n
		}
		d.idlePollers++
		d.room.Wait()
		d.idlePollers--
	}
}

// ask decides how many tasks the next poll fetches, 0 for not now.
func (d *dispatch) ask() int {
	if d.polls >= d.maxPolls {
		return 0
	}
	free := d.concurrency - d.running - d.waiting - d.asked
	room := free + d.prefetch
	if room <= 0 {
		return 0
	}
	// With no handler to wait for it, fetch when half of the store is empty: few
	// polls with many tasks.
	if free <= 0 && room < (d.prefetch+1)/2 {
		return 0
	}
	// The first poll leaves some for the second, so that one waits at the server
	// while the other's answer is on its way.
	if d.polls == 0 && d.maxPolls > 1 {
		room = (room + 1) / 2
	}
	return min(room, maxPollTasks)
}

// deliver ends a reservation and hands over what the poll brought. It returns
// false, and takes nothing, when the worker stops.
func (d *dispatch) deliver(reserved int, jobs []Job, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked -= reserved
	d.polls--
	if d.stopping {
		return false
	}
	d.setPace(now)
	if len(jobs) > 0 {
		d.batches = append(d.batches, jobBatch{jobs, now})
		d.waiting += len(jobs)
		d.wakeHandler()
	}
	if d.idlePollers > 0 && d.ask() > 0 {
		d.room.Signal() // less came than was asked for
	}
	return true
}

// setPace looks at how fast tasks were worked off lately and sets how many may
// wait: twice what is worked off in a round trip, so that the next answer
// arrives while half of them are left. Slow handlers come out at none.
//
// It measures over some rounds of all handlers, since they often end together,
// or half a second.
func (d *dispatch) setPace(now time.Time) {
	if d.fixed || d.maxPrefetch == 0 {
		return
	}
	passed, count := now.Sub(d.paceAt), d.finished-d.paceCount
	enough := count >= int64(4*d.concurrency) && passed >= time.Millisecond
	if !enough && passed < paceTime {
		return
	}
	if !d.paceAt.IsZero() {
		rate := float64(count) / passed.Seconds()
		if rate > d.rate {
			d.rate = rate // up at once, down with time
		} else {
			d.rate += (rate - d.rate) * -math.Expm1(-passed.Seconds()/paceTime.Seconds())
		}
		d.prefetch = min(int(2*d.rate*d.roundTrip+0.5), d.maxPrefetch)
	}
	d.paceAt, d.paceCount = now, d.finished
}

// paceTime is how long it takes until the pace is known to be lower.
const paceTime = 500 * time.Millisecond

// observe is told how long a request took that waited for nothing.
func (d *dispatch) observe(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roundTrips++
	weight := max(0.1, 1/float64(d.roundTrips))
	d.roundTrip += (took.Seconds() - d.roundTrip) * weight
}

// overdue takes out tasks that have waited so long that another worker should
// have them.
func (d *dispatch) overdue(now time.Time) []*Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*Job
	for len(d.batches) > 0 {
		batch := &d.batches[0]
		if now.Sub(batch.received) < longestWait(batch.jobs[0].lease) {
			break
		}
		out = append(out, &batch.jobs[0])
		batch.jobs = batch.jobs[1:]
		d.waiting--
		if len(batch.jobs) == 0 {
			d.dropBatch()
		}
	}
	if len(out) > 0 {
		d.room.Broadcast() // pollers look again
	}
	return out
}

// stop ends all waits.
func (d *dispatch) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopping = true
	d.work.Broadcast()
	d.room.Broadcast()
}

// drain takes out all tasks that did not start.
func (d *dispatch) drain() []*Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*Job
	for _, batch := range d.batches {
		for i := range batch.jobs {
			out = append(out, &batch.jobs[i])
		}
	}
	d.batches, d.waiting = nil, 0
	return out
}

type dispatchNumbers struct{ running, waiting, polls int }

func (d *dispatch) numbers() dispatchNumbers {
	d.mu.Lock()
	defer d.mu.Unlock()
	return dispatchNumbers{d.running, d.waiting, d.polls}
}
