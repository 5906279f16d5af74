package switchyard

import (
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestNewID_isAUUIDOfVersion7OfNow(t *testing.T) {
	before := time.Now().Add(-time.Millisecond)
	id := NewID()
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) {
		t.Fatalf("%q is no UUID of version 7", id)
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	sec, nsec := parsed.Time().UnixTime()
	if at := time.Unix(sec, nsec); at.Before(before) || at.After(time.Now().Add(time.Minute)) {
		t.Errorf("%q is of %v", id, at)
	}
}

func TestNewID_increasesAndNeverRepeats(t *testing.T) {
	const goroutines, each = 8, 5000
	all := make([][]string, goroutines)
	var wg sync.WaitGroup
	for g := range all {
		wg.Go(func() {
			for range each {
				all[g] = append(all[g], NewID())
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, ids := range all {
		if !slices.IsSorted(ids) {
			t.Error("ids of one goroutine are not in order")
		}
		for _, id := range ids {
			if seen[id] {
				t.Fatalf("%s came twice", id)
			}
			seen[id] = true
		}
	}
}

func TestNextIDTime_goesOnWhenTheClockGoesBack(t *testing.T) {
	var last atomic.Uint64
	first := nextIDTime(&last, 1_900_000_000_123_456_789)
	if first>>12 != 1_900_000_000_123 {
		t.Errorf("milliseconds %d", first>>12)
	}
	if again := nextIDTime(&last, 1_900_000_000_123_456_789); again != first+1 {
		t.Errorf("same moment: %d after %d", again, first)
	}
	if back := nextIDTime(&last, 1_800_000_000_000_000_000); back != first+2 {
		t.Errorf("clock set back: %d after %d", back, first)
	}
	if later := nextIDTime(&last, 1_900_000_001_000_000_000); later>>12 != 1_900_000_001_000 {
		t.Errorf("clock has passed: %d", later>>12)
	}
}

func TestFillIDs_keepsThoseThatAreThere(t *testing.T) {
	results := make([]AddResult, 4)
	fillIDs([]Task{{}, {ID: "mine"}, {}, {}}, results)
	if results[1].ID != "mine" {
		t.Errorf("given id became %q", results[1].ID)
	}
	if !(results[0].ID < results[2].ID && results[2].ID < results[3].ID) {
		t.Errorf("made ids are not in order: %v", results)
	}
	for _, i := range []int{0, 2, 3} {
		if _, err := uuid.Parse(results[i].ID); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewID()
	}
}
