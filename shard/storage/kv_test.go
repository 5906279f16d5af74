package storage

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/switchyard-dev/switchyard/shard"
)

// kv calls the kv functions of one bucket.
type kv struct {
	t *testing.T
	s *Storage
}

func (k kv) write(fn string, args []byte) []byte {
	k.t.Helper()
	result, err := k.s.Write(testContext(k.t), 1, fn, args)
	if err != nil {
		k.t.Fatal(fn, err)
	}
	return result
}

func (k kv) get(key string) (string, bool) {
	k.t.Helper()
	result, err := k.s.Read(testContext(k.t), 1, KVGet, KVGetArgs([]byte(key)))
	if err != nil {
		k.t.Fatal(err)
	}
	v, ok, err := KVGetResult(result)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(v), ok
}

func TestKV_putGetDelete(t *testing.T) {
	k := kv{t, bootstrapped(t, NewRegistry())}
	if _, ok := k.get("a"); ok {
		t.Error("found before it was put")
	}
	k.write(KVPut, KVPutArgs(1, []byte("a"), []byte("1")))
	k.write(KVPut, KVPutArgs(1, []byte("empty"), nil))
	if v, ok := k.get("a"); v != "1" || !ok {
		t.Errorf("%q %v", v, ok)
	}
	if v, ok := k.get("empty"); v != "" || !ok {
		t.Errorf("an empty value: %q %v", v, ok)
	}
	for _, want := range []bool{true, false} {
		if found, err := KVDeleteResult(k.write(KVDelete, KVDeleteArgs([]byte("a")))); err != nil || found != want {
			t.Errorf("delete: %v %v, want %v", found, err, want)
		}
	}
	if _, ok := k.get("a"); ok {
		t.Error("found after it was deleted")
	}
}

func TestKV_compareAndSet(t *testing.T) {
	k := kv{t, bootstrapped(t, NewRegistry())}
	text := func(s string) []byte {
		if s == "-" {
			return nil
		}
		return []byte(s)
	}
	for i, c := range []struct {
		expected, value string // "-" is no row
		done            bool
		found, after    string
	}{
		{"x", "1", false, "-", "-"}, {"-", "1", true, "-", "1"}, {"-", "2", false, "1", "1"}, {"1", "2", true, "1", "2"},
		{"1", "3", false, "2", "2"}, {"2", "", true, "2", ""}, {"-", "4", false, "", ""}, {"", "-", true, "", "-"}, {"-", "-", true, "-", "-"},
	} {
		done, found, err := KVCASResult(k.write(KVCAS, KVCASArgs(0, []byte("k"), text(c.expected), text(c.value))))
		if err != nil || done != c.done || (found == nil) != (c.found == "-") || found != nil && string(found) != c.found {
			t.Errorf("step %d: done %v, found %q, %v", i, done, found, err)
		}
		if v, ok := k.get("k"); ok != (c.after != "-") || ok && v != c.after {
			t.Errorf("step %d: afterwards %q %v, want %q", i, v, ok, c.after)
		}
	}
}

func TestKV_scan(t *testing.T) {
	k := kv{t, bootstrapped(t, NewRegistry())}
	for i := range 10 {
		k.write(KVPut, KVPutArgs(0, fmt.Append(nil, i), fmt.Append(nil, "v", i)))
	}
	for _, c := range []struct {
		from, to []byte
		reverse  bool
		limit    int
		want     string
		more     bool
	}{
		{nil, nil, false, 100, "0123456789", false}, {nil, nil, false, 10, "0123456789", false}, {nil, nil, false, 3, "012", true},
		{[]byte("4"), []byte("7"), false, 100, "456", false}, {[]byte("4"), []byte("7"), true, 2, "65", true}, {[]byte("x"), nil, false, 5, "", false},
	} {
		result, err := k.s.Read(testContext(t), 1, KVScan, KVScanArgs(c.from, c.to, c.reverse, c.limit))
		if err != nil {
			t.Fatal(err)
		}
		rows, more, err := KVScanResult(result)
		got := ""
		for _, r := range rows {
			got += string(r.Key)
			if string(r.Value) != "v"+string(r.Key) {
				t.Errorf("row %q has %q", r.Key, r.Value)
			}
		}
		if err != nil || got != c.want || more != c.more {
			t.Errorf("%+v: %q %v %v", c, got, more, err)
		}
	}
	for _, limit := range []int{0, -1, MaxKVScan + 1} {
		if _, err := k.s.Read(testContext(t), 1, KVScan, KVScanArgs(nil, nil, false, limit)); !errors.Is(err, shard.InvalidArguments) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// FuzzKV_arguments feeds the kv functions bytes that nobody made.
func FuzzKV_arguments(f *testing.F) {
	s := bootstrapped(f, NewRegistry())
	for _, seed := range [][]byte{nil, {0}, {0xff}, KVPutArgs(1, []byte("k"), []byte("v")), KVCASArgs(1, []byte("k"), nil, []byte("v")),
		KVScanArgs([]byte("a"), []byte("b"), true, 5), KVGetArgs([]byte("k")), bytes.Repeat([]byte{0xff}, 20)} {
		f.Add(seed)
	}
	ctx := f.Context()
	f.Fuzz(func(t *testing.T, args []byte) {
		for _, fn := range []string{KVPut, KVDelete, KVCAS} {
			if _, err := s.Write(ctx, 1, fn, args); err != nil && !errors.Is(err, shard.InvalidArguments) {
				t.Errorf("%s: %v", fn, err)
			}
		}
		for _, fn := range []string{KVGet, KVScan} {
			if _, err := s.Read(ctx, 1, fn, args); err != nil && !errors.Is(err, shard.InvalidArguments) {
				t.Errorf("%s: %v", fn, err)
			}
		}
		// Results come from the wire too.
		_, _, _ = KVGetResult(args)
		_, _ = KVDeleteResult(args)
		_, _, _ = KVCASResult(args)
		_, _, _ = KVScanResult(args)
	})
}
