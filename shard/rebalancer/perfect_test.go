package rebalancer

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/switchyard-dev/switchyard/shard"
)

// set makes a replica set with active and pinned buckets.
func set(name string, weight float64, active, pinned int) Set {
	s := Set{Name: name, Weight: weight}
	s.Counts[shard.Active], s.Counts[shard.Pinned] = active, pinned
	return s
}

func locked(s Set) Set {
	s.Locked = true
	return s
}

func TestPerfect(t *testing.T) {
	for _, c := range []struct {
		name string
		sets []Set
		want []int
	}{
		{"equal weights", []Set{set("a", 1, 3000, 0), set("b", 1, 0, 0)}, []int{1500, 1500}},
		{"pinned buckets above the share stay", []Set{set("a", 1, 150, 0), set("b", 1, 30, 120), set("c", 1, 0, 0)}, []int{90, 120, 90}},
		{"pins push a second set over its share", []Set{set("a", 1, 0, 90), set("b", 1, 0, 40), set("c", 1, 20, 0)}, []int{90, 40, 20}},
		{"unequal weights", []Set{set("a", 1, 100, 0), set("b", 3, 0, 0)}, []int{25, 75}},
		{"weight 0 drains", []Set{set("a", 0, 10, 0), set("b", 1, 10, 0)}, []int{0, 20}},
		{"weight 0 with pins keeps those", []Set{set("a", 0, 6, 4), set("b", 1, 10, 0)}, []int{4, 16}},
		{"a locked set is left out with its buckets", []Set{locked(set("a", 1, 60, 0)), set("b", 1, 40, 0), set("c", 1, 0, 0)}, []int{60, 20, 20}},
		{"a locked set's weight does not count", []Set{locked(set("a", 100, 60, 0)), set("b", 1, 40, 0), set("c", 3, 0, 0)}, []int{60, 10, 30}},
		{"all locked", []Set{locked(set("a", 1, 60, 0)), locked(set("b", 0, 40, 0))}, []int{60, 40}},
		{"the odd bucket stays where it is", []Set{set("a", 1, 4, 0), set("b", 1, 3, 0)}, []int{4, 3}},
		{"the odd bucket stays where it is, the other way round", []Set{set("a", 1, 3, 0), set("b", 1, 4, 0)}, []int{3, 4}},
		{"more sets than buckets", []Set{set("a", 1, 2, 0), set("b", 1, 0, 0), set("c", 1, 0, 0)}, []int{1, 1, 0}},
		{"shares that floating point does not hit", []Set{set("a", .1, 30, 0), set("b", .2, 60, 0)}, []int{30, 60}},
		{"nothing anywhere", []Set{set("a", 0, 0, 0)}, []int{0}},
		{"nobody", nil, []int{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Perfect(c.sets)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestPerfect_refusesWeights(t *testing.T) {
	for name, sets := range map[string][]Set{
		"negative":     {set("a", -1, 10, 0), set("b", 1, 0, 0)},
		"not a number": {set("a", math.NaN(), 10, 0), set("b", 1, 0, 0)},
		"infinite":     {set("a", math.Inf(1), 10, 0), set("b", 1, 0, 0)},
		"all 0":        {set("a", 0, 10, 0), set("b", 0, 0, 0)},
		"all 0 but a locked one's": {
			set("a", 0, 10, 0), locked(set("b", 1, 0, 0))},
		"sum is infinite": {set("a", math.MaxFloat64, 10, 0), set("b", math.MaxFloat64, 0, 0)},
	} {
		if _, err := Perfect(sets); !errors.Is(err, shard.InvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImbalance(t *testing.T) {
	sets := []Set{set("a", 1, 110, 0), set("b", 1, 90, 0)}
	if got := Imbalance(sets, []int{100, 100}); math.Abs(got-10) > 1e-9 {
		t.Errorf("%v", got)
	}
	if got := Imbalance(sets, []int{110, 90}); got != 0 {
		t.Errorf("%v", got)
	}
	if got := Imbalance([]Set{set("a", 0, 1, 0)}, []int{0}); !math.IsInf(got, 1) {
		t.Errorf("a set to be drained: %v", got)
	}
}

// randomSets makes up to n replica sets of any kind.
func randomSets(rng *rand.Rand, n int) []Set {
	weights := []float64{0, 1, 1, 1, 2, .5, .1, 1.0 / 3, 1e6, 17}
	sets := make([]Set, 1+rng.IntN(n))
	for i := range sets {
		s := set(string(rune('a'+i/26))+string(rune('a'+i%26)), weights[rng.IntN(len(weights))], rng.IntN(400), 0)
		if rng.IntN(4) == 0 {
			s.Counts[shard.Pinned] = rng.IntN(300)
		}
		s.Counts[shard.ReadOnly] = rng.IntN(3)
		s.Locked = rng.IntN(8) == 0
		sets[i] = s
	}
	sets[0].Weight, sets[0].Locked = 1, false
	return sets
}

func TestPerfect_anyStart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		sets := randomSets(rng, 30)
		perfect, err := Perfect(sets)
		if err != nil {
			t.Fatal(err)
		}
		owned, sum := 0, 0
		for i, s := range sets {
			owned += s.Owned()
			sum += perfect[i]
			switch {
			case s.Locked && perfect[i] != s.Owned():
				t.Fatalf("%+v is locked and should have %d", s, perfect[i])
			case !s.Locked && perfect[i] < s.Counts[shard.Pinned]:
				t.Fatalf("%+v should have %d, less than it has pinned", s, perfect[i])
			case !s.Locked && s.Weight == 0 && perfect[i] != s.Counts[shard.Pinned]:
				t.Fatalf("%+v should be drained to its pins, and have %d", s, perfect[i])
			}
			for k, o := range sets {
				// Who has more weight has at least as much, unless pins decide; a bucket of rounding aside.
				if !s.Locked && !o.Locked && s.Weight >= o.Weight && perfect[i] < perfect[k]-1 && perfect[k] > o.Counts[shard.Pinned] {
					t.Fatalf("%+v gets %d, and %+v gets %d", s, perfect[i], o, perfect[k])
				}
			}
		}
		if owned != sum {
			t.Fatalf("%d buckets, and perfect are %d: %+v %v", owned, sum, sets, perfect)
		}
		// What is perfect stays so.
		for i := range sets {
			sets[i].Counts[shard.ReadOnly] = 0
			sets[i].Counts[shard.Active] = perfect[i] - sets[i].Counts[shard.Pinned]
		}
		again, err := Perfect(sets)
		if err != nil || !slices.Equal(again, perfect) {
			t.Fatalf("perfect counts %v become %v (%v)", perfect, again, err)
		}
	}
}
