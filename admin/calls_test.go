package admin

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func textKey(text string) *v1.ShardingKey {
	return &v1.ShardingKey{Parts: []*v1.ShardingKey_Part{{Value: &v1.ShardingKey_Part_Text{Text: text}}}}
}

func TestCall_findsTheBucketOfAKey(t *testing.T) {
	c, _ := newPair(t)
	ctx := testContext(t)
	if _, _, err := c.send(t, "b", spans(1, 12)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"x", "y", "z", "1", "2"} {
		put := &v1.CallFunctionRequest{Function: storage.KVPut, Args: storage.KVPutArgs(shard.MPCRC32String(key), []byte(key), []byte("v"+key)), Mode: v1.CallMode_CALL_MODE_RW, Key: textKey(key)}
		resp, err := c.client.CallFunction(ctx, put)
		if err != nil {
			t.Fatal(err)
		}
		where, err := c.client.LocateKey(ctx, &v1.LocateKeyRequest{Key: textKey(key)})
		if err != nil || where.GetBucket() != resp.GetBucket() || where.GetReplicaSet() != resp.GetReplicaSet() || where.GetState() != "ACTIVE" || where.GetHash() != shard.MPCRC32String(key) {
			t.Errorf("%s is at %v, %v, and was put at %v", key, where, err, resp)
		}
		for _, mode := range []v1.CallMode{v1.CallMode_CALL_MODE_RO, v1.CallMode_CALL_MODE_BRO, v1.CallMode_CALL_MODE_RE, v1.CallMode_CALL_MODE_BRE, v1.CallMode_CALL_MODE_MR} {
			got, err := c.client.CallFunction(ctx, &v1.CallFunctionRequest{Function: storage.KVGet, Args: storage.KVGetArgs([]byte(key)), Mode: mode, Bucket: resp.GetBucket()})
			if v, _, _ := storage.KVGetResult(got.GetResult()); err != nil || string(v) != "v"+key {
				t.Errorf("%v: %q, %v", mode, v, err)
			}
		}
	}
}

func TestCall_refusesWhatCannotBe(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Engine: raftengine.Options{MaxArgs: 1000}}})
	get := storage.KVGetArgs([]byte("k"))
	for name, x := range map[string]struct {
		req  *v1.CallFunctionRequest
		code codes.Code
		want shard.Code
	}{
		"no such function":       {&v1.CallFunctionRequest{Function: "nothing", Mode: v1.CallMode_CALL_MODE_RW, Bucket: 1}, codes.NotFound, shard.FunctionNotFound},
		"a write as a read":      {&v1.CallFunctionRequest{Function: storage.KVPut, Mode: v1.CallMode_CALL_MODE_RO, Bucket: 1}, codes.NotFound, shard.FunctionNotFound},
		"a bucket beyond":        {&v1.CallFunctionRequest{Function: storage.KVGet, Args: get, Mode: v1.CallMode_CALL_MODE_RO, Bucket: testBuckets + 1}, codes.InvalidArgument, shard.NoRouteToBucket},
		"neither bucket nor key": {&v1.CallFunctionRequest{Function: storage.KVGet, Args: get, Mode: v1.CallMode_CALL_MODE_RO}, codes.InvalidArgument, shard.InvalidArguments},
		"a key without parts":    {&v1.CallFunctionRequest{Function: storage.KVGet, Args: get, Mode: v1.CallMode_CALL_MODE_RO, Key: &v1.ShardingKey{}}, codes.InvalidArgument, shard.InvalidArguments},
		"no mode":                {&v1.CallFunctionRequest{Function: storage.KVGet, Args: get, Bucket: 1}, codes.InvalidArgument, shard.InvalidArguments},
		"wrong arguments":        {&v1.CallFunctionRequest{Function: storage.KVGet, Args: []byte{0xff}, Mode: v1.CallMode_CALL_MODE_RO, Bucket: 1}, codes.InvalidArgument, shard.InvalidArguments},
		"too large arguments":    {&v1.CallFunctionRequest{Function: storage.KVPut, Args: storage.KVPutArgs(0, []byte("k"), make([]byte, 2000)), Mode: v1.CallMode_CALL_MODE_RW, Bucket: 1}, codes.InvalidArgument, shard.ArgumentsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.client.CallFunction(testContext(t), x.req)
			wantReason(t, err, x.code, x.want)
		})
	}
	found, sum := c.check(t, &v1.CheckStoreRequest{})
	if !sum.GetOk() || sum.GetRows() != 0 {
		t.Errorf("something was written: %v, %v", sum, found)
	}
}

func TestMap_returnsAllResultsAndFailures(t *testing.T) {
	reg := func() *storage.Registry {
		r := storage.NewRegistry()
		r.Register("odd", func(tx *storage.Tx, _ []byte) ([]byte, error) {
			if tx.Bucket()%2 == 0 {
				return nil, errors.New("it is even")
			}
			return []byte("odd"), nil
		})
		return r
	}
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Functions: reg}})
	if _, _, err := c.send(t, "b", spans(1, 12)); err != nil {
		t.Fatal(err)
	}
	call := func(req *v1.MapFunctionRequest) (results map[uint32]string, failed []*v1.BucketFailure, err error) {
		stream, err := c.client.MapFunction(testContext(t), req)
		if err != nil {
			return nil, nil, err
		}
		results = map[uint32]string{}
		err = each(stream, func(resp *v1.MapFunctionResponse) error {
			for _, r := range resp.GetResults() {
				results[r.GetBucket()] = string(r.GetResult())
			}
			failed = append(failed, resp.GetFailed()...)
			return nil
		})
		return results, failed, err
	}
	results, failed, err := call(&v1.MapFunctionRequest{Function: "odd", Mode: v1.CallMode_CALL_MODE_RW})
	if err != nil || len(results) != 12 || len(failed) != 12 || results[23] != "odd" || failed[0].GetBucket() != 2 {
		t.Errorf("%v, %v, %v", results, failed, err)
	}
	results, failed, err = call(&v1.MapFunctionRequest{
		Function: storage.KVGet, Args: storage.KVGetArgs([]byte("k")), Mode: v1.CallMode_CALL_MODE_RO, Buckets: []*v1.BucketSpan{spans(11, 14)},
	})
	if err != nil || len(results) != 4 || len(failed) != 0 {
		t.Errorf("%v, %v, %v", results, failed, err)
	}
	_, _, err = call(&v1.MapFunctionRequest{Function: "nothing", Mode: v1.CallMode_CALL_MODE_RW})
	wantReason(t, err, codes.NotFound, shard.FunctionNotFound)
	_, _, err = call(&v1.MapFunctionRequest{Function: "odd", Mode: v1.CallMode_CALL_MODE_BRO})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidArguments)
	_, _, err = call(&v1.MapFunctionRequest{Function: "odd", Mode: v1.CallMode_CALL_MODE_RW, Buckets: []*v1.BucketSpan{spans(0, 3)}})
	wantReason(t, err, codes.InvalidArgument, shard.NoRouteToBucket)
}
