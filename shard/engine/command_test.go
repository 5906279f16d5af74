package engine

import (
	"bytes"
	"testing"
	"time"
)

func TestHead_roundTrip(t *testing.T) {
	var names Names
	in := Command{Function: "kv.put", Bucket: 2999, View: 3, Time: time.Unix(1700000000, 123456789)}
	head := AppendHead(nil, &in)
	out := Command{Args: []byte("kept")}
	if err := ParseHead(head, &names, &out); err != nil {
		t.Fatal(err)
	}
	if out.Function != in.Function || out.Bucket != in.Bucket || out.View != in.View || !out.Time.Equal(in.Time) || string(out.Args) != "kept" {
		t.Errorf("got %+v, want %+v", out, in)
	}
	if n := testing.AllocsPerRun(100, func() {
		head = AppendHead(head[:0], &in)
		if err := ParseHead(head, &names, &out); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHead_refusesWhatItDoesNotKnow(t *testing.T) {
	good := AppendHead(nil, &Command{Function: "f"})
	for name, change := range map[string]func([]byte) []byte{
		"short":         func(b []byte) []byte { return b[:10] },
		"newer version": func(b []byte) []byte { b[0]++; return b },
		"unknown view":  func(b []byte) []byte { b[1] = MaxView + 1; return b },
		"longer name":   func(b []byte) []byte { return append(b, 'x') },
		"shorter name":  func(b []byte) []byte { return b[:len(b)-1] },
		"empty":         func([]byte) []byte { return nil },
	} {
		var c Command
		if ParseHead(change(bytes.Clone(good)), &Names{}, &c) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParseHead(f *testing.F) {
	f.Add(AppendHead(nil, &Command{Function: "kv.put", Bucket: 1, Time: time.Unix(5, 0)}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, head []byte) {
		var c Command
		if ParseHead(head, &Names{}, &c) == nil && !bytes.Equal(AppendHead(nil, &c), head) {
			t.Errorf("%x is read as %+v, which is written differently", head, c)
		}
	})
}
