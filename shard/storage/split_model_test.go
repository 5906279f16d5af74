package storage

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// scriptEngine is a map that applies commands at once. As long as it is no master, nothing runs
// in the background.
type scriptEngine struct {
	engine.Engine
	master atomic.Bool
	rows   map[string]string
	m      engine.Machine
}

type scriptReader map[string]string

func (r scriptReader) Get(key []byte) ([]byte, bool, error) {
	v, ok := r[string(key)]
	return []byte(v), ok, nil
}

func (r scriptReader) Scan(from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	keys := slices.Sorted(maps.Keys(r))
	if reverse {
		slices.Reverse(keys)
	}
	for _, k := range keys {
		if k >= string(from) && k < string(to) && !fn([]byte(k), []byte(r[k])) {
			break
		}
	}
	return nil
}

// scriptTx notes writes and carries them out in their order.
type scriptTx struct {
	scriptReader
	todo []func(map[string]string)
}

func (t *scriptTx) Put(keyLen, valueLen int) (key, value []byte) {
	key, value = make([]byte, keyLen), make([]byte, valueLen)
	t.todo = append(t.todo, func(m map[string]string) { m[string(key)] = string(value) })
	return key, value
}

func (t *scriptTx) Delete(keyLen int) (key []byte) {
	key = make([]byte, keyLen)
	t.todo = append(t.todo, func(m map[string]string) { delete(m, string(key)) })
	return key
}

func (t *scriptTx) DeleteRange(from, to []byte) {
	f, e := string(from), string(to)
	t.todo = append(t.todo, func(m map[string]string) {
		maps.DeleteFunc(m, func(k, _ string) bool { return k >= f && k < e })
	})
}

func (*scriptTx) Settle() error { return nil }

func (e *scriptEngine) Propose(cmd engine.Command, done func([]byte, error)) {
	tx := &scriptTx{scriptReader: maps.Clone(e.rows)}
	result, err := e.m.Apply(tx, &cmd)
	if err == nil {
		for _, do := range tx.todo {
			do(e.rows)
		}
	}
	done(result, err)
}

func (e *scriptEngine) View(_ context.Context, fn func(engine.Reader) error) error {
	return fn(scriptReader(maps.Clone(e.rows)))
}

func (*scriptEngine) ReadBarrier(context.Context) error { return nil }
func (*scriptEngine) Close(context.Context) error       { return nil }

func (e *scriptEngine) Status() engine.Status {
	if e.master.Load() {
		return engine.Status{State: engine.Master}
	}
	return engine.Status{State: engine.Replica}
}

// restart makes the storage know what a new one would know of the rows.
func (e *scriptEngine) restart(t *testing.T, rows map[string]string) {
	t.Helper()
	e.rows = maps.Clone(rows)
	if err := e.m.Reset(scriptReader(e.rows)); err != nil {
		t.Fatal(err)
	}
}

func openScript(t *testing.T, count uint32) (*Storage, *scriptEngine) {
	t.Helper()
	reg := NewRegistry()
	reg.Register("range", func(tx *Tx, args []byte) ([]byte, error) {
		return nil, tx.DeleteRange(SpaceKV, args[:1], args[1:])
	})
	// A row that is put, a range that may have it, and one that is put again.
	reg.Register("mix", func(tx *Tx, args []byte) ([]byte, error) {
		return nil, errors.Join(tx.Put(SpaceKV, uint32(args[0]), args[1:2], []byte("1")), tx.DeleteRange(SpaceKV, args[1:2], nil),
			tx.PutParts(SpaceKV, uint32(args[3]), args[2:3], []byte("2")))
	})
	reg.Register("undo", func(tx *Tx, args []byte) ([]byte, error) {
		return nil, errors.Join(tx.Put(SpaceKV, uint32(args[0]), args[1:2], []byte("1")), tx.Delete(SpaceKV, args[1:2]))
	})
	reg.Register("drop", func(tx *Tx, args []byte) ([]byte, error) { return nil, tx.Delete(SpaceKV, args) })
	reg.Register("list", func(tx *Tx, _ []byte) ([]byte, error) {
		var out []byte
		err := tx.Scan(SpaceKV, nil, nil, false, func(key, value []byte) bool {
			out = append(append(out, key...), value...)
			return true
		})
		return out, err
	})
	e := &scriptEngine{rows: map[string]string{}}
	s, err := Open(testContext(t), Options{Registry: reg, BucketCount: count, ReplicaSet: "a",
		OpenEngine: func(_ context.Context, m engine.Machine) (engine.Engine, error) {
			e.m = m
			return e, m.Reset(scriptReader(e.rows))
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s, e
}

var deepSplit = flag.Bool("deep", false, "explore the splitting of a bucket with a fourth key: 2268 states, minutes with the race detector")

// The model has one bucket of two that is split, 1 into 1 and 3, with keys of both halves.
const modelCount = 2

var modelKeys = map[byte]uint32{'a': 0, 'b': 2, 'c': 4} // to the hash of their sharding key

// modelBucket is where a key lies for a caller.
func modelBucket(key byte, count uint32) shard.BucketID {
	return shard.BucketOf(modelKeys[key], count)
}

// modelOp is a call, and what it does to the rows that callers see.
type modelOp struct {
	name  string
	count uint32 // that the caller knows
	b     shard.BucketID
	fn    string
	args  []byte
	do    func(rows map[byte]string)
}

func modelOps() (ops []modelOp) {
	for _, count := range []uint32{modelCount, 2 * modelCount} {
		add := func(b shard.BucketID, fn string, args []byte, do func(map[byte]string)) {
			ops = append(ops, modelOp{fmt.Sprintf("%s(%q) on bucket %d of %d", fn, args, b, count), count, b, fn, args, do})
		}
		for key, hash := range modelKeys {
			b := modelBucket(key, count)
			for _, v := range []string{"1", "2"} {
				add(b, KVPut, KVPutArgs(hash, []byte{key}, []byte(v)), func(m map[byte]string) { m[key] = v })
			}
			add(b, KVDelete, KVDeleteArgs([]byte{key}), func(m map[byte]string) { delete(m, key) })
			add(b, KVCAS, KVCASArgs(hash, []byte{key}, []byte("1"), []byte("2")), func(m map[byte]string) {
				if m[key] == "1" {
					m[key] = "2"
				}
			})
			add(b, KVCAS, KVCASArgs(hash, []byte{key}, []byte("2"), nil), func(m map[byte]string) {
				if m[key] == "2" {
					delete(m, key)
				}
			})
			add(b, "undo", []byte{byte(hash), key}, func(m map[byte]string) { delete(m, key) })
			// Of a key that is not the bucket's there is nothing.
			if count > modelCount {
				other := (b+1)%4 + 1
				add(other, "drop", []byte{key}, func(map[byte]string) {})
			}
			for to, toHash := range modelKeys {
				if modelBucket(to, count) != b {
					continue
				}
				add(b, "mix", []byte{byte(hash), key, to, byte(toHash)}, func(m map[byte]string) {
					maps.DeleteFunc(m, func(k byte, _ string) bool { return k >= key && modelBucket(k, count) == b })
					m[to] = "2"
				})
			}
		}
		for b := shard.BucketID(1); uint32(b) <= count; b += modelCount {
			for _, r := range []string{"ac", "ae", "bd", "bc", "ce", "ca"} {
				add(b, "range", []byte(r), func(m map[byte]string) {
					maps.DeleteFunc(m, func(k byte, _ string) bool { return k >= r[0] && k < r[1] && modelBucket(k, count) == b })
				})
			}
		}
	}
	return ops
}

// checkModel compares all that callers can see with what they should.
func checkModel(t *testing.T, s *Storage, counts []uint32, want map[byte]string, story string) {
	t.Helper()
	ctx := context.Background()
	for _, count := range counts {
		for b := shard.BucketID(1); uint32(b) <= count; b += modelCount {
			var list string
			err := s.view(ctx, count, b, func(v *View) error {
				for key := range modelKeys {
					w, there := want[key]
					there = there && modelBucket(key, count) == b
					got, ok, err := v.Get(SpaceKV, []byte{key})
					if err != nil || ok != there || ok && string(got) != w {
						t.Fatalf("%s\nbucket %d of %d, key %c: %q, %v, %v; want %q, %v", story, b, count, key, got, ok, err, w, there)
					}
				}
				for _, r := range []string{"ae", "bd", "ac", "ce", "bc"} {
					for _, reverse := range []bool{false, true} {
						for stop := 1; stop <= 5; stop += 2 {
							var have, should []string
							err := v.Scan(SpaceKV, []byte(r[:1]), []byte(r[1:]), reverse, func(k, val []byte) bool {
								have = append(have, string(k)+string(val))
								return len(have) < stop
							})
							for _, k := range slices.Sorted(maps.Keys(want)) {
								if k >= r[0] && k < r[1] && modelBucket(k, count) == b {
									should = append(should, string(k)+want[k])
								}
							}
							if reverse {
								slices.Reverse(should)
							}
							should = should[:min(stop, len(should))]
							if err != nil || !slices.Equal(have, should) {
								t.Fatalf("%s\nbucket %d of %d, scan of %s, reverse %v: %v, %v; want %v", story, b, count, r, reverse, have, err, should)
							}
							if r == "ae" && !reverse && stop == 5 {
								list = strings.Join(have, "")
							}
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%s\nbucket %d of %d: %v", story, b, count, err)
			}
			// Write functions see the same.
			if got, err := s.write(ctx, count, b, "list", nil); err != nil || string(got) != list {
				t.Fatalf("%s\nbucket %d of %d in a write function: %q, %v; want %q", story, b, count, got, err, list)
			}
		}
	}
}

func dump(rows map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "%q=%q\n", k, rows[k])
	}
	return b.String()
}

// TestSplit_everyCommandInEveryState explores every state that a bucket with a few keys can come
// to while it is split, by every command of callers of both counts and every step, each of them
// after a restart. In each state all callers see what they would if there were no doubling.
func TestSplit_everyCommandInEveryState(t *testing.T) {
	if *deepSplit {
		modelKeys['d'] = 6
		defer delete(modelKeys, 'd')
	}
	s, e := openScript(t, modelCount)
	ctx := testContext(t)
	if err := errors.Join(s.Bootstrap(ctx), s.HoldMoves(ctx, modelCount), s.BeginSplit(ctx, modelCount)); err != nil {
		t.Fatal(err)
	}
	type state struct {
		rows map[string]string
		want map[byte]string
		from string
	}
	ops := modelOps()
	both := []uint32{modelCount, 2 * modelCount}
	seen := map[string]bool{}
	queue := []state{{maps.Clone(e.rows), map[byte]string{}, "the beginning"}}
	transitions, finished := 0, 0
	add := func(want map[byte]string, how string, from *state) {
		transitions++
		key := dump(e.rows)
		if seen[key] {
			// It was checked with the rows that it should have.
			checkKeys(t, s, want, how)
			return
		}
		seen[key] = true
		story := fmt.Sprintf("%s\nafter %s\nin state\n%s", from.from, how, key)
		checkModel(t, s, both, want, story)
		queue = append(queue, state{maps.Clone(e.rows), want, how})
	}
	seen[dump(e.rows)] = true
	for len(queue) > 0 {
		now := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, op := range ops {
			e.restart(t, now.rows)
			want := maps.Clone(now.want)
			if _, err := s.write(ctx, op.count, op.b, op.fn, op.args); err != nil {
				t.Fatalf("%s in state\n%s%v", op.name, dump(now.rows), err)
			}
			op.do(want)
			add(want, op.name, &now)
		}
		e.restart(t, now.rows)
		if _, err := s.system(ctx, fnSplitStep, splitStep{first: 1, buckets: 1, rows: 1, bytes: 1}.encode()); err != nil {
			t.Fatal(err)
		}
		add(maps.Clone(now.want), "a step", &now)
		if s.unsplit(s.splits.state.Load(), 1) > 1 || s.unsplit(s.splits.state.Load(), 1) == 0 {
			// Bucket 1 is split; with bucket 2 the doubling can be finished.
			finish(t, s, ctx)
			checkModel(t, s, both[1:], now.want, "finished from\n"+dump(now.rows))
			finished++
		}
	}
	t.Logf("%d states, %d transitions, finished %d times", len(seen), transitions, finished)
	if len(seen) < 200 || finished == 0 {
		t.Errorf("%d states, finished %d times: that cannot be all", len(seen), finished)
	}
}

// checkKeys compares the rows that the widest caller sees.
func checkKeys(t *testing.T, s *Storage, want map[byte]string, how string) {
	t.Helper()
	got := map[byte]string{}
	err := s.view(context.Background(), modelCount, 1, func(v *View) error {
		return v.Scan(SpaceKV, nil, nil, false, func(k, val []byte) bool { got[k[0]] = string(val); return true })
	})
	if err != nil || !maps.Equal(got, want) {
		t.Fatalf("after %s: %v, %v; want %v", how, got, err, want)
	}
}

// finish splits what is left and finishes the doubling.
func finish(t *testing.T, s *Storage, ctx context.Context) {
	t.Helper()
	if s.unsplit(s.splits.state.Load(), 1) != 0 {
		if err := s.FinishSplit(ctx, modelCount, false); !errors.Is(err, shard.SplitIsInProgress) {
			t.Fatalf("finished too early: %v", err)
		}
	}
	for range 2 {
		if _, err := s.system(ctx, fnSplitStep, splitStep{first: 1, buckets: 10, rows: 1000, bytes: 1000}.encode()); err != nil && !errors.Is(err, shard.SplitIsInProgress) {
			t.Fatal(err)
		}
	}
	for range 2 { // again: nothing
		if err := s.FinishSplit(ctx, modelCount, false); err != nil {
			t.Fatal(err)
		}
	}
	// What was on its way, and what comes later, with the old count.
	s.eng.Propose(engine.Command{Function: KVPut, Bucket: 1, Args: KVPutArgs(0, []byte("a"), []byte("lost"))}, func(_ []byte, err error) {
		if !errors.Is(err, shard.InvalidConfig) {
			t.Fatalf("a command of the old view: %v", err)
		}
	})
	if _, err := s.Write(ctx, 1, KVPut, KVPutArgs(0, []byte("a"), []byte("lost"))); !errors.Is(err, shard.InvalidConfig) || !strings.Contains(err.Error(), "doubled") {
		t.Fatalf("a write of the old view: %v", err)
	}
	if _, err := s.Read(ctx, 1, KVGet, KVGetArgs([]byte("a"))); !errors.Is(err, shard.InvalidConfig) {
		t.Fatalf("a read of the old view: %v", err)
	}
}

// TestSplit_phasesAndWhatTheyRefuse goes the way of a doubling and tries what must not be.
func TestSplit_phasesAndWhatTheyRefuse(t *testing.T) {
	s, e := openScript(t, 4)
	ctx := testContext(t)
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	refused := func(want shard.Code, err error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	_, err := s.As(8)
	refused(shard.MasterNotSynced, err) // it may be behind
	e.master.Store(true)
	_, err = s.As(8)
	refused(shard.InvalidConfig, err)
	e.master.Store(false)
	refused(shard.SplitIsInProgress, s.BeginSplit(ctx, 4)) // not held
	refused(shard.InvalidConfig, s.HoldMoves(ctx, 3))
	refused(shard.InvalidConfig, s.HoldMoves(ctx, 8))
	for range 2 {
		if err := s.HoldMoves(ctx, 4); err != nil {
			t.Fatal(err)
		}
	}
	// Held: pins may change, moves may not begin.
	if err := errors.Join(s.Pin(ctx, []shard.BucketID{2}), s.SetReadOnly(ctx, []shard.BucketID{3}, true)); err != nil {
		t.Error(err)
	}
	send := func(kind shard.EventKind) error {
		out, err := s.propose(ctx, step{kind: kind, peer: "b", items: []stepItem{{bucket: 1, transfer: 9}}})
		if err == nil {
			err = out[0].err
		}
		return err
	}
	refused(shard.SplitIsInProgress, send(shard.EventSend))
	if err := errors.Join(s.ReleaseMoves(ctx, 4), send(shard.EventSend), s.HoldMoves(ctx, 4)); err != nil {
		t.Fatal(err)
	}
	refused(shard.TransferIsInProgress, s.BeginSplit(ctx, 4)) // the move is not over
	if err := send(shard.EventAbort); err != nil {
		t.Fatal(err)
	}
	// A row whose hash is not of its bucket would be lost to some.
	if _, err := s.Write(ctx, 1, KVPut, KVPutArgs(1, []byte("k"), nil)); err != nil {
		t.Fatal(err)
	}
	refused(shard.InvalidArguments, s.BeginSplit(ctx, 4))
	if _, err := s.Write(ctx, 1, KVDelete, KVDeleteArgs([]byte("k"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.BeginSplit(ctx, 4); err != nil {
			t.Fatal(err)
		}
	}
	refused(shard.SplitIsInProgress, s.ReleaseMoves(ctx, 4))
	refused(shard.SplitIsInProgress, send(shard.EventSend))
	refused(shard.SplitIsInProgress, s.Pin(ctx, []shard.BucketID{1}))
	refused(shard.SplitIsInProgress, s.SetBucketState(ctx, 1, shard.Pinned, ""))
	_, err = s.As(16)
	refused(shard.MasterNotSynced, err)
	_, err = s.As(7)
	refused(shard.InvalidConfig, err)
	twice, err := s.As(8)
	if err != nil {
		t.Fatal(err)
	}
	// Each half is in the state of the whole, before and after a restart.
	states := func() string {
		t.Helper()
		var all []string
		for b := shard.BucketID(1); b <= 8; b++ {
			state, _ := twice.BucketState(b)
			all = append(all, state.String())
		}
		if c := twice.BucketCounts(); c[shard.Active] != 4 || c[shard.Pinned] != 2 || c[shard.ReadOnly] != 2 {
			t.Errorf("counts of eight: %v", c)
		}
		if c := s.BucketCounts(); c[shard.Active] != 2 || c[shard.Pinned] != 1 || c[shard.ReadOnly] != 1 {
			t.Errorf("counts of four: %v", c)
		}
		return strings.Join(all, " ")
	}
	before := states()
	if want := "ACTIVE PINNED READONLY ACTIVE ACTIVE PINNED READONLY ACTIVE"; before != want {
		t.Errorf("states %s, want %s", before, want)
	}
	e.restart(t, e.rows)
	if after := states(); after != before {
		t.Errorf("after a restart %s", after)
	}
	// The new view takes only rows that are its own.
	_, err = twice.Write(ctx, 5, KVPut, KVPutArgs(0, []byte("k"), nil))
	refused(shard.InvalidArguments, err)
	_, err = twice.Write(ctx, 7, KVPut, KVPutArgs(6, []byte("k"), nil)) // read-only, as its lower half
	refused(shard.TransferIsInProgress, err)
	_, err = twice.Write(ctx, 9, KVPut, KVPutArgs(0, []byte("k"), nil))
	refused(shard.WrongBucket, err)
	_, err = s.Write(ctx, 5, KVPut, KVPutArgs(4, []byte("k"), nil))
	refused(shard.WrongBucket, err)
	refused(shard.SplitIsInProgress, s.FinishSplit(ctx, 4, false))
}

// TestSplit_largeRangeWaitsForTheSplit: a range that is too large to be deleted row by row is
// refused until the bucket is split, and that bucket comes first.
func TestSplit_largeRangeWaitsForTheSplit(t *testing.T) {
	s, _ := openScript(t, modelCount)
	ctx := testContext(t)
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	const n = 60
	value := bytes.Repeat([]byte("v"), maxRangeBytes/n+100)
	for i := range n {
		hash := uint32(2*i) + 1 // bucket 2, halves in turn
		if _, err := s.Write(ctx, 2, KVPut, KVPutArgs(hash, fmt.Appendf(nil, "a%03d", i), value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.HoldMoves(ctx, modelCount), s.BeginSplit(ctx, modelCount)); err != nil {
		t.Fatal(err)
	}
	twice, err := s.As(2 * modelCount)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := twice.Write(ctx, 4, "range", []byte("ab")); !errors.Is(err, shard.TransferIsInProgress) {
		t.Fatalf("a large range: %v", err)
	}
	if u := s.splits.nextUrgent(); u != 2 {
		t.Errorf("bucket %d is urgent, want 2", u)
	}
	steps := 0
	for s.splits.nextUrgent() != 0 {
		steps++
		if _, err := s.system(ctx, fnSplitStep, splitStep{first: 2, buckets: 1, rows: visitRows + 10, bytes: 1 << 20}.encode()); err != nil {
			t.Fatal(err)
		}
	}
	if steps < n/10 || steps > n/10+2 {
		t.Errorf("%d steps", steps)
	}
	if p := s.SplitProgress(); p.Rows != n || p.Moved != n/2 || p.Done != 1 || p.Buckets != 2 || p.Misplaced != 0 {
		t.Errorf("%+v", p)
	}
	if _, err := twice.Write(ctx, 4, "range", []byte("ab")); err != nil {
		t.Fatal(err)
	}
	out, err := s.Read(ctx, 2, KVScan, KVScanArgs(nil, nil, false, 1000))
	if err != nil {
		t.Fatal(err)
	}
	if rows, _, err := KVScanResult(out); err != nil || len(rows) != n/2 {
		t.Errorf("%d rows are left, %v; want %d", len(rows), err, n/2)
	}
}
