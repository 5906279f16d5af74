package storage

import (
	"errors"
	"slices"
	"testing"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

func TestBootstrapReplicaSet_goesOnAfterItWasCutShort(t *testing.T) {
	ctx := testContext(t)
	s := mustOpen(t, "", NewRegistry())
	req := &v1.BootstrapStorageRequest{
		ClusterId: "c", BucketCount: testBuckets, ReplicaSet: s.ReplicaSet(), Weight: 2,
		Buckets: []*v1.BucketRange{{First: 3, Last: 5}}, ReplicaSets: []string{s.ReplicaSet(), "other"},
	}
	// As if the process had died before the cluster id was written.
	if err := s.makeBuckets(ctx, req.GetBuckets()); err != nil {
		t.Fatal(err)
	}
	more := &v1.BootstrapStorageRequest{ClusterId: "c", BucketCount: testBuckets, ReplicaSet: s.ReplicaSet(), Buckets: []*v1.BucketRange{{First: 3, Last: 6}}}
	if err := s.BootstrapReplicaSet(ctx, more); !errors.Is(err, shard.NonEmpty) || s.ClusterID() != "" {
		t.Fatalf("with other buckets than before: %v, cluster %q", err, s.ClusterID())
	}
	if err := s.BootstrapReplicaSet(ctx, req); err != nil {
		t.Fatal(err)
	}
	if s.ClusterID() != "c" || s.Weight() != 2 || s.BucketCounts()[shard.Active] != 3 || !slices.Contains(s.KnownReplicaSets(), "other") {
		t.Errorf("cluster %q, weight %v, buckets %v, known %v", s.ClusterID(), s.Weight(), s.BucketCounts(), s.KnownReplicaSets())
	}
	if err := s.BootstrapReplicaSet(ctx, req); !errors.Is(err, shard.NonEmpty) {
		t.Errorf("a second time: %v", err)
	}
}

func TestBootstrapReplicaSet_refusesWhatCannotBe(t *testing.T) {
	ctx := testContext(t)
	s := mustOpen(t, "", NewRegistry())
	for name, c := range map[string]struct {
		change func(*v1.BootstrapStorageRequest)
		code   shard.Code
	}{
		"another replica set":  {func(r *v1.BootstrapStorageRequest) { r.ReplicaSet = "x" }, shard.InvalidConfig},
		"another bucket_count": {func(r *v1.BootstrapStorageRequest) { r.BucketCount = 17 }, shard.InvalidConfig},
		"no cluster id":        {func(r *v1.BootstrapStorageRequest) { r.ClusterId = "" }, shard.InvalidConfig},
		"a weight below zero":  {func(r *v1.BootstrapStorageRequest) { r.Weight = -1 }, shard.InvalidConfig},
		"a bucket beyond":      {func(r *v1.BootstrapStorageRequest) { r.Buckets[0].Last = testBuckets + 1 }, shard.InvalidConfig},
		"members without groups": {func(r *v1.BootstrapStorageRequest) {
			r.Members = []*v1.StorageMember{{Id: "m", Address: "h:1", Voter: true}}
		}, shard.InvalidConfig},
	} {
		req := &v1.BootstrapStorageRequest{ClusterId: "c", BucketCount: testBuckets, ReplicaSet: s.ReplicaSet(), Buckets: []*v1.BucketRange{{First: 1, Last: testBuckets}}}
		c.change(req)
		if err := s.BootstrapReplicaSet(ctx, req); !errors.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
		if s.ClusterID() != "" || s.BucketCounts()[shard.Absent] != testBuckets {
			t.Errorf("%s: something was done", name)
		}
	}
}

func TestBootstrapReplicaSet_drainedFromTheBeginning(t *testing.T) {
	s := mustOpen(t, "", NewRegistry())
	req := &v1.BootstrapStorageRequest{ClusterId: "c", BucketCount: testBuckets, ReplicaSet: s.ReplicaSet(), Drained: true}
	if err := s.BootstrapReplicaSet(testContext(t), req); err != nil || s.Weight() != 0 || s.BucketCounts()[shard.Absent] != testBuckets {
		t.Errorf("%v, weight %v, buckets %v", err, s.Weight(), s.BucketCounts())
	}
}
