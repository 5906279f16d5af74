package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/switchyard-dev/switchyard/shard"
)

// kvOp is an operation on one key. A value of "" is no row.
type kvOp struct {
	key             int
	fn              string
	expected, value string
}

// kvOut is its outcome. unknown: the store stopped before it answered.
type kvOut struct {
	unknown bool
	done    bool
	found   string
}

// kvModel is a register per key with compare-and-set.
var kvModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, op := range h {
			k := op.Input.(kvOp).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(string), input.(kvOp), output.(kvOut)
		switch in.fn {
		case KVGet:
			return out.unknown || out.found == now, now
		case KVPut:
			return true, in.value
		case KVDelete:
			return out.unknown || out.done == (now != ""), ""
		default:
			hit := now == in.expected
			if !out.unknown && (out.done != hit || out.found != now) {
				return false, now
			}
			if hit {
				return true, in.value
			}
			return true, now
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// runKV carries out an operation.
func runKV(ctx context.Context, s *Storage, op kvOp) (kvOut, error) {
	key := fmt.Append(nil, op.key)
	bucket := shard.BucketOf(shard.MPCRC32Bytes(key), testBuckets)
	text := func(v string) []byte {
		if v == "" {
			return nil
		}
		return []byte(v)
	}
	var out kvOut
	var result []byte
	var err error
	switch op.fn {
	case KVGet:
		if result, err = s.Read(ctx, bucket, op.fn, KVGetArgs(key)); err == nil {
			var v []byte
			v, _, err = KVGetResult(result)
			out.found = string(v)
		}
	case KVPut:
		_, err = s.Write(ctx, bucket, op.fn, KVPutArgs(0, key, []byte(op.value)))
	case KVDelete:
		if result, err = s.Write(ctx, bucket, op.fn, KVDeleteArgs(key)); err == nil {
			out.done, err = KVDeleteResult(result)
		}
	case KVCAS:
		if result, err = s.Write(ctx, bucket, op.fn, KVCASArgs(0, key, text(op.expected), text(op.value))); err == nil {
			var v []byte
			out.done, v, err = KVCASResult(result)
			out.found = string(v)
		}
	}
	return out, err
}

// TestKV_isLinearizableOverRestarts lets clients work on a few keys while the store is
// stopped and started again on the same folder, mostly without a flush.
func TestKV_isLinearizableOverRestarts(t *testing.T) {
	const clients, keys, restarts = 8, 5, 8
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, dir := testContext(t), t.TempDir()
	start := time.Now()
	since := func() int64 { return int64(time.Since(start)) }
	var mu sync.Mutex
	var history []porcupine.Operation
	s := mustOpen(t, dir, NewRegistry())
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	for round := range restarts {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(round*clients+c)))
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					// Few values, so that compare-and-set hits now and then; mixed with unique ones.
					value := func() string {
						if rnd.IntN(2) == 0 {
							return fmt.Sprint(rnd.IntN(3))
						}
						return fmt.Sprintf("%d.%d.%d", round, c, n)
					}
					op := kvOp{key: rnd.IntN(keys), fn: []string{KVGet, KVGet, KVPut, KVDelete, KVCAS, KVCAS}[rnd.IntN(6)], value: value()}
					if rnd.IntN(3) > 0 {
						op.expected = fmt.Sprint(rnd.IntN(3))
					}
					called := since()
					out, err := runKV(ctx, s, op)
					returned := since()
					if err != nil {
						if !errors.Is(err, shard.StoreClosed) {
							t.Errorf("%+v: %v", op, err)
							return
						}
						if op.fn == KVGet {
							return
						}
						out, returned = kvOut{unknown: true}, math.MaxInt64
					}
					mu.Lock()
					history = append(history, porcupine.Operation{ClientId: round*clients + c, Input: op, Call: called, Output: out, Return: returned})
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
		enough := 300 * (round + 1)
		for n := 0; n < enough; {
			time.Sleep(time.Millisecond)
			mu.Lock()
			n = len(history)
			mu.Unlock()
			if ctx.Err() != nil {
				t.Fatal("too slow")
			}
		}
		// Mostly stop at once, with commands in flight and nothing flushed.
		closing, cancel := context.WithCancel(ctx)
		if round%4 != 3 {
			cancel()
		}
		if err := s.Close(closing); err != nil {
			t.Fatal(err)
		}
		cancel()
		close(stop)
		wg.Wait()
		s = mustOpen(t, dir, NewRegistry())
	}
	for k := range keys {
		op := kvOp{key: k, fn: KVGet}
		called := since()
		out, err := runKV(ctx, s, op)
		if err != nil {
			t.Fatal(err)
		}
		history = append(history, porcupine.Operation{ClientId: 1 << 20, Input: op, Call: called, Output: out, Return: since()})
	}
	unknown := 0
	for _, op := range history {
		if op.Output.(kvOut).unknown {
			unknown++
		}
	}
	t.Logf("%d operations, %d with unknown outcome", len(history), unknown)
	if result := porcupine.CheckOperationsTimeout(kvModel, history, 30*time.Second); result == porcupine.Illegal {
		t.Error("the history is not linearizable")
	} else if result == porcupine.Unknown {
		t.Log("the history was too hard to check in time")
	}
}

// TestKV_checkerSeesFaults: the model refuses histories with a lost write, a stale read
// and a compare-and-set that was done twice.
func TestKV_checkerSeesFaults(t *testing.T) {
	at := int64(0)
	op := func(in kvOp, out kvOut) porcupine.Operation {
		at += 10
		return porcupine.Operation{Input: in, Output: out, Call: at, Return: at + 5}
	}
	for name, h := range map[string][]porcupine.Operation{
		"a lost write": {op(kvOp{fn: KVPut, value: "1"}, kvOut{}), op(kvOp{fn: KVGet}, kvOut{})},
		"a stale read": {op(kvOp{fn: KVPut, value: "1"}, kvOut{}), op(kvOp{fn: KVPut, value: "2"}, kvOut{}), op(kvOp{fn: KVGet}, kvOut{found: "1"})},
		"two winners":  {op(kvOp{fn: KVCAS, value: "1"}, kvOut{done: true}), op(kvOp{fn: KVCAS, value: "2"}, kvOut{done: true})},
	} {
		if porcupine.CheckOperations(kvModel, h) {
			t.Errorf("%s was not seen", name)
		}
	}
}
