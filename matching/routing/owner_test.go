package routing

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/membership/ring"
)

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}

func TestOwner_equalsTheVectors(t *testing.T) {
	var v struct {
		Servers map[string][]string `json:"servers"`
		Rows    []struct {
			NS        string            `json:"ns"`
			Queue     string            `json:"queue"`
			Type      int               `json:"type"`
			Kind      string            `json:"kind"`
			Partition int32             `json:"partition"`
			RPCName   string            `json:"rpc_name"`
			BatchSize int               `json:"batch_size"`
			Key       string            `json:"key"`
			Index     int               `json:"index"`
			Owner     map[string]string `json:"owner"`
		} `json:"rows"`
	}
	readJSON(t, "routing.json", &v)
	rings := map[string]*ring.Ring{}
	for name, servers := range v.Servers {
		rings[name] = ring.New(servers)
	}
	require.Len(t, v.Rows, 451)
	for _, row := range v.Rows {
		p := Partition{Namespace: row.NS, Queue: row.Queue, Type: fmt.Sprint(row.Type), Number: row.Partition}
		if row.Kind != "normal" {
			p.Sticky = row.RPCName
		}
		key, index := p.AppendKey(nil, row.BatchSize)
		require.Equal(t, row.Key, string(key))
		require.Equal(t, row.Index, index, row.Key)
		require.NotEmpty(t, row.Owner)
		for name, want := range row.Owner {
			got, err := Owner(rings[name], p, row.BatchSize)
			require.NoError(t, err)
			require.Equal(t, want, got, "%s on %s", row.Key, name)
		}
	}
}

func TestOwner_withoutNodesSaysThatNoneIsKnown(t *testing.T) {
	for _, batch := range []int{0, 8} {
		_, err := Owner(ring.New(nil), Partition{Namespace: "ns", Queue: "q", Number: 3}, batch)
		require.ErrorIs(t, err, ErrNoNodes)
	}
}

func nodes(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("10.0.0.%d:7902", i+1))
	}
	return names
}

// spread counts the partitions of a queue by node, and those that move when the node
// leaves which is given.
func spread(t *testing.T, queue string, partitions, batch int, names []string, leaves int) (perNode map[string]int, moved, lost int) {
	before := ring.New(names)
	rest := append(append([]string{}, names[:leaves]...), names[leaves+1:]...)
	after := ring.New(rest)
	perNode = map[string]int{}
	for n := range int32(partitions) {
		p := Partition{Namespace: "default", Queue: queue, Number: n}
		was, err := Owner(before, p, batch)
		require.NoError(t, err)
		is, err := Owner(after, p, batch)
		require.NoError(t, err)
		perNode[was]++
		if was != is {
			moved++
		}
		if was == names[leaves] {
			lost++
		}
	}
	return perNode, moved, lost
}

func TestOwner_aBatchOfEightSpreads64PartitionsEvenlyOverEightNodes(t *testing.T) {
	names := nodes(8)
	for q := range 50 {
		perNode, _, _ := spread(t, fmt.Sprint("q", q), 64, 8, names, 0)
		require.Len(t, perNode, 8)
		for node, n := range perNode {
			require.InDelta(t, 8, n, 1, node)
		}
	}
}

// TestOwner_whatMovesWhenANodeLeaves prints the table in docs/partitions.md.
func TestOwner_whatMovesWhenANodeLeaves(t *testing.T) {
	names := nodes(8)
	const queues = 200
	for _, c := range []struct {
		name    string
		batch   int
		mostMax float64 // partitions of the busiest node, on average
	}{{"basic", 0, 20}, {"spread, batch 8", 8, 8}} {
		least, most, moved, lost := 0, 0, 0, 0
		for q := range queues {
			perNode, m, l := spread(t, fmt.Sprint("q", q), 64, c.batch, names, q%8)
			lo, hi := 64, 0
			for _, name := range names {
				lo, hi = min(lo, perNode[name]), max(hi, perNode[name])
			}
			least, most, moved, lost = least+lo, most+hi, moved+m, lost+l
			require.GreaterOrEqual(t, m, l, "what the node had must move")
			if c.batch == 0 {
				require.Equal(t, l, m, "basic routing moves nothing else")
			}
		}
		t.Logf("%-16s least %.1f, most %.1f partitions on a node; %.1f move when one leaves, %.1f of them were its own",
			c.name, float64(least)/queues, float64(most)/queues, float64(moved)/queues, float64(lost)/queues)
		require.LessOrEqual(t, float64(most)/queues, c.mostMax)
	}
}

func TestOwner_doesNotAllocate(t *testing.T) {
	r := ring.New(nodes(8))
	p := Partition{Namespace: "default", Queue: "mail", Number: 13}
	for _, batch := range []int{0, 8} {
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = Owner(r, p, batch) }), batch)
	}
}

func BenchmarkOwner(b *testing.B) {
	r := ring.New(nodes(8))
	p := Partition{Namespace: "default", Queue: "mail", Number: 13}
	for _, batch := range []int{0, 8} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Owner(r, p, batch)
			}
		})
	}
}
