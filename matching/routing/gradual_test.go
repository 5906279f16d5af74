package routing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/membership/ring"
)

func TestGradual_equalsTheVectors(t *testing.T) {
	var v struct {
		Windows []struct {
			Name  string    `json:"name"`
			Start time.Time `json:"start"`
			End   time.Time `json:"end"`
			Keys  []struct {
				Key    string    `json:"key"`
				Hash   uint32    `json:"hash"`
				When   time.Time `json:"when"`
				Values []struct {
					At    time.Time `json:"at"`
					Value string    `json:"value"`
				} `json:"values"`
			} `json:"keys"`
		} `json:"windows"`
	}
	readJSON(t, "gradual_change.json", &v)
	require.Len(t, v.Windows, 8)
	for _, w := range v.Windows {
		g := Gradual[string]{Old: "old", New: "new", Start: w.Start, End: w.End}
		require.Len(t, w.Keys, 30)
		for _, k := range w.Keys {
			key := []byte(k.Key)
			require.Equal(t, k.Hash, ring.Fingerprint32(key))
			require.True(t, k.When.Equal(g.When(key)), "%s, key %q: when is %v, want %v", w.Name, k.Key, g.When(key), k.When)
			for _, at := range k.Values {
				require.Equal(t, at.Value, g.Value(key, at.At), "%s, key %q at %v", w.Name, k.Key, at.At)
			}
			// Whoever looks at Settled, or at any time after it, sees the new value, and
			// nobody sees it before.
			s := g.Settled(key)
			require.Equal(t, "new", g.Value(key, s), "%s, key %q", w.Name, k.Key)
			require.Equal(t, "new", g.Value(key, s.Add(time.Nanosecond)))
			if w.Start.Before(w.End) {
				require.Equal(t, "old", g.Value(key, s.Add(-time.Nanosecond)), "%s, key %q", w.Name, k.Key)
			}
		}
	}
}

func TestBatchSize_movesEveryQueueOnceWithinTheWindow(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	g := Gradual[int]{Old: 0, New: 8, Start: start, End: start.Add(time.Hour)}
	changed := map[int]int{}
	for q := range 200 {
		p := Partition{Namespace: "ns", Queue: string(rune('a'+q%26)) + string(rune('a'+q/26))}
		was := 0
		for minute := 0; minute <= 60; minute++ {
			is := BatchSize(g, p, start.Add(time.Duration(minute)*time.Minute))
			require.GreaterOrEqual(t, is, was, "it never goes back")
			if is != was {
				changed[minute/10]++
			}
			was = is
		}
		require.Equal(t, 8, was)
	}
	for part := range 6 {
		require.Greater(t, changed[part], 10, "the changes are spread over the window")
	}
	require.Equal(t, 5, BatchSize(Fixed(5), Partition{}, start))
}
