package rebalancer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// TestPlan_anyStart carries plans out with batches that end in any order: limits are never passed, no
// bucket moves twice, the counts are perfect afterwards, and there is nothing more to do.
func TestPlan_anyStart(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		sets := randomSets(rng, 24)
		perfect, err := Perfect(sets)
		if err != nil {
			t.Fatal(err)
		}
		limits := Limits{MaxSending: 1 + rng.IntN(120), MaxReceiving: 1 + rng.IntN(120), MaxSendingBytes: 1 + rng.Int64N(1<<24)}
		simulate(t, rng, sets, perfect, limits)
		if flows := Flows(sets, perfect); len(flows) != 0 {
			t.Fatalf("round %d: after the plan %v are left", round, flows)
		}
	}
}

func simulate(t *testing.T, rng *rand.Rand, sets []Set, perfect []int, limits Limits) (batches int) {
	t.Helper()
	index := map[string]int{}
	var routes []Route
	home := map[shard.BucketID]string{}
	sizes := map[shard.BucketID]int64{}
	flows := Flows(sets, perfect)
	surplus, planned := 0, 0
	for i := range sets {
		index[sets[i].Name] = i
		surplus += max(0, sets[i].Owned()-perfect[i])
		var from []Flow
		for _, f := range flows {
			if f.Source == sets[i].Name {
				from = append(from, f)
			}
		}
		var movable []Bucket
		for range sets[i].Counts[shard.Active] + sets[i].Counts[shard.ReadOnly] {
			b := Bucket{ID: shard.BucketID(len(home) + 1), Bytes: rng.Int64N(1 << rng.IntN(25))}
			home[b.ID], sizes[b.ID] = sets[i].Name, b.Bytes
			movable = append(movable, b)
		}
		if len(from) > 0 {
			routes = append(routes, MakePlan(from, movable)...)
		}
	}
	for _, r := range routes {
		planned += len(r.Buckets)
	}
	if planned != surplus {
		t.Fatalf("%d moves for a surplus of %d", planned, surplus)
	}
	s := newSchedule(limits, routes)
	var running []batch
	sending, receiving, bytes := map[string]int{}, map[string]int{}, map[string]int64{}
	count := func(b batch, sign int) {
		sending[b.route.Source] += sign * len(b.buckets)
		receiving[b.route.Destination] += sign * len(b.buckets)
		for _, id := range b.buckets {
			bytes[b.route.Source] += int64(sign) * sizes[id]
		}
	}
	for {
		for b, ok := s.next(); ok; b, ok = s.next() {
			batches++
			count(b, 1)
			from, to := b.route.Source, b.route.Destination
			if sending[from] > limits.MaxSending || receiving[to] > limits.MaxReceiving ||
				bytes[from] > limits.MaxSendingBytes && sending[from] > 1 {
				t.Fatalf("%s sends %d, %d bytes, %s receives %d; limits %+v", from, sending[from], bytes[from], to, receiving[to], limits)
			}
			for _, id := range b.buckets {
				if home[id] != from {
					t.Fatalf("bucket %d is on %q, and moves from %s", id, home[id], from)
				}
				home[id] = ""
			}
			running = append(running, b)
		}
		if len(running) == 0 {
			break
		}
		i := rng.IntN(len(running))
		b := running[i]
		running[i] = running[len(running)-1]
		running = running[:len(running)-1]
		count(b, -1)
		s.done(b, false)
		from, to := &sets[index[b.route.Source]], &sets[index[b.route.Destination]]
		for _, id := range b.buckets {
			home[id] = to.Name
			if from.Counts[shard.Active] > 0 {
				from.Counts[shard.Active]--
			} else {
				from.Counts[shard.ReadOnly]--
			}
			to.Counts[shard.Active]++
		}
	}
	if s.waiting != 0 || s.underway != 0 {
		t.Fatalf("%d wait, %d are under way at the end", s.waiting, s.underway)
	}
	return batches
}

func TestPlan_emptyBucketsGoInLongLists(t *testing.T) {
	sets := []Set{set("a", 1, 3000, 0), set("b", 1, 0, 0)}
	perfect, err := Perfect(sets)
	if err != nil {
		t.Fatal(err)
	}
	routes := MakePlan(Flows(sets, perfect), make3000())
	s := newSchedule(Limits{}, routes)
	batches := 0
	for b, ok := s.next(); ok; b, ok = s.next() {
		batches++
		s.done(b, false)
	}
	if batches != 30 {
		t.Errorf("1500 empty buckets go in %d lists", batches)
	}
}

func make3000() []Bucket {
	all := make([]Bucket, 3000)
	for i := range all {
		all[i].ID = shard.BucketID(i + 1)
	}
	return all
}

func TestPlan_largeBucketsGoAFewAtATime(t *testing.T) {
	var movable []Bucket
	for i := range 20 {
		movable = append(movable, Bucket{ID: shard.BucketID(i + 1), Bytes: 30 << 20})
	}
	movable = append(movable, Bucket{ID: 21, Bytes: 1 << 30})
	s := newSchedule(Limits{}, MakePlan([]Flow{{"a", "b", 21}}, movable))
	for s.waiting > 0 {
		var running []batch
		for b, ok := s.next(); ok; b, ok = s.next() {
			running = append(running, b)
		}
		n := 0
		for _, b := range running {
			n += len(b.buckets)
			s.done(b, false)
		}
		if n > 2 {
			t.Errorf("%d buckets of 30 MiB are sent at once", n)
		}
	}
}

func TestMakePlan_sampleIsFairBySize(t *testing.T) {
	var movable []Bucket
	all := int64(0)
	for i := range 1000 {
		b := Bucket{ID: shard.BucketID(i + 1), Bytes: int64(i) * int64(i)}
		all += b.Bytes
		movable = append(movable, b)
	}
	for _, r := range MakePlan([]Flow{{"a", "b", 250}, {"a", "c", 250}}, movable) {
		sum := int64(0)
		for i, b := range r.Buckets {
			sum += b.Bytes
			if i > 0 && b.Bytes < r.Buckets[i-1].Bytes {
				t.Fatalf("to %s: bucket %d is smaller than the one before", r.Destination, b.ID)
			}
		}
		if part := float64(sum) / float64(all); len(r.Buckets) != 250 || part < .24 || part > .26 {
			t.Errorf("to %s: %d buckets with %.3f of the bytes", r.Destination, len(r.Buckets), part)
		}
	}
}

func TestMakePlan_fewerThanWanted(t *testing.T) {
	n := 0
	for _, r := range MakePlan([]Flow{{"a", "b", 5}, {"a", "c", 5}}, []Bucket{{ID: 1}, {ID: 2}, {ID: 3}}) {
		n += len(r.Buckets)
	}
	if n != 3 {
		t.Errorf("%d buckets", n)
	}
	if r := MakePlan([]Flow{{"a", "b", 5}}, nil); len(r) != 0 {
		t.Errorf("routes without buckets: %v", r)
	}
}

// TestPlan_largeCluster is about speed: a plan is made while its cluster waits.
func TestPlan_largeCluster(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	sets := make([]Set, 48)
	for i := range sets {
		sets[i] = set(fmt.Sprintf("set%02d", i), 1, rng.IntN(2500), 0)
	}
	start := time.Now()
	perfect, err := Perfect(sets)
	if err != nil {
		t.Fatal(err)
	}
	batches := simulate(t, rng, sets, perfect, Limits{}.withDefaults())
	t.Logf("%d buckets on %d sets: planned and carried out in %d lists, %v", sum(perfect), len(sets), batches,
		time.Since(start).Round(time.Millisecond))
	if len(Flows(sets, perfect)) != 0 {
		t.Error("not balanced")
	}
}

func sum(n []int) (total int) {
	for _, v := range n {
		total += v
	}
	return total
}
