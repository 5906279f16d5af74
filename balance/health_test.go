package balance

import (
	"errors"
	"math"
	"testing"
	"time"
)

var errTest = errors.New("not used")

func TestConsecutiveFailures(t *testing.T) {
	p := ConsecutiveFailures(3, ConstantSentence(time.Second))(seeded(1))
	p.Revived(0)
	fails := func(want ...bool) {
		t.Helper()
		for i, w := range want {
			if d, fire := p.Failure(0); fire != w || fire && d != time.Second {
				t.Errorf("failure %d: %v, %v", i+1, d, fire)
			}
		}
	}
	fails(false, false, true)
	p.Revived(0)
	fails(false, false)
	p.Success(0)
	fails(false, false, true)
}

func TestSentences(t *testing.T) {
	s := ScheduledSentence(1, 2, 3, 4, 5, 6)
	for i, want := range []time.Duration{1, 2, 3, 4, 5, 6, 300 * time.Second, 300 * time.Second} {
		if got := s(i, 0); got != want {
			t.Errorf("scheduled %d: %v, want %v", i, got, want)
		}
	}
	p := ConsecutiveFailures(1, s)(seeded(1))
	for _, want := range []time.Duration{1, 2} {
		if d, _ := p.Failure(0); d != want {
			t.Errorf("%v, want %v", d, want)
		}
	}
	p.Revived(0)
	if d, _ := p.Failure(0); d != 1 {
		t.Errorf("after the revival: %v, want the first again", d)
	}
	random := seeded(2)
	for n, want := range []float64{5, 7.5, 15, 30, 60, 120, 240, 300, 300} {
		sum := 0.0
		for range 20_000 {
			d := DefaultSentence()(n, random()).Seconds()
			if d > 300 || d < 5 {
				t.Fatalf("sentence %d: %v s", n, d)
			}
			sum += d
		}
		if mean := sum / 20_000; math.Abs(mean/want-1) > 0.02 {
			t.Errorf("sentence %d: mean %.1f s, want %.1f", n, mean, want)
		}
	}
}

// failuresUntilFired feeds failures and returns which one fires.
func failuresUntilFired(p FailurePolicy, at func(i int) time.Duration) int {
	for i := range 1_000_000 {
		if _, fire := p.Failure(at(i)); fire {
			return i + 1
		}
	}
	return -1
}

func TestSuccessRate(t *testing.T) {
	at := func(int) time.Duration { return 0 }
	if got := failuresUntilFired(SuccessRate(0.5, 5, DefaultSentence())(seeded(1)), at); got != 5 {
		t.Errorf("window 5, only failures: fires on %d, want 5", got)
	}
	p := SuccessRate(0.5, 100, DefaultSentence())(seeded(1))
	for range 100 {
		p.Success(0)
	}
	if got := failuresUntilFired(p, at); got != 70 {
		t.Errorf("window 100, 100 successes: fires on failure %d, want 70", got)
	}
}

func TestSuccessRateWithin(t *testing.T) {
	second := func(from int) func(int) time.Duration {
		return func(i int) time.Duration { return time.Duration(from+i) * time.Second }
	}
	p := SuccessRateWithin(0.5, 100*time.Second, 1, DefaultSentence())(seeded(1))
	p.Revived(0)
	for i := range 100 {
		p.Success(time.Duration(i) * time.Second)
	}
	if got := failuresUntilFired(p, second(100)); got != 70 {
		t.Errorf("100 successes: fires on failure %d, want 70", got)
	}
	p = SuccessRateWithin(0.8, 30*time.Second, 5, DefaultSentence())(seeded(1))
	p.Revived(0)
	if got := failuresUntilFired(p, second(30)); got != 5 {
		t.Errorf("five requests needed: fires on failure %d, want 5", got)
	}
	p.Revived(time.Minute)
	if _, fire := p.Failure(61 * time.Second); fire {
		t.Error("fires a second after the revival")
	}
}

func TestAnyOf_theLongestSentenceCounts(t *testing.T) {
	short := ConsecutiveFailures(1, ConstantSentence(5*time.Second))
	long := ConsecutiveFailures(1, ConstantSentence(10*time.Second))
	for _, p := range []FailurePolicy{AnyOf(short, long)(seeded(1)), AnyOf(long, short)(seeded(1))} {
		if d, fire := p.Failure(0); !fire || d != 10*time.Second {
			t.Errorf("%v, %v", d, fire)
		}
	}
}

// A single endpoint's requests, evenly spaced: healthy for a minute, then failing.
func untilConvicted(t *testing.T, perSecond int, fails func(i int) bool) time.Duration {
	t.Helper()
	b, clock := newTest(t, Config{Accrual: DefaultFailureAccrual()}, 2)
	n := b.Nodes()[0]
	gap := time.Second / time.Duration(perSecond)
	send := func(o Outcome) {
		clock.Add(gap)
		n.word.Add(oneRequest)
		Pick{node: n}.Done(o)
	}
	for range 60 * perSecond {
		send(Success)
	}
	if !n.clean.Load() {
		t.Error("a healthy endpoint costs every request a lock")
	}
	start := clock.Now()
	for i := range 100_000 {
		if fails(i) {
			send(Failure)
		} else {
			send(Success)
		}
		if n.Status() == Busy {
			return clock.Now() - start
		}
	}
	return -1
}

func TestDefaultFailureAccrual(t *testing.T) {
	always := func(int) bool { return true }
	for perSecond, want := range map[int]time.Duration{1: 5 * time.Second, 10: 500 * time.Millisecond, 100: 50 * time.Millisecond} {
		if got := untilConvicted(t, perSecond, always); got != want {
			t.Errorf("all failing at %d/s: convicted after %v, want %v", perSecond, got, want)
		}
	}
	got := untilConvicted(t, 100, func(i int) bool { return i%2 == 0 })
	if math.Abs(got.Seconds()-15.3) > 0.1 {
		t.Errorf("every other one failing at 100/s: convicted after %v, want 15.3 s", got)
	}
}

// accrual makes a balancer of two, of which the first is judged after 3 failures.
func accrual(t *testing.T) (*Balancer, *fakeClock, *Node) {
	b, clock := newTest(t, Config{Accrual: ConsecutiveFailures(3, ConstantSentence(5*time.Second))}, 1)
	return b, clock, b.Nodes()[0]
}

func send(t *testing.T, b *Balancer, o Outcome) { t.Helper(); pick(t, b).Done(o) }

func TestAccrual_lifeOfAnEndpoint(t *testing.T) {
	b, clock, n := accrual(t)
	check := func(what string, s Status, removals, revivals, probes uint64) {
		t.Helper()
		if st := b.Stats(); n.Status() != s || st.Removals != removals || st.Revivals != revivals || st.Probes != probes {
			t.Errorf("%s: %v, %d removals, %d revivals, %d probes; want %v, %d, %d, %d", what, n.Status(), st.Removals, st.Revivals, st.Probes, s, removals, revivals, probes)
		}
	}
	send(t, b, Failure)
	send(t, b, Refused)
	check("two failures", Open, 0, 0, 0)
	send(t, b, Failure)
	check("three failures", Busy, 1, 0, 0)
	if got := b.Stats().RemovedFor; got != 5*time.Second {
		t.Errorf("removed for %v", got)
	}
	clock.Add(4 * time.Second)
	b.Tick()
	check("before the sentence is over", Busy, 1, 0, 0)
	clock.Add(2 * time.Second)
	b.Tick()
	check("after it", Open, 1, 0, 0)

	p := pick(t, b)
	check("during the probe", Busy, 1, 0, 1)
	p.Done(Ignored)
	check("the probe says nothing", Open, 1, 0, 1)

	send(t, b, Failure) // a probe; the policy is silent after one failure more
	check("the probe failed and the policy convicts", Busy, 1, 0, 2)
	clock.Add(6 * time.Second)
	send(t, b, Success)
	check("a good probe", Open, 1, 1, 3)
	send(t, b, Failure)
	send(t, b, Failure)
	check("two failures after the revival", Open, 1, 1, 3)
	send(t, b, Failure)
	check("the third", Busy, 2, 1, 3)
}

// silent convicts once and then never again.
type silent struct{ fired bool }

func (s *silent) Success(time.Duration) {}
func (s *silent) Revived(time.Duration) {}
func (s *silent) Failure(time.Duration) (time.Duration, bool) {
	if s.fired {
		return 0, false
	}
	s.fired = true
	return time.Second, true
}

func TestAccrual_aFailedProbeWithASilentPolicyProbesAgain(t *testing.T) {
	b, clock := newTest(t, Config{Accrual: func(Rand) FailurePolicy { return &silent{} }}, 1)
	n := b.Nodes()[0]
	send(t, b, Failure)
	if n.Status() != Busy {
		t.Fatal("not convicted")
	}
	clock.Add(2 * time.Second)
	send(t, b, Failure)
	if n.Status() != Open || b.Stats().Probes != 1 {
		t.Errorf("%v after %d probes", n.Status(), b.Stats().Probes)
	}
	send(t, b, Failure)
	if b.Stats().Probes != 2 {
		t.Errorf("%d probes, want a second", b.Stats().Probes)
	}
}

func TestAccrual_ignoredNeitherResetsNorCounts(t *testing.T) {
	b, _, n := accrual(t)
	for _, o := range []Outcome{Failure, Ignored, Ignored, Ignored, Failure, Ignored} {
		send(t, b, o)
	}
	if n.Status() != Open {
		t.Error("ignored outcomes counted")
	}
	send(t, b, Failure)
	if n.Status() != Busy {
		t.Error("ignored outcomes reset the count")
	}
}

func TestAccrual_oneProbeAtATime(t *testing.T) {
	b, clock := newTest(t, Config{Accrual: ConsecutiveFailures(1, ConstantSentence(time.Second))}, 2)
	n := b.Nodes()[0]
	n.word.Add(oneRequest)
	Pick{node: n}.Done(Failure)
	clock.Add(2 * time.Second)
	probes := 0
	for _, p := range hold(t, b, nil, 100) {
		if p.Node() == n {
			probes++
		}
	}
	if probes != 1 {
		t.Errorf("%d requests while the endpoint is being probed, want 1", probes)
	}
}

func TestFailFast_marksAndProbesByConnecting(t *testing.T) {
	var r recorder
	b, clock := newTest(t, Config{FailFast: &FailFast{}, Connections: &r}, 2)
	n := b.Nodes()[0]
	unreachable := func() { n.word.Add(oneRequest); Pick{node: n}.Done(Unreachable) }
	unreachable()
	if s := b.Stats(); n.Status() != Busy || s.MarkedUnreachable != 1 || s.Convicted != 1 {
		t.Fatalf("%v, %+v", n.Status(), s)
	}
	for _, p := range hold(t, b, nil, 50) {
		if p.Node() == n {
			t.Fatal("a marked endpoint was chosen")
		}
	}
	clock.Add(1100 * time.Millisecond)
	b.Tick()
	if len(r.connects) != 1 || r.connects[0] != n || n.Status() != Busy {
		t.Fatalf("after 1 s: %d connects, %v", len(r.connects), n.Status())
	}
	n.Connected(false)
	clock.Add(1100 * time.Millisecond)
	b.Tick()
	if len(r.connects) != 1 {
		t.Error("the second wait is not longer")
	}
	clock.Add(time.Second)
	b.Tick()
	if len(r.connects) != 2 {
		t.Fatalf("%d connects, want 2", len(r.connects))
	}
	n.Connected(true)
	if s := b.Stats(); n.Status() != Open || s.MarkedReachable != 1 || s.Convicted != 0 {
		t.Errorf("%v, %+v", n.Status(), s)
	}
}

func TestFailFast_isOffForASingleEndpoint(t *testing.T) {
	b, _ := newTest(t, Config{FailFast: &FailFast{}}, 1)
	send(t, b, Unreachable)
	if b.Status() != Open || b.Stats().MarkedUnreachable != 0 {
		t.Errorf("%v", b.Status())
	}
}

func TestFailFast_withoutConnectionsARequestProbes(t *testing.T) {
	b, clock := newTest(t, Config{FailFast: &FailFast{}}, 2)
	n := b.Nodes()[1]
	n.word.Add(oneRequest)
	Pick{node: n}.Done(Unreachable)
	clock.Add(2 * time.Second)
	got := false
	for range 50 {
		p := pick(t, b)
		got = got || p.Node() == n
		p.Done(Success)
	}
	if !got || n.Status() != Open || b.Stats().MarkedReachable != 1 {
		t.Errorf("%v, probed: %v", n.Status(), got)
	}
}

func TestTick_saysWhenItIsDue(t *testing.T) {
	b, clock, _ := accrual(t)
	if got := b.Tick(); got != time.Minute {
		t.Errorf("nothing to do: %v", got)
	}
	for range 3 {
		send(t, b, Failure)
	}
	clock.Add(time.Second)
	if got := b.Tick(); got != 4*time.Second {
		t.Errorf("sentence of 5 s, 1 s ago: %v", got)
	}
}

func TestPickAvoiding(t *testing.T) {
	for name, c := range policies() {
		b, _ := newTest(t, c, 4)
		nodes := b.Nodes()
		if name == "random_aperture" && len((*b.dist.Load()).entries()) != 4 {
			t.Fatal("the window is not the whole set")
		}
		for range 200 {
			p, err := b.PickAvoiding(nodes[:3])
			if err != nil {
				t.Fatal(err)
			}
			if p.Node() != nodes[3] {
				t.Fatalf("%s: got one to be avoided", name)
			}
		}
		if _, err := b.PickAvoiding(nodes); err != nil {
			t.Errorf("%s: all to be avoided: %v", name, err)
		}
		nodes[3].SetStatus(Busy)
		p, err := b.PickAvoiding(nodes[:3])
		if err != nil || p.Node() == nodes[3] {
			t.Errorf("%s: a busy one instead of one that refused", name)
		}
	}
}

// An endpoint that fails at once looks idle. Only the bias sees what it does.
func TestSuccessBias_anEndpointThatFailsFastGetsLittle(t *testing.T) {
	for _, metric := range []LoadMetric{LeastLoaded, PeakEWMA} {
		share := func(bias float64) float64 {
			b, clock := newTest(t, Config{Load: metric, SuccessBias: bias}, 20)
			bad := b.Nodes()[4]
			type running struct {
				p   Pick
				end time.Duration
			}
			var list []running
			for range 20_000 {
				clock.Add(500 * time.Microsecond)
				now := clock.Now()
				rest := list[:0]
				for _, r := range list {
					if r.end <= now {
						o := Success
						if r.p.Node() == bad {
							o = Failure
						}
						r.p.Done(o)
					} else {
						rest = append(rest, r)
					}
				}
				p := pick(t, b)
				d := 10 * time.Millisecond
				if p.Node() == bad {
					d = 500 * time.Microsecond
				}
				list = append(rest, running{p, now + d})
			}
			return float64(bad.results[Failure].Load()) / 20_000 * 20
		}
		// Half a millisecond times twenty attempts is as good as an answer in ten:
		// a latency takes more bias than a count.
		bias := map[LoadMetric]float64{LeastLoaded: 1, PeakEWMA: 2}[metric]
		without, with := share(0), share(bias)
		t.Logf("%v: %.2f of an even share without the bias, %.3f with", metric, without, with)
		if without < 1.3 || with > 0.15 {
			t.Errorf("%v: the failing endpoint got %.2f of an even share without the bias, %.2f with", metric, without, with)
		}
	}
}

func TestHooks_thatPanicLeaveNoLockBehind(t *testing.T) {
	b, err := New(Config{OnAdd: func(n *Node) {
		if n.Address() == "bad" {
			panic(errTest)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != errTest {
				t.Error("the panic did not reach the caller")
			}
		}()
		_ = b.Update([]Endpoint{{Address: "bad"}})
	}()
	update(t, b, endpoints(2))
	pick(t, b).Done(Success)
}

func TestOnDrained_waitsForTheLastRequest(t *testing.T) {
	var drained []*Node
	b, _ := newTest(t, Config{OnDrained: func(n *Node) { drained = append(drained, n) }}, 1)
	p, q := pick(t, b), pick(t, b)
	update(t, b, []Endpoint{{Address: "other"}})
	p.Done(Success)
	if len(drained) != 0 {
		t.Fatal("drained with a request under way")
	}
	q.Done(Failure)
	if len(drained) != 1 || drained[0] != p.Node() {
		t.Fatalf("drained %v", drained)
	}
}
