package switchyard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// recorder is a sharer of numbers whose requests end when told.
type recorder struct {
	sharer[int]
	group   group
	mu      sync.Mutex
	batches [][]int
	end     chan struct{}
}

func newRecorder(limits shareLimits) *recorder {
	r := &recorder{end: make(chan struct{})}
	r.sharer = sharer[int]{limits: limits, running: &r.group, send: func(batch []int) {
		r.mu.Lock()
		r.batches = append(r.batches, slices.Clone(batch))
		r.mu.Unlock()
		<-r.end
	}}
	return r
}

func (r *recorder) sent() [][]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.batches)
}

func (r *recorder) stop() {
	close(r.end)
	r.group.Wait()
}

func TestSharer_aLoneItemIsCarriedByItsCaller(t *testing.T) {
	r := newRecorder(shareLimits{tasks: 10, bytes: 1000, requests: 2})
	defer r.stop()
	for range 3 {
		if !r.submit(1, 1, 10, true) {
			t.Fatal("a lone item was handed to another goroutine")
		}
		r.landed(1)
	}
	if !r.idle() || len(r.sent()) != 0 {
		t.Error("something was sent by another goroutine")
	}
}

func TestSharer_whatArrivesMeanwhileTravelsTogether(t *testing.T) {
	r := newRecorder(shareLimits{tasks: 100, bytes: 1000, requests: 1})
	defer r.stop()
	if !r.submit(0, 1, 1, true) {
		t.Fatal("not carried")
	}
	for i := 1; i <= 5; i++ {
		if r.submit(i, 1, 1, true) {
			t.Fatal("a second request beside the one allowed")
		}
	}
	r.landed(1)
	eventually(t, "one request with all five", func() bool { return len(r.sent()) == 1 })
	if got := r.sent()[0]; !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Errorf("sent %v", got)
	}
}

func TestSharer_keepsToItsLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limits shareLimits
		bytes  int
		want   []int
	}{
		"tasks":                     {shareLimits{tasks: 4, bytes: 1000, requests: 1}, 1, []int{4, 4, 2}},
		"bytes":                     {shareLimits{tasks: 100, bytes: 30, requests: 1}, 10, []int{3, 3, 3, 1}},
		"items over the limit each": {shareLimits{tasks: 100, bytes: 5, requests: 1}, 10, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(c.limits)
			if !r.submit(-1, 1, c.bytes, true) {
				t.Fatal("not carried")
			}
			for i := range 10 {
				r.submit(i, 1, c.bytes, true)
			}
			r.landed(1)
			close(r.end)
			eventually(t, "all is sent", r.idle)
			r.group.Wait()
			var sizes []int
			next := 0
			for _, batch := range r.sent() {
				sizes = append(sizes, len(batch))
				for _, i := range batch {
					if i != next {
						t.Errorf("got %d after %d", i, next-1)
					}
					next++
				}
			}
			if !slices.Equal(sizes, c.want) {
				t.Errorf("requests of %v, want %v", sizes, c.want)
			}
		})
	}
}

func TestSharer_aSecondRequestStartsOnlyIfItPays(t *testing.T) {
	const flying = 10
	for name, c := range map[string]struct {
		tasks, bytes int
		want         bool
	}{
		"fewer tasks":     {5, 100, false},
		"as many":         {10, 100, false},
		"twice as many":   {20, 100, true},
		"many bytes":      {1, bulkBytes, true},
		"one, not so big": {1, bulkBytes - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(shareLimits{tasks: 1000, bytes: 1 << 20, requests: 2})
			defer r.stop()
			if !r.submit(0, flying, 1, true) {
				t.Fatal("not carried")
			}
			if got := r.submit(1, c.tasks, c.bytes, true); got != c.want {
				t.Errorf("second request: %v, want %v", got, c.want)
			}
			if c.want && r.submit(2, 1000, 1<<20, true) {
				t.Error("a third request beside the two allowed")
			}
		})
	}
}

func TestSharer_withdrawnItemsAreNotSent(t *testing.T) {
	r := newRecorder(shareLimits{tasks: 100, bytes: 1000, requests: 1})
	defer r.stop()
	r.submit(0, 1, 1, true)
	for i := 1; i <= 3; i++ {
		r.submit(i, 1, 1, true)
	}
	two := func(i int) bool { return i == 2 }
	if !r.withdraw(two) {
		t.Fatal("a waiting item could not be withdrawn")
	}
	if r.withdraw(two) {
		t.Fatal("withdrawn twice")
	}
	r.landed(1)
	eventually(t, "the request is on its way", func() bool { return len(r.sent()) == 1 })
	if got := r.sent()[0]; !slices.Equal(got, []int{1, 3}) {
		t.Errorf("sent %v", got)
	}
	if r.withdraw(func(i int) bool { return i == 1 }) {
		t.Error("an item on its way was withdrawn")
	}
}

// A server with a slow disk answers all requests that share a sync at once.
// Callers that come right back must meet in the next request.
func TestAdd_callersOfASlowServerShareRequests(t *testing.T) {
	const callers, rounds = 64, 25
	f := startFake(t, func(f *fakeServer) { f.syncTime = 3 * time.Millisecond })
	client := dialFake(t, f)
	if _, err := client.Add(t.Context(), "q", Task{Kind: "first"}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var wg sync.WaitGroup
	var failed atomic.Int64
	for range callers {
		wg.Go(func() {
			for range rounds {
				if _, err := client.Add(context.Background(), "q", Task{Kind: "k"}); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	if failed.Load() > 0 {
		t.Fatalf("%d adds failed", failed.Load())
	}
	// All callers in one request per round would make 25 requests. Two groups
	// that take turns would make 50 and twice the time.
	requests := f.count("AddTasks") - 1
	t.Logf("%d tasks in %d requests, %v", callers*rounds, requests, took)
	if requests > rounds*8/5 {
		t.Errorf("%d requests for %d rounds of %d callers; sizes %v", requests, rounds, callers, f.batches["AddTasks"])
	}
}
