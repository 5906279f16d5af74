package wal

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func BenchmarkStoreLogs(b *testing.B) {
	for _, d := range []Durability{DurabilityFsync, DurabilityInterval, DurabilityNone} {
		for _, size := range []int{300, 300 << 10} {
			b.Run(fmt.Sprintf("%v/1x%d", d, size), func(b *testing.B) {
				l, _, err := Open(b.TempDir(), Options{Durability: d})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				index, kept := uint64(0), 0
				logs := []*raft.Log{{Term: 1, Data: make([]byte, size), AppendedAt: time.Now()}}
				for b.Loop() {
					index++
					logs[0].Index = index
					if err := l.StoreLogs(logs); err != nil {
						b.Fatal(err)
					}
					// As a raft node compacts its log.
					if kept += size; kept > 128<<20 {
						kept = 0
						if err := l.DeleteRange(0, index-1); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := l.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// filled returns a folder with a log of about 128 MiB that was not closed, so that nothing is proven at its end.
func filled(b *testing.B, size int) (string, uint64) {
	dir := b.TempDir()
	l, _, err := Open(dir, Options{Durability: DurabilityInterval})
	if err != nil {
		b.Fatal(err)
	}
	var index uint64
	for n := 0; n < 128<<20; n += 100 * size {
		var logs []*raft.Log
		for range 100 {
			index++
			logs = append(logs, &raft.Log{Index: index, Term: 1, Data: make([]byte, size)})
		}
		if err := l.StoreLogs(logs); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	return dir, index
}

func BenchmarkOpen(b *testing.B) {
	dir, _ := filled(b, 300)
	b.SetBytes(128 << 20)
	for b.Loop() {
		l, _, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetLog(b *testing.B) {
	dir, last := filled(b, 300)
	l, _, err := Open(dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, step := range []uint64{1, 7919} {
		b.Run(map[uint64]string{1: "sequential", 7919: "scattered"}[step], func(b *testing.B) {
			b.ReportAllocs()
			var e raft.Log
			i := uint64(0)
			for b.Loop() {
				if err := l.GetLog(1+i%last, &e); err != nil {
					b.Fatal(err)
				}
				i += step
			}
		})
	}
}
