package raftengine

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// putter writes one row per command: args are its key and value.
type putter struct{ rows int }

func (putter) Reset(engine.Reader) error { return nil }

func (p putter) Apply(tx engine.Tx, cmd *engine.Command) ([]byte, error) {
	if p.rows > 0 {
		return nil, p.batch(tx, cmd)
	}
	k, v := tx.Put(13, len(cmd.Args)-8)
	binary.BigEndian.PutUint32(k, uint32(cmd.Bucket))
	copy(k[5:], cmd.Args[:8])
	copy(v, cmd.Args[8:])
	return nil, nil
}

var metaKey = []byte{0, 0, 0, 1, 1, 'm'}

// batch is the shape of a queue's command: read the row that the command before wrote,
// write it again and many others.
func (p putter) batch(tx engine.Tx, cmd *engine.Command) error {
	v, _, err := tx.Get(metaKey)
	if err != nil {
		return err
	}
	var n uint64
	if len(v) == 8 {
		n = binary.BigEndian.Uint64(v)
	}
	size := len(cmd.Args) / p.rows
	for i := range p.rows {
		k, v := tx.Put(13, size)
		binary.BigEndian.PutUint32(k, 1)
		n++
		binary.BigEndian.PutUint64(k[5:], n)
		copy(v, cmd.Args[i*size:])
	}
	k, v := tx.Put(len(metaKey), 8)
	copy(k, metaKey)
	binary.BigEndian.PutUint64(v, n)
	return nil
}

func benchEngine(b *testing.B, opts Options) *Engine {
	b.Helper()
	if !opts.Memory {
		opts.Dir = b.TempDir()
	}
	e, err := Open(context.Background(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return e
}

func benchModes(b *testing.B, run func(b *testing.B, opts Options)) {
	for _, m := range []struct {
		name string
		opts Options
	}{{"memory", Options{Memory: true}}, {"fsync", Options{}}, {"interval", Options{Durability: Interval}}} {
		b.Run(m.name, func(b *testing.B) { run(b, m.opts) })
	}
}

func BenchmarkPropose_serial(b *testing.B) {
	benchModes(b, func(b *testing.B, opts Options) {
		opts.Machine = putter{}
		e := benchEngine(b, opts)
		args := make([]byte, 8+256)
		ch := make(chan error, 1)
		done := func(_ []byte, err error) { ch <- err }
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			binary.BigEndian.PutUint64(args, uint64(i))
			e.Propose(engine.Command{Function: "put", Bucket: 1, Args: args}, done)
			if err := <-ch; err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPropose_64callers(b *testing.B) {
	benchModes(b, func(b *testing.B, opts Options) {
		opts.Machine = putter{}
		e := benchEngine(b, opts)
		b.ReportAllocs()
		b.ResetTimer()
		var wg sync.WaitGroup
		for c := range 64 {
			wg.Go(func() {
				args := make([]byte, 8+256)
				ch := make(chan error, 1)
				done := func(_ []byte, err error) { ch <- err }
				for i := c; i < b.N; i += 64 {
					binary.BigEndian.PutUint64(args, uint64(i))
					e.Propose(engine.Command{Function: "put", Bucket: 1, Args: args}, done)
					if err := <-ch; err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
	})
}

func BenchmarkPropose_batch(b *testing.B) {
	for _, rows := range []int{10, 1000} {
		b.Run(fmt.Sprintf("%drows", rows), func(b *testing.B) {
			benchModes(b, func(b *testing.B, opts Options) {
				opts.Machine = putter{rows: rows}
				e := benchEngine(b, opts)
				slots := make(chan []byte, 4)
				for range cap(slots) {
					slots <- make([]byte, rows*256)
				}
				b.ReportAllocs()
				b.SetBytes(int64(rows * 256))
				b.ResetTimer()
				for range b.N {
					args := <-slots
					e.Propose(engine.Command{Function: "batch", Bucket: 1, Args: args}, func(_ []byte, err error) {
						if err != nil {
							b.Error(err)
						}
						slots <- args
					})
				}
				for range cap(slots) {
					<-slots
				}
				b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		})
	}
}
