package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

type placeView struct {
	First      uint32 `json:"first"`
	Last       uint32 `json:"last"`
	ReplicaSet string `json:"replica_set"`
	State      string `json:"state"`
	Peer       string `json:"peer,omitempty"`
	Transfer   uint64 `json:"transfer,omitempty"`
}

func newShardBucketsCommand(a *app) *cobra.Command {
	var asMap bool
	var set, state string
	var width int
	c := &cobra.Command{
		Use:   "buckets [BUCKETS]",
		Short: "List which buckets are where, in which state; or draw a map",
		Long: `List which buckets are where and in which state, neighbours that are alike in one
line. A bucket on its way has a line on both ends. JSON also has the numbers of the
transfers.

--map draws one character for each bucket: the letter of its replica set, capital
when it can be written, small when it can only be read; "*" when it is pinned, ">"
when it is on its way, "." when nobody has it, "!" when two replica sets do.`,
		Example: `  switchyard shard buckets
  switchyard shard buckets --map
  switchyard shard buckets 1-100 --set store-1 --state PINNED`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactArgs("BUCKETS")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			req := &v1.DescribeBucketsRequest{}
			if len(args) == 1 {
				spans, err := parseBuckets(c, args[0])
				if err != nil {
					return err
				}
				req.Buckets = spans
			}
			if width < 10 || width > 1000 {
				return usageOf(c, fmt.Errorf("--width is 10 to 1000, not %d", width))
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.DescribeBuckets(ctx, req)
				if err != nil {
					return err
				}
				for _, s := range resp.GetSilent() {
					fmt.Fprintf(a.stderr, "Replica set %s does not answer; its buckets are missing here.\n", s)
				}
				if asMap {
					return a.printBucketMap(resp, req.GetBuckets(), width)
				}
				return a.printPlaces(resp, set, strings.ToUpper(state))
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&asMap, "map", false, "draw a map, one character a bucket")
	f.StringVar(&set, "set", "", "only those of this replica `SET`")
	f.StringVar(&state, "state", "", "only those in this `STATE`")
	f.IntVar(&width, "width", 100, "buckets in one line of the map")
	return c
}

func (a *app) printPlaces(resp *v1.DescribeBucketsResponse, set, state string) error {
	places := []placeView{}
	for _, p := range resp.GetPlaces() {
		if (set == "" || p.GetReplicaSet() == set) && (state == "" || p.GetState() == state) {
			places = append(places, placeView{p.GetFirst(), p.GetLast(), p.GetReplicaSet(), p.GetState(), p.GetPeer(), p.GetTransfer()})
		}
	}
	if a.json() {
		return a.printJSON(map[string]any{"bucket_count": resp.GetBucketCount(), "places": places, "silent": append([]string{}, resp.GetSilent()...)})
	}
	t := a.newTable("BUCKETS", "COUNT", "REPLICA SET", "STATE", "PEER")
	for _, p := range alike(places) {
		t.row(rangeText(p.First, p.Last), count(int64(p.Last-p.First+1)), p.ReplicaSet, p.State, orDash(p.Peer))
	}
	return t.flush()
}

// alike puts neighbours together that differ in nothing but the numbers of their transfers.
func alike(places []placeView) (out []placeView) {
	last := map[string]int{} // of each set
	for _, p := range places {
		if i, ok := last[p.ReplicaSet]; ok && out[i].Last == p.First-1 && out[i].State == p.State && out[i].Peer == p.Peer {
			out[i].Last = p.Last
			continue
		}
		last[p.ReplicaSet] = len(out)
		out = append(out, p)
	}
	return out
}

// bucketMap draws buckets first to last.
func bucketMap(resp *v1.DescribeBucketsResponse) (cells []byte, letters map[string]byte) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var sets []string
	for _, p := range resp.GetPlaces() {
		if !slices.Contains(sets, p.GetReplicaSet()) {
			sets = append(sets, p.GetReplicaSet())
		}
	}
	slices.Sort(sets)
	letters = map[string]byte{}
	for i, s := range sets {
		letters[s] = alphabet[i%len(alphabet)]
	}
	cells = []byte(strings.Repeat(".", int(resp.GetBucketCount())+1))
	owned := make([]bool, len(cells))
	for _, p := range resp.GetPlaces() {
		for b := p.GetFirst(); b <= p.GetLast() && int(b) < len(cells); b++ {
			switch {
			case !owns(p.GetState()):
				if p.GetState() == "RECEIVING" && !owned[b] {
					cells[b] = '>'
				}
				continue
			case owned[b]:
				cells[b] = '!'
			case p.GetState() == "PINNED":
				cells[b] = '*'
			case p.GetState() == "SENDING" || p.GetPeer() != "":
				cells[b] = '>'
			case p.GetState() == "READONLY":
				cells[b] = letters[p.GetReplicaSet()] + 'a' - 'A'
			default:
				cells[b] = letters[p.GetReplicaSet()]
			}
			owned[b] = true
		}
	}
	return cells, letters
}

func (a *app) printBucketMap(resp *v1.DescribeBucketsResponse, spans []*v1.BucketSpan, width int) error {
	cells, letters := bucketMap(resp)
	if len(spans) == 0 {
		spans = []*v1.BucketSpan{{First: 1, Last: resp.GetBucketCount()}}
	}
	if a.json() {
		lines := map[string]string{}
		for _, s := range spans {
			lines[rangeText(s.GetFirst(), s.GetLast())] = string(cells[s.GetFirst() : s.GetLast()+1])
		}
		names := map[string]string{}
		for set, l := range letters {
			names[string(l)] = set
		}
		return a.printJSON(map[string]any{"bucket_count": resp.GetBucketCount(), "letters": names, "map": lines})
	}
	digits := len(fmt.Sprint(resp.GetBucketCount()))
	for _, s := range spans {
		for b := s.GetFirst(); b <= s.GetLast(); b += uint32(width) {
			end := min(b+uint32(width), s.GetLast()+1)
			fmt.Fprintf(a.stdout, "%*d  %s\n", digits, b, cells[b:end])
		}
	}
	fmt.Fprintln(a.stdout)
	names := make([]string, 0, len(letters))
	for set := range letters {
		names = append(names, set)
	}
	slices.Sort(names)
	for _, set := range names {
		fmt.Fprintf(a.stdout, "%c  %s\n", letters[set], set)
	}
	return nil
}
