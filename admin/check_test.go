package admin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// drifting makes registries with a write function that, against the rules, writes something else on every
// member.
func drifting() func() *storage.Registry {
	var n atomic.Int32
	return func() *storage.Registry {
		who := fmt.Sprint(n.Add(1))
		r := storage.NewRegistry()
		r.Register("drift", func(tx *storage.Tx, _ []byte) ([]byte, error) {
			return nil, tx.Put(storage.SpaceKV, 0, []byte("drifting"), []byte(who))
		})
		return r
	}
}

func TestCheck_findsRowsThatDiffer(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a"}, Members: 3, Functions: drifting()}})
	ctx := testContext(t)
	for b := range uint32(testBuckets) {
		args := storage.KVPutArgs(0, []byte("k"), fmt.Append(nil, b))
		if _, err := c.client.CallFunction(ctx, &v1.CallFunctionRequest{Function: storage.KVPut, Args: args, Mode: v1.CallMode_CALL_MODE_RW, Bucket: b + 1}); err != nil {
			t.Fatal(err)
		}
	}
	c.checkUntil(t, "before", &v1.CheckStoreRequest{}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		return clean(found, sum) && sum.GetRows() == testBuckets && sum.GetMembers() == 3
	})
	if _, err := c.client.CallFunction(ctx, &v1.CallFunctionRequest{Function: "drift", Mode: v1.CallMode_CALL_MODE_RW, Bucket: 5}); err != nil {
		t.Fatal(err)
	}
	c.checkUntil(t, "after", &v1.CheckStoreRequest{}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		for _, f := range found {
			if f.GetKind() != kindRowsDiffer || f.GetMember() == "" || spansOfText(f) != "5-5" || !strings.Contains(f.GetText(), "bucket 5 has 2 rows") || f.GetRepair() == "" {
				return false
			}
		}
		return len(found) == 2 && !sum.GetOk()
	})
	c.checkUntil(t, "the others", &v1.CheckStoreRequest{Buckets: []*v1.BucketSpan{spans(6, 24)}}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		return clean(found, sum) && sum.GetBuckets() == 19
	})
}

func spansOfText(f *v1.StoreFinding) (out string) {
	for _, s := range f.GetBuckets() {
		out += fmt.Sprintf("%d-%d", s.GetFirst(), s.GetLast())
	}
	return out
}

func TestCheck_isCleanWhileBucketsAreWrittenAndMove(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Members: 2}})
	r, err := c.Router()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	var stop atomic.Bool
	var wg sync.WaitGroup
	ctx := testContext(t)
	var writes, moves atomic.Int64
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			key := fmt.Sprint(i % 200)
			args := storage.KVPutArgs(shard.MPCRC32String(key), []byte(key), fmt.Append(nil, i))
			if _, err := r.Call(ctx, shard.BucketID(i%testBuckets+1), router.CallRW, storage.KVPut, args); err != nil {
				t.Errorf("write %d: %v", i, err)
				return
			}
			writes.Add(1)
		}
	})
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			to := [...]string{"b", "a"}[i%2]
			if _, err := r.SendBuckets(ctx, []shard.BucketID{1, 2, 3, 4}, to); err != nil && ctx.Err() == nil {
				t.Errorf("move %d: %v", i, err)
				return
			}
			moves.Add(1)
		}
	})
	defer func() { stop.Store(true); wg.Wait() }()
	eventually(t, "there is load", func() bool { return writes.Load() > 50 && moves.Load() > 1 })
	for range 3 {
		found, _ := c.check(t, &v1.CheckStoreRequest{})
		for _, f := range found {
			// That it cannot be compared under this load is no fault, nor that a slow machine is slow.
			if f.GetSeverity() != severityWarning && f.GetKind() != kindUnreachable && f.GetKind() != kindNotChecked {
				t.Errorf("%v", f)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	c.checkUntil(t, "at rest", &v1.CheckStoreRequest{}, clean)
}

func TestCheck_saysWhoDoesNotAnswer(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Members: 3}})
	master, err := c.Master(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	var replica *localsets.Member
	for _, m := range c.Members("b") {
		if m != master {
			replica = m
		}
	}
	replica.Kill()
	c.checkUntil(t, "with one down", &v1.CheckStoreRequest{}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		return !sum.GetOk() && len(found) == 1 && found[0].GetKind() == kindUnreachable && found[0].GetMember() == replica.ID &&
			strings.Contains(found[0].GetRepair(), "remove-member b "+replica.ID)
	})
	for _, m := range c.Members("b") {
		m.Kill()
	}
	c.checkUntil(t, "with the set down", &v1.CheckStoreRequest{}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		kinds := map[string]int{}
		for _, f := range found {
			kinds[f.GetKind()]++
		}
		return !sum.GetOk() && kinds[kindUnreachable] == 4
	})
}

func TestCheck_endsWithItsCaller(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a"}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.service.checkStore(ctx, &v1.CheckStoreRequest{}, func(*v1.CheckStoreResponse) error { return ctx.Err() })
	if err == nil {
		t.Error("it went on")
	}
}

func TestJudgeOwner_saysHowToRepair(t *testing.T) {
	for name, x := range map[string]struct {
		at     []place
		silent []string
		kind   string
		repair string
	}{
		"nowhere":         {nil, nil, kindNoOwner, "force-create BUCKETS SET"},
		"lost on the way": {[]place{{"a", shard.Sent, "b", 3}}, nil, kindNoOwner, "force-create BUCKETS a"},
		"stuck":           {[]place{{"a", shard.Sent, "b", 3}, {"b", shard.Receiving, "a", 3}}, nil, kindMoving, "force-create BUCKETS b"},
		"maybe elsewhere": {nil, []string{"c"}, kindNotChecked, "may be on c"},
		"two":             {[]place{{"a", shard.Active, "", 3}, {"b", shard.Active, "", 4}}, nil, kindTwoOwners, "force-drop BUCKETS a"},
		"two alike":       {[]place{{"a", shard.Active, "", 3}, {"b", shard.Active, "", 3}}, nil, kindTwoOwners, "force-drop BUCKETS SET"},
	} {
		p := &places{at: [][]place{nil, x.at}, silent: x.silent}
		f := judgeOwner(1, p)
		if f.GetKind() != x.kind || !strings.Contains(f.GetRepair(), x.repair) || f.GetSeverity() != severityError {
			t.Errorf("%s: %v", name, f)
		}
	}
}
