// Command bands keeps data of its own in the sharded store: a table of bands with an index
// by genre. It starts nodes with two replica sets in this process, inserts and reads through
// a router, counts with a map-reduce over all buckets, and then adds a third replica set,
// which takes its share of the buckets while it is written and read.
//
//	go run ./examples/bands
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"maps"
	"slices"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
)

func main() {
	log.SetFlags(0)
	count := flag.Int("bands", 600, "how many bands to insert before and while buckets move")
	flag.Parse()
	if err := run(*count); err != nil {
		log.Fatal(err)
	}
}

func run(count int) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	nodes, err := newCluster()
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := nodes.stop(); err == nil {
			err = stopErr
		}
	}()
	for _, set := range []string{"one", "two"} {
		if err := nodes.start(set); err != nil {
			return err
		}
	}
	err = nodes.operate(ctx, func(ctx context.Context, c v1.ClusterServiceClient) error {
		_, err := c.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{ReplicaSets: 2, Members: 1})
		return err
	})
	if err != nil {
		return err
	}

	bands, err := openTable(nodes.sets)
	if err != nil {
		return err
	}
	defer bands.close()
	if err := bands.fill(ctx, 0, count); err != nil {
		return err
	}
	found, err := bands.get(ctx, "Band 7")
	if err != nil {
		return err
	}
	fmt.Printf("%s plays %s since %d\n", found.Name, found.Genre, found.Year)
	if err := bands.report(ctx); err != nil {
		return err
	}

	// A third replica set joins; buckets move to it while the table is used.
	if err := nodes.start("three"); err != nil {
		return err
	}
	err = nodes.operate(ctx, func(ctx context.Context, c v1.ClusterServiceClient) error {
		_, err := c.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "three", Members: 1})
		return err
	})
	if err != nil {
		return err
	}
	grown, err := openTable(nodes.sets) // a node learns of new replica sets by itself
	if err != nil {
		return err
	}
	defer grown.close()
	if err := grown.fill(ctx, count, 2*count); err != nil {
		return err
	}
	err = nodes.operate(ctx, func(ctx context.Context, c v1.ClusterServiceClient) error {
		info, err := c.DescribeStore(ctx, &v1.DescribeStoreRequest{})
		if err != nil {
			return err
		}
		for _, s := range info.GetReplicaSets() {
			if s.GetBuckets()[shard.Active.String()] != bucketCount/3 {
				return fmt.Errorf("replica set %s has %v", s.GetName(), s.GetBuckets())
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("each of three replica sets has %d buckets\n", bucketCount/3)
	return grown.report(ctx)
}

// table is the client's side of the table.
type table struct{ router *router.Router }

func openTable(sets []router.Set) (*table, error) {
	r, err := router.New(router.Options{Topology: router.Static(sets...), ClusterID: clusterID, BucketCount: bucketCount})
	return &table{r}, err
}

func (t *table) close() { t.router.Close() }

// insert writes a band.
func (t *table) insert(ctx context.Context, b Band) error {
	hash, err := shard.MPCRC32(b.Name)
	if err != nil {
		return err
	}
	args, err := json.Marshal(insert{Hash: hash, Band: b})
	if err != nil {
		return err
	}
	// Inserting the same band again does no harm, so a try whose outcome is unknown is
	// repeated.
	_, err = t.router.CallIdempotent(ctx, shard.BucketOf(hash, bucketCount), "bands.insert", args)
	return err
}

var genres = []string{"folk", "jazz", "polka"}

// fill inserts bands from..to-1.
func (t *table) fill(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		if err := t.insert(ctx, Band{Name: fmt.Sprintf("Band %d", i), Genre: genres[i%len(genres)], Year: 1950 + i%70}); err != nil {
			return err
		}
	}
	return nil
}

// get reads a band.
func (t *table) get(ctx context.Context, name string) (b Band, err error) {
	bucket, err := t.router.BucketID(name)
	if err != nil {
		return b, err
	}
	row, err := t.router.Call(ctx, bucket, router.CallRO, "bands.get", []byte(name))
	if err != nil {
		return b, err
	}
	if len(row) == 0 {
		return b, fmt.Errorf("there is no band %q", name)
	}
	return b, json.Unmarshal(row, &b)
}

// report counts the bands of each genre, in two ways that must agree.
func (t *table) report(ctx context.Context) error {
	parts, err := t.router.MapCallRO(ctx, nil, "bands.count_by_genre", nil)
	if err != nil {
		return err
	}
	total := map[string]int{}
	for _, part := range parts {
		var counts map[string]int
		if err := json.Unmarshal(part, &counts); err != nil {
			return err
		}
		for genre, n := range counts {
			total[genre] += n
		}
	}
	for _, genre := range slices.Sorted(maps.Keys(total)) {
		lists, err := t.router.MapCallRO(ctx, nil, "bands.by_genre", []byte(genre))
		if err != nil {
			return err
		}
		listed := 0
		for _, list := range lists {
			var names []string
			if err := json.Unmarshal(list, &names); err != nil {
				return err
			}
			listed += len(names)
		}
		if listed != total[genre] {
			return fmt.Errorf("%d bands of %s were counted, %d listed", total[genre], genre, listed)
		}
		fmt.Printf("%s: %d bands\n", genre, listed)
	}
	return nil
}
