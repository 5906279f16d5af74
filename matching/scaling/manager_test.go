package scaling

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func managed() Settings {
	return Settings{
		Mode: On, Configured: 1, Max: 32,
		Up: []Rule{{10 * time.Second, 100}}, Down: []Rule{{30 * time.Second, 50}},
	}
}

// The counts follow the load from 1 to 32 partitions and back, and every task is
// polled.
func TestManager_oneToThirtyTwoAndBackLosesNothing(t *testing.T) {
	f := newFleet(t, 1, managed())
	f.run(20*time.Second, 50, 200)
	if c := f.m.Counts(); c.Read != 1 || c.Write != 1 {
		t.Fatalf("%+v at little load, want one partition", c)
	}
	f.run(2*time.Minute, 3200, 3500)
	if c := f.m.Counts(); c.Read != 32 || c.Write != 32 {
		t.Fatalf("%+v at 3200 tasks/s, want 32 partitions", c)
	}
	f.run(20*time.Minute, 20, 3500)
	if c := f.m.Counts(); c.Read != 1 || c.Write != 1 {
		t.Errorf("%+v long after the load went, want one partition\n%s", c, strings.Join(f.changes, "\n"))
	}
	if f.added != f.polled {
		t.Errorf("%d tasks were added and %d polled", f.added, f.polled)
	}
	if _, largest, _ := f.m.Targets(); largest != 32 {
		t.Errorf("the largest target was %d, want 32", largest)
	}
}

// The write count falls in steps ahead of the read count.
func TestManager_writeFallsFirstThenRead(t *testing.T) {
	s := managed()
	s.Fixed = 32
	f := newFleet(t, 1, s)
	f.run(5*time.Second, 0, 0)
	f.propose()
	s.Fixed = 4
	f.run(5*time.Second, 0, 0)
	f.configure(func(s *Settings) { s.Fixed = 4 })
	if c := f.m.Counts(); c.Read != 32 || c.Write != 29 {
		t.Fatalf("%+v, want 32 to poll and 29 to add to", c)
	}
	before := f.m.Counts()
	for range 60 {
		f.run(10*time.Second, 0, 0)
		c := f.m.Counts()
		if c.Read < before.Write {
			t.Errorf("from %+v to %+v: partitions that took tasks a moment ago are not polled", before, c)
		}
		before = c
	}
	if before.Read != 4 || before.Write != 4 {
		t.Errorf("ended at %+v", before)
	}
}

func TestManager_bitClearsOnlyAfterDrainBufferAndWithTheSameCounts(t *testing.T) {
	s := managed()
	s.Fixed = 2
	f := newFleet(t, 1, s)
	f.propose()
	f.now += int64(time.Minute)
	f.configure(func(s *Settings) { s.Fixed = 1 })
	c := f.m.Counts()
	if c.Read != 2 || c.Write != 1 {
		t.Fatalf("%+v", c)
	}
	good := Report{1, c.Read, c.Write, c.Version, true, 0}
	wrong := map[string]func(*Report){
		"older counts": func(r *Report) { r.Version-- },
		"other read":   func(r *Report) { r.Read++ },
		"other write":  func(r *Report) { r.Write++ },
		"not empty":    func(r *Report) { r.Empty = false },
	}
	f.now += int64(time.Minute)
	for name, change := range wrong {
		r := good
		change(&r)
		f.m.Answer(f.now, r)
		if p := f.m.Propose(f.now, f.now); p != nil {
			t.Errorf("%s: %+v", name, p.After)
		}
	}
	f.now -= int64(time.Minute) - int64(14*time.Second)
	f.m.Answer(f.now, good)
	if p := f.m.Propose(f.now, f.now); p != nil {
		t.Errorf("before the drain buffer was over: %+v", p.After)
	}
	f.now += int64(time.Second)
	f.m.Answer(f.now, good)
	if p := f.m.Propose(f.now, f.now); p == nil || p.After.Read != 1 {
		t.Errorf("an empty partition is still polled: %+v", p)
	}
}

func TestManager_draining_unloadedPartitionDoesNotHoldTheCountUp(t *testing.T) {
	s := managed()
	s.Fixed = 8
	f := newFleet(t, 1, s)
	f.propose()
	for p := range int32(8) {
		f.add(p)
	}
	for p := range int32(8) {
		f.poll(p, 1)
		f.partitions[p].loaded = false
	}
	f.configure(func(s *Settings) { s.Fixed = 1 })
	f.run(10*time.Minute, 0, 0)
	if c := f.m.Counts(); c.Read != 1 {
		t.Errorf("%+v although all partitions are empty", c)
	}
}

func TestManager_draining_partitionWithBacklogHoldsTheCountUpUntilItIsEmpty(t *testing.T) {
	s := managed()
	s.Fixed = 8
	f := newFleet(t, 1, s)
	f.propose()
	f.add(5)
	f.configure(func(s *Settings) { s.Fixed = 1 })
	f.run(10*time.Minute, 0, 0)
	if c := f.m.Counts(); c.Read != 6 || c.Write != 5 {
		t.Fatalf("%+v while partition 5 has a task", c)
	}
	f.poll(5, 1)
	f.run(10*time.Minute, 0, 0)
	if c := f.m.Counts(); c.Read != 1 {
		t.Errorf("%+v after it was emptied", c)
	}
}

// Switching off, or to shadow mode, hands control back to the configuration.
func TestManager_switchingOffHandsControlBack(t *testing.T) {
	for _, mode := range []Mode{Off, Shadow} {
		for _, configured := range []int32{1, 4, 12} {
			s := managed()
			s.Fixed = 10
			f := newFleet(t, 1, s)
			f.propose()
			f.run(5*time.Second, 300, 300)
			f.configure(func(s *Settings) { s.Mode, s.Configured = mode, configured })
			f.run(5*time.Minute, 100, 400)
			if c := f.m.Counts(); c.Managed() || f.row != nil {
				t.Errorf("mode %v with %d configured: still managed, %+v", mode, configured, c)
			}
			if c := f.stored(); c.Write != configured || c.Read != configured {
				t.Errorf("%+v, want %d", c, configured)
			}
			if _, _, shadow := f.m.Targets(); (shadow > 0) != (mode == Shadow) {
				t.Errorf("mode %v tells a shadow target %d", mode, shadow)
			}
		}
	}
}

func TestManager_switchingOnMarksTheConfiguredPartitions(t *testing.T) {
	f := newFleet(t, 1, Settings{Configured: 4, ConfiguredRead: 6})
	for p := range int32(4) {
		f.add(p)
	}
	f.partitions[5].tasks = 1 // from before
	f.used = 6
	f.configure(func(s *Settings) { s.Mode, s.Min, s.Max = On, 2, 2 })
	if c := f.m.Counts(); c.Read != 6 || c.Write != 5 {
		t.Fatalf("%+v, want all partitions that may have tasks to be polled", c)
	}
	f.run(20*time.Minute, 0, 100)
	if c := f.m.Counts(); c.Read != 2 || c.Write != 2 {
		t.Errorf("%+v, want 2", c)
	}
}

func TestManager_shadowChangesNothing(t *testing.T) {
	s := managed()
	s.Mode = Shadow
	f := newFleet(t, 1, s)
	f.run(time.Minute, 800, 900)
	if c := f.m.Counts(); c.Managed() || f.row != nil {
		t.Errorf("%+v in shadow mode", c)
	}
	if _, _, shadow := f.m.Targets(); shadow != 8 {
		t.Errorf("shadow target %d at 800/s with 100 per partition, want 8", shadow)
	}
	f.run(3*time.Minute, 60, 900)
	if _, _, shadow := f.m.Targets(); shadow != 1 {
		t.Errorf("shadow target %d after the load went, want 1", shadow)
	}
}

func TestManager_noDecisionBeforeWindowsWereObservedInFull(t *testing.T) {
	s := managed()
	s.Configured = 8
	f := newFleet(t, 1, s)
	f.propose()
	f.run(29*time.Second, 10, 100)
	if target, _, _ := f.m.Targets(); target != 8 {
		t.Errorf("target %d before half a minute was seen", target)
	}
	f.run(time.Minute, 10, 100)
	if target, _, _ := f.m.Targets(); target != 1 {
		t.Errorf("target %d with little load", target)
	}
}

func TestManager_cooldown(t *testing.T) {
	f := newFleet(t, 1, managed())
	f.run(11*time.Second, 200, 200)
	var at []int64
	last := f.m.targetAt
	for i := range 300 {
		f.run(100*time.Millisecond, float64(200+10*i), 5000)
		if f.m.targetAt != last {
			at, last = append(at, f.m.targetAt), f.m.targetAt
		}
	}
	if len(at) < 3 {
		t.Fatalf("the target changed %d times", len(at))
	}
	for i := 1; i < len(at); i++ {
		if d := time.Duration(at[i] - at[i-1]); d < 3*time.Second {
			t.Errorf("two changes within %v", d)
		}
	}
}

func TestManager_backlogTargets(t *testing.T) {
	s := managed()
	s.Configured, s.BacklogBase, s.BacklogReset, s.BacklogCap = 2, 100, 50, 1000
	f := newFleet(t, 1, s)
	f.run(30*time.Second, 150, 150)
	f.partitions[1].tasks += 200
	f.run(25*time.Second, 150, 150)
	if target, _, _ := f.m.Targets(); target != 3 {
		t.Errorf("target %d with one partition above the base, want 3", target)
	}
	if c := f.m.Counts(); c.BacklogCap != 1000 || int32(len(c.Backlog)) != c.Read || c.Backlog[1] == 0 {
		t.Errorf("%+v, want the cap and the backlog of each partition", c)
	}
	f.partitions[1].tasks = 80 // between reset and base
	f.run(25*time.Second, 150, 150)
	if target, _, _ := f.m.Targets(); target != 3 {
		t.Errorf("target %d between reset and base, want 3 still", target)
	}
	for p := range f.partitions[:4] {
		f.partitions[p].tasks = 0
	}
	f.run(30*time.Second, 150, 600)
	if target, _, _ := f.m.Targets(); target != 2 {
		t.Errorf("target %d after the backlog went, want 2", target)
	}
}

func TestManager_failedStoreChangesNothing(t *testing.T) {
	s := managed()
	f := newFleet(t, 1, s)
	f.run(time.Second, 50, 50)
	before, row := f.m.Counts(), f.row
	f.failStores = true
	f.run(20*time.Second, 800, 800)
	if c := f.m.Counts(); c.Read != before.Read || c.Version != before.Version || !bytes.Equal(row, f.row) {
		t.Errorf("%+v without its being stored", c)
	}
	f.failStores = false
	f.run(5*time.Second, 800, 800)
	if c := f.m.Counts(); c.Write != 8 {
		t.Errorf("%+v, want 8", c)
	}
}

func TestManager_anotherOwnerGoesOnFromWhatIsStored(t *testing.T) {
	s := managed()
	s.Configured = 6
	f := newFleet(t, 1, s)
	f.propose()
	f.configure(func(s *Settings) { s.Fixed = 3 })
	f.now += int64(5 * time.Second)
	f.propose()
	before := f.m.Counts()
	f.load()
	if c := f.m.Counts(); c.Read != before.Read || c.Write != before.Write || c.Version != before.Version {
		t.Errorf("%+v, want %+v", c, before)
	}
	f.run(3*time.Minute, 0, 0)
	if c := f.m.Counts(); c.Read != 3 {
		t.Errorf("%+v, want 3", c)
	}
}

// Any order of events keeps every task where it is polled, and once all is quiet
// the counts arrive at what they should be.
func TestManager_anything(t *testing.T) {
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := managed()
		s.Max, s.Configured = 1+rng.Int32N(40), 1+rng.Int32N(10)
		if rng.IntN(2) == 0 {
			s.BacklogBase, s.BacklogCap = 1+rng.Int64N(40), rng.Int64N(100)
		}
		f := newFleet(t, seed, s)
		modes := []Mode{Off, On, On, Shadow}
		for range 400 {
			c := f.stored()
			p := rng.Int32N(c.Read)
			switch rng.IntN(12) {
			case 0, 1, 2:
				f.run(time.Duration(rng.IntN(300))*100*time.Millisecond, float64(rng.IntN(800)), float64(rng.IntN(900)))
			case 3:
				f.now += rng.Int64N(int64(time.Minute))
			case 4: // a client with counts from long ago
				f.add(rng.Int32N(64))
			case 5:
				f.poll(p, rng.Int64N(100))
			case 6: // unloaded, at the end of its use or by a move
				f.partitions[p].loaded = false
			case 7:
				f.partitions[p].cut = rng.IntN(2) == 0
			case 8:
				f.failStores = rng.IntN(4) == 0
			case 9:
				f.load()
			case 10:
				f.configure(func(s *Settings) {
					s.Mode = modes[rng.IntN(len(modes))]
					s.Fixed = rng.Int32N(20) * rng.Int32N(2)
				})
			case 11:
				f.ask()
			}
			f.check()
		}
		f.failStores = false
		for p := range f.partitions {
			f.partitions[p].cut = false
			f.poll(int32(p), 1<<30)
		}
		f.configure(func(s *Settings) { s.Mode, s.Fixed = On, 3 })
		f.run(15*time.Minute, 0, 0)
		if c := f.stored(); c.Read != 3 || c.Write != 3 {
			t.Fatalf("seed %d: %+v at the end, want 3\n%s", seed, c, strings.Join(f.changes[max(0, len(f.changes)-10):], "\n"))
		}
		if f.added < f.polled {
			t.Fatalf("seed %d: more polled than added", seed)
		}
	}
}

func TestState_roundTrip(t *testing.T) {
	s := state{target: 3, largest: 40, version: 1234567890123456789, base: 2, cap: 99}
	s.backlog.setBelow(3)
	s.backlog.set(70)
	s.settle(0.1, 8)
	s.raised.set(2)
	s.levels[70] = 200
	row := s.append(nil)
	var back state
	if err := back.decode(row); err != nil {
		t.Fatal(err)
	}
	if back.read != 71 || back.write != 64 || !slices.Equal(back.levels, s.levels) || !bytes.Equal(back.append(nil), row) {
		t.Errorf("%+v", back)
	}
	if c, err := DecodeCounts(row); err != nil || c.Read != 71 || c.Write != 64 || c.Version != s.version {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := DecodeCounts(nil); err != nil || c.Managed() {
		t.Errorf("%+v, %v of nothing", c, err)
	}
	for n := range row {
		if err := back.decode(row[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	row[0]++
	if err := back.decode(row); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("another version: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	s := state{target: 3, largest: 3, base: 3}
	s.settle(0.1, 8)
	f.Add(s.append(nil))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, row []byte) {
		var s state
		if s.decode(row) == nil {
			if err := s.check(); err != nil {
				t.Error(err)
			}
			m, err := New(Settings{Mode: On}, row, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			for p := range m.Round(int64(time.Hour), 1) {
				c := m.Counts()
				m.Answer(int64(time.Hour), Report{p, c.Read, c.Write, c.Version, true, 5})
			}
			m.Propose(int64(time.Hour), 1)
		}
	})
}

func TestSettings_check(t *testing.T) {
	for want, s := range map[string]Settings{
		"unknown mode":                   {Mode: 9},
		"partitions must be":             {Configured: 5000},
		"min is 5":                       {Min: 5, Max: 3},
		"max must be":                    {Max: 5000},
		"fixed must be":                  {Fixed: -1},
		"reset at most the base":         {BacklogBase: 5, BacklogReset: 6},
		"cap must be":                    {BacklogCap: -1},
		"shrink ratio":                   {ShrinkRatio: 1.5},
		"shrink delta":                   {ShrinkDelta: -1},
		"drain buffer":                   {DrainBuffer: -1},
		"interval":                       {Interval: -1},
		"cooldown":                       {Cooldown: 2 * time.Hour},
		"window must be":                 {Up: []Rule{{time.Millisecond, 1}}},
		"rate must be":                   {Down: []Rule{{time.Minute, 0}}},
		"the count would swing":          {Up: []Rule{{time.Minute, 1}}, Down: []Rule{{time.Minute, 2}}},
		"there are 17 rules, at most 16": {Up: slices.Repeat([]Rule{{time.Minute, 1}}, 17)},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	for _, s := range []Settings{{}, managed(), {Mode: On}, {Mode: Shadow, Min: 100}, {BacklogBase: 1}} {
		if err := s.Check(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	f := newFleet(t, 1, managed())
	if err := f.m.Configure(Settings{Mode: 9}, f.now); err == nil || f.m.set.Max != 32 {
		t.Errorf("%v; max %d", err, f.m.set.Max)
	}
}
