package ring

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectors are values taken from Temporal's ring; the file says the rules in words.
type vectors struct {
	Fingerprint32 []struct {
		S string `json:"s"`
		H uint32 `json:"h"`
	} `json:"fingerprint32"`
	Rings []struct {
		Name        string        `json:"name"`
		Servers     []string      `json:"servers"`
		FirstPoints []vectorPoint `json:"first_points"`
		LastPoints  []vectorPoint `json:"last_points"`
		Cases       []struct {
			Key     string   `json:"key"`
			Hash    uint32   `json:"hash"`
			Lookup  string   `json:"lookup"`
			Lookup3 []string `json:"lookup3"`
		} `json:"cases"`
	} `json:"rings"`
}

type vectorPoint struct {
	Hash uint32 `json:"hash"`
	Addr string `json:"addr"`
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/ring.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

func TestFingerprint32_equalsTheVectors(t *testing.T) {
	v := readVectors(t)
	require.Len(t, v.Fingerprint32, 164)
	for _, c := range v.Fingerprint32 {
		require.Equal(t, c.H, Fingerprint32([]byte(c.S)), "%q", c.S)
	}
}

func (r *Ring) vectorPoints(from, to int) []vectorPoint {
	var out []vectorPoint
	for _, p := range r.points[from:to] {
		out = append(out, vectorPoint{p.hash, r.servers[p.server]})
	}
	return out
}

func TestRing_equalsTheVectors(t *testing.T) {
	for _, v := range readVectors(t).Rings {
		t.Run(v.Name, func(t *testing.T) {
			backwards := slices.Clone(v.Servers)
			slices.Reverse(backwards)
			r := New(backwards)
			require.Len(t, r.points, len(v.Servers)*PointsPerServer)
			require.Equal(t, v.FirstPoints, r.vectorPoints(0, len(v.FirstPoints)))
			require.Equal(t, v.LastPoints, r.vectorPoints(len(r.points)-len(v.LastPoints), len(r.points)))
			require.NotEmpty(t, v.Cases)
			for _, c := range v.Cases {
				require.Equal(t, c.Hash, Fingerprint32([]byte(c.Key)))
				s, ok := r.Lookup([]byte(c.Key))
				require.True(t, ok)
				require.Equal(t, c.Lookup, s, "%q", c.Key)
				require.Equal(t, c.Lookup3, r.LookupN([]byte(c.Key), 3, nil), "%q", c.Key)
			}
		})
	}
}

func TestRing_withoutServersHasNobody(t *testing.T) {
	for _, r := range []*Ring{{}, New(nil)} {
		_, ok := r.Lookup([]byte("k"))
		require.False(t, ok)
		require.Empty(t, r.LookupN([]byte("k"), 3, nil))
	}
}

func TestRing_LookupNReturnsEveryServerOnce(t *testing.T) {
	r := New([]string{"c", "a", "b", "a"})
	require.Equal(t, []string{"a", "b", "c"}, r.Servers())
	for k := range 100 {
		key := fmt.Append(nil, k)
		got := r.LookupN(key, 10, []string{"before"})
		require.Equal(t, "before", got[0])
		require.Equal(t, []string{"a", "b", "c"}, slices.Sorted(slices.Values(got[1:])))
		require.Empty(t, r.LookupN(key, 0, nil))
		require.Empty(t, r.LookupN(key, -1, nil))
	}
}

func TestRing_aServerThatLeavesMovesOnlyItsOwnKeys(t *testing.T) {
	all := []string{"a:1", "b:1", "c:1", "d:1", "e:1", "f:1", "g:1", "h:1"}
	before, after := New(all), New(all[1:])
	moved := 0
	for k := range 10_000 {
		key := fmt.Append(nil, "key ", k)
		was, _ := before.Lookup(key)
		is, _ := after.Lookup(key)
		if was == is {
			continue
		}
		require.Equal(t, "a:1", was)
		moved++
	}
	require.InDelta(t, 10_000/8, moved, 500)
}

func TestRing_lookupsDoNotAllocate(t *testing.T) {
	r := New([]string{"a", "b", "c", "d"})
	key, out := []byte("ns:queue:task"), make([]string, 0, 4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.Lookup(key)
		out = r.LookupN(key, 3, out[:0])
	}))
}

func BenchmarkRing_Lookup(b *testing.B) {
	servers := make([]string, 1000)
	for i := range servers {
		servers[i] = fmt.Sprintf("10.0.%d.%d:7235", i/250, i%250)
	}
	r := New(servers)
	out := make([]string, 0, 64)
	b.Run("Lookup", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Lookup([]byte("ns:queue:task"))
		}
	})
	for _, n := range []int{3, 32} {
		b.Run(fmt.Sprintf("LookupN/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				out = r.LookupN([]byte("ns:queue:task"), n, out[:0])
			}
		})
	}
}
