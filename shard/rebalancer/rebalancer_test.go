package rebalancer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/switchyard-dev/switchyard/shard"
)

// fakeStore is a cluster in memory whose moves take time and obey nobody but the test.
type fakeStore struct {
	mu       sync.Mutex
	master   bool
	known    []string
	sets     map[string]*Set
	buckets  map[string][]Bucket // movable
	changed  chan struct{}
	moveTime time.Duration
	fail     func(source, destination string, n int) error // called with mu held
	looks    int
	sends    int
	sending  map[string]int
	most     int // sent by one set at once
	served   uint64
}

// cluster makes a store with the sets, whose ACTIVE buckets get ids.
func cluster(sets ...Set) *fakeStore {
	f := &fakeStore{master: true, sets: map[string]*Set{}, buckets: map[string][]Bucket{}, changed: make(chan struct{}),
		moveTime: 10 * time.Millisecond, sending: map[string]int{}}
	id := shard.BucketID(0)
	for _, s := range sets {
		f.known = append(f.known, s.Name)
		f.sets[s.Name] = &s
		for range s.Counts[shard.Active] {
			id++
			f.buckets[s.Name] = append(f.buckets[s.Name], Bucket{ID: id, Bytes: -1})
		}
	}
	return f
}

func (f *fakeStore) Master() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.master
}

func (f *fakeStore) Known() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.known)
}

func (f *fakeStore) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// change does something and tells that something has changed.
func (f *fakeStore) change(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeStore) Sets(context.Context) ([]Set, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	var sets []Set
	for _, s := range f.sets {
		c := *s
		if c.Err != nil {
			c = Set{Name: s.Name, Err: s.Err}
		}
		sets = append(sets, c)
	}
	slices.SortFunc(sets, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	return sets, nil
}

func (f *fakeStore) Movable(_ context.Context, name string) ([]Bucket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.buckets[name]), nil
}

func (f *fakeStore) Send(ctx context.Context, source, destination string, ids []shard.BucketID) (Sent, error) {
	f.mu.Lock()
	f.sends++
	f.sending[source] += len(ids)
	f.most = max(f.most, f.sending[source])
	fail, wait := f.fail, f.moveTime
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.sending[source] -= len(ids)
		f.mu.Unlock()
	}()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return Sent{}, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if fail != nil {
		if err := fail(source, destination, len(ids)); err != nil {
			return Sent{}, err
		}
	}
	for _, id := range ids {
		i := slices.IndexFunc(f.buckets[source], func(b Bucket) bool { return b.ID == id })
		if i < 0 {
			return Sent{}, &shard.Error{Code: shard.WrongBucket, Bucket: id}
		}
		f.buckets[destination] = append(f.buckets[destination], f.buckets[source][i])
		f.buckets[source] = slices.Delete(f.buckets[source], i, i+1)
		f.sets[source].Counts[shard.Active]--
		f.sets[destination].Counts[shard.Active]++
	}
	return Sent{Moved: len(ids), Served: f.served}, nil
}

// numbers returns how often the store was asked, and how many sends and buckets of one set at once
// there were.
func (f *fakeStore) numbers() (looks, sends, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks, f.sends, f.most
}

func (f *fakeStore) owned() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(slices.Values(f.known)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, f.sets[name].Owned()))
	}
	return strings.Join(parts, ", ")
}

// running starts a rebalancer on f for the test's time.
type running struct {
	*Rebalancer
	log  *lockedBuffer
	stop func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func run(t *testing.T, f *fakeStore, o Options) running {
	t.Helper()
	count := 0
	for _, s := range f.sets {
		count += s.Owned()
	}
	log := &lockedBuffer{}
	o.Store, o.BucketCount, o.Logger = f, func() uint32 { return uint32(count) }, slog.New(slog.NewTextHandler(log, nil))
	o.ReplicaSet = cmp.Or(o.ReplicaSet, "a")
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return running{r, log, stop}
}

func expect(t *testing.T, f *fakeStore, want string) {
	t.Helper()
	if got := f.owned(); got != want {
		t.Errorf("buckets are %s; want %s", got, want)
	}
}

func TestRebalancer_fillsANewReplicaSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 3000, 0), set("b", 1, 0, 0))
		reg := prometheus.NewRegistry()
		r := run(t, f, Options{Registerer: reg})
		time.Sleep(time.Second)
		expect(t, f, "a 1500, b 1500")
		s := r.Status()
		if !s.On || !s.Active || s.Where != "a" || s.Phase != Idle || s.Moved != 1500 || s.ToMove != 1500 || s.Failed != 0 || s.Left != 0 {
			t.Errorf("status %+v", s)
		}
		if _, sends, most := f.numbers(); sends != 30 || most != 100 {
			t.Errorf("%d lists, at most %d buckets at once", sends, most)
		}
		if log := r.log.String(); strings.Contains(log, "WARN") || strings.Contains(log, "ERROR") || strings.Count(log, "\n") != 2 {
			t.Errorf("a healthy rebalancing logs:\n%s", log)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP switchyard_rebalancer_buckets_moved_total Buckets that this node's rebalancer had moved.
# TYPE switchyard_rebalancer_buckets_moved_total counter
switchyard_rebalancer_buckets_moved_total 1500
# HELP switchyard_rebalancer_buckets_to_move Buckets that are still to be moved.
# TYPE switchyard_rebalancer_buckets_to_move gauge
switchyard_rebalancer_buckets_to_move 0
`), "switchyard_rebalancer_buckets_moved_total", "switchyard_rebalancer_buckets_to_move"); err != nil {
			t.Error(err)
		}
	})
}

func TestRebalancer_reportsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 3000, 0), set("b", 1, 0, 0))
		f.moveTime = time.Second // of 50, two at a time
		r := run(t, f, Options{})
		time.Sleep(7500 * time.Millisecond)
		if s := r.Status(); s.Phase != Moving || s.Moved != 700 || s.ToMove != 1500 || s.Left < 8*time.Second || s.Left > 9*time.Second {
			t.Errorf("half way: %+v", s)
		}
		time.Sleep(time.Minute)
		expect(t, f, "a 1500, b 1500")
	})
}

func TestRebalancer_wakesAtOnceOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 100, 0))
		r := run(t, f, Options{Idle: time.Hour})
		time.Sleep(time.Second)
		f.change(func() { f.sets["b"].Weight = 0 })
		time.Sleep(time.Second)
		expect(t, f, "a 200, b 0")
		f.change(func() { f.sets["b"].Weight = 3 })
		time.Sleep(time.Second)
		expect(t, f, "a 50, b 150")
		f.change(func() {
			f.known = append(f.known, "c")
			f.sets["c"] = &Set{Name: "c", Weight: 4}
		})
		time.Sleep(time.Second)
		expect(t, f, "a 25, b 75, c 100")
		r.stop()
		if looks, _, _ := f.numbers(); looks > 12 {
			t.Errorf("it looked %d times", looks)
		}
	})
}

func TestRebalancer_looksNowAndThenWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 100, 0))
		run(t, f, Options{})
		time.Sleep(65 * time.Second)
		if looks, _, _ := f.numbers(); looks != 7 {
			t.Errorf("%d looks in 65 s", looks)
		}
	})
}

func TestRebalancer_onlyOneWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 0, 0), set("b", 1, 100, 0))
		r := run(t, f, Options{ReplicaSet: "b"})
		time.Sleep(time.Minute)
		expect(t, f, "a 0, b 100")
		looks, _, _ := f.numbers()
		if s := r.Status(); s.Active || s.Where != "a" || looks != 0 {
			t.Errorf("status %+v, %d looks", s, looks)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 0, 0), set("b", 1, 100, 0))
		f.master = false
		r := run(t, f, Options{Idle: time.Hour})
		time.Sleep(time.Minute)
		expect(t, f, "a 0, b 100")
		if s := r.Status(); s.Active {
			t.Errorf("status %+v", s)
		}
		f.change(func() { f.master = true })
		time.Sleep(time.Second)
		expect(t, f, "a 50, b 50")
	})
}

func TestRebalancer_waitsUntilEveryReplicaSetAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 0, 0), set("c", 1, 0, 0))
		f.sets["c"].Err = errors.New("no route")
		r := run(t, f, Options{})
		time.Sleep(5 * time.Minute)
		expect(t, f, "a 100, b 0, c 0")
		if s := r.Status(); s.Phase != Waiting || !strings.Contains(s.Reason, "c does not answer: no route") {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(r.log.String(), "WARN"); n != 1 {
			t.Errorf("%d warnings in 5 minutes:\n%s", n, r.log)
		}
		f.change(func() { f.sets["c"].Err = nil })
		time.Sleep(time.Second)
		expect(t, f, "a 34, b 33, c 33")
	})
}

func TestRebalancer_waitsForASetThatWasNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 0, 0))
		f.known = append(f.known, "z")
		r := run(t, f, Options{})
		time.Sleep(time.Minute)
		_, sends, _ := f.numbers()
		if s := r.Status(); s.Phase != Waiting || !strings.Contains(s.Reason, "z was not asked") || sends != 0 {
			t.Errorf("status %+v, %d sends", s, sends)
		}
	})
}

func TestRebalancer_waitsWhenBucketsAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 0, 0))
		r := run(t, f, Options{})
		r.stop()
		f.sets["a"].Counts[shard.Active]--
		r2, err := New(Options{Store: f, ReplicaSet: "a", BucketCount: func() uint32 { return 100 }})
		if err != nil {
			t.Fatal(err)
		}
		_, before, _ := f.numbers()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r2.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, sends, _ := f.numbers(); sends != before {
			t.Errorf("%d sends", sends-before)
		}
		if s := r2.Status(); s.Phase != Waiting || !strings.Contains(s.Reason, "own 99 buckets, and there are 100") {
			t.Errorf("status %+v", s)
		}
	})
}

func TestRebalancer_waitsForMovesThatAreNotItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 100, 0), set("b", 1, 0, 0))
		f.sets["b"].Counts[shard.Receiving] = 7
		r := run(t, f, Options{})
		time.Sleep(5 * time.Second)
		expect(t, f, "a 100, b 0")
		if s := r.Status(); s.Phase != Waiting || !strings.Contains(s.Reason, "7 buckets are on their way") {
			t.Errorf("status %+v", s)
		}
		// What never ends does not hold it for ever.
		time.Sleep(patience)
		expect(t, f, "a 50, b 50")
	})
}

func TestRebalancer_offAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 1000, 0), set("b", 1, 0, 0))
		f.moveTime = time.Second
		r := run(t, f, Options{})
		time.Sleep(1500 * time.Millisecond)
		f.change(func() { f.sets["a"].Off = true })
		time.Sleep(time.Minute)
		if s := r.Status(); s.On || s.Phase != Idle || s.Reason != "it was turned off" {
			t.Errorf("status %+v", s)
		}
		expect(t, f, "a 800, b 200") // what was under way has arrived
		f.change(func() { f.sets["a"].Off = false })
		time.Sleep(time.Minute)
		expect(t, f, "a 500, b 500")
		f.change(func() { f.sets["b"].Off, f.sets["b"].Weight = true, 0 })
		time.Sleep(time.Minute)
		expect(t, f, "a 500, b 500")
		f.change(func() { f.sets["b"].Off = false })
		time.Sleep(time.Minute)
		expect(t, f, "a 1000, b 0")
	})
}

func TestRebalancer_aChangeStopsThePlanUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 1000, 0), set("b", 1, 0, 0))
		f.moveTime = time.Second
		r := run(t, f, Options{})
		time.Sleep(1500 * time.Millisecond)
		f.change(func() { f.sets["b"].Locked = true })
		time.Sleep(time.Minute)
		expect(t, f, "a 800, b 200")
		if s := r.Status(); s.Phase != Idle {
			t.Errorf("status %+v", s)
		}
	})
}

func TestRebalancer_allWeightsZeroIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 0, 100, 0), set("b", 0, 0, 0))
		r := run(t, f, Options{})
		time.Sleep(time.Minute)
		expect(t, f, "a 100, b 0")
		if s := r.Status(); s.Phase != Waiting || !strings.Contains(s.Reason, "INVALID_CFG") {
			t.Errorf("status %+v", s)
		}
	})
}

func TestRebalancer_backsOffFromADestinationThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 300, 0), set("b", 1, 0, 0), set("c", 1, 0, 0))
		f.fail = func(_, destination string, _ int) error {
			if destination == "c" {
				return &shard.Error{Code: shard.UnreachableMaster, ReplicaSet: "c"}
			}
			return nil
		}
		r := run(t, f, Options{})
		time.Sleep(2 * time.Minute)
		expect(t, f, "a 200, b 100, c 0") // the others are served nevertheless
		s := r.Status()
		if s.Phase != Waiting || !strings.Contains(s.Reason, "a to c") || !strings.Contains(s.Reason, "UNREACHABLE_MASTER") || s.Failed == 0 || s.Failed > 60 {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(r.log.String(), "WARN"); n > 3 {
			t.Errorf("%d warnings:\n%s", n, r.log)
		}
		f.mu.Lock()
		f.fail = nil
		f.mu.Unlock()
		time.Sleep(lastBackoff + time.Second)
		expect(t, f, "a 100, b 100, c 100")
	})
}

func TestRebalancer_ordinaryRefusalsAreNotAlarming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 200, 0), set("b", 1, 0, 0))
		refusals := 3
		f.fail = func(string, string, int) error {
			if refusals > 0 {
				refusals--
				return &shard.Error{Code: shard.StorageIsReferenced}
			}
			return nil
		}
		r := run(t, f, Options{})
		time.Sleep(time.Minute)
		expect(t, f, "a 100, b 100")
		if log := r.log.String(); strings.Contains(log, "WARN") {
			t.Errorf("log:\n%s", log)
		}
	})
}

func TestRebalancer_withinTheThresholdNothingMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 1509, 0), set("b", 1, 1491, 0))
		r := run(t, f, Options{})
		time.Sleep(time.Minute)
		expect(t, f, "a 1509, b 1491")
		if s := r.Status(); s.Phase != Idle || !strings.Contains(s.Reason, "0.6 %") {
			t.Errorf("status %+v", s)
		}
		r.stop()
		run(t, f, Options{Threshold: .5})
		time.Sleep(time.Minute)
		expect(t, f, "a 1500, b 1500")
	})
}

func TestRebalancer_stopsInTheMiddleOfAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 1000, 0), set("b", 1, 0, 0))
		f.moveTime = time.Hour
		r := run(t, f, Options{})
		time.Sleep(time.Second)
		start := time.Now()
		r.stop()
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestNew_refusesOptions(t *testing.T) {
	f := cluster(set("a", 1, 1, 0))
	one := func() uint32 { return 1 }
	for _, o := range []Options{
		{}, {Store: f}, {Store: f, ReplicaSet: "a"}, {Store: f, BucketCount: one},
		{Store: f, ReplicaSet: "a", BucketCount: one, Threshold: -1},
		{Store: f, ReplicaSet: "a", BucketCount: one, Idle: -1},
	} {
		if _, err := New(o); !errors.Is(err, shard.InvalidConfig) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestRebalancer_restsWhileTheSourceServesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := cluster(set("a", 1, 1000, 0), set("b", 1, 0, 0))
		f.served = 100_000
		r := run(t, f, Options{Limits: Limits{BusyShare: 0.1}})
		start := time.Now()
		for r.Status().Moved < 500 {
			time.Sleep(time.Millisecond)
			if time.Since(start) > time.Minute {
				t.Fatalf("status %+v", r.Status())
			}
		}
		// Lists of 50, two at a time: five times 10 ms, and four rests of 90 ms between them.
		if took := time.Since(start); took < 400*time.Millisecond || took > 500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		// A rest is cut short by what should be known at once.
		f.change(func() { f.sets["a"].Weight, f.moveTime = 0, 4*time.Second })
		time.Sleep(4*time.Second + 100*time.Millisecond) // in the first rest of 5 s now
		f.change(func() { f.sets["b"].Locked, f.moveTime = true, time.Second })
		time.Sleep(100 * time.Millisecond)
		if s := r.Status(); s.Phase == Moving {
			t.Errorf("status %+v", s)
		}
	})
}

func TestLimits_rest(t *testing.T) {
	l := Limits{}.withDefaults()
	for _, c := range []struct {
		took   time.Duration
		served uint64
		want   time.Duration
	}{
		{0, 1000, 0},
		{10 * time.Millisecond, 0, 0},
		{10 * time.Millisecond, 1, 0}, // one call is not traffic
		{10 * time.Millisecond, 2, 40 * time.Millisecond},
		{100 * time.Millisecond, 9, 0},
		{100 * time.Millisecond, 10, 400 * time.Millisecond},
		{time.Minute, 1e9, longestRest},
	} {
		if got := l.rest(c.took, c.served); got != c.want {
			t.Errorf("after %v with %d calls: %v, want %v", c.took, c.served, got, c.want)
		}
	}
	if got := (Limits{BusyShare: 1}).withDefaults().rest(time.Second, 1000); got != 0 {
		t.Errorf("with all of the time: %v", got)
	}
}
