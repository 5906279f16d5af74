package raftengine

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// conveyor is a machine with the pattern of a queue: rows are written in order of a
// sequence number, read from a watermark on, leased by a second row, and deleted.
type conveyor struct{}

const conveyorBatch = 1000

func (conveyor) Reset(engine.Reader) error { return nil }

func conveyorKey(b []byte, space byte, seq uint64) {
	b[0], b[1], b[2], b[3], b[4] = 0, 0, 0, 1, space
	binary.BigEndian.PutUint64(b[5:], seq)
}

func (conveyor) Apply(tx engine.Tx, cmd *engine.Command) ([]byte, error) {
	if _, _, err := tx.Get(metaKey); err != nil {
		return nil, err
	}
	first := binary.BigEndian.Uint64(cmd.Args)
	for seq := first; seq < first+conveyorBatch; seq++ {
		switch cmd.Function {
		case "add":
			k, v := tx.Put(13, 300)
			conveyorKey(k, 2, seq)
			copy(v, cmd.Args[8:])
		case "lease":
			k, v := tx.Put(13, 40)
			conveyorKey(k, 3, seq)
			copy(v, cmd.Args[8:])
		case "done":
			conveyorKey(tx.Delete(13), 2, seq)
			conveyorKey(tx.Delete(13), 3, seq)
		}
	}
	k, v := tx.Put(len(metaKey), 8)
	copy(k, metaKey)
	binary.BigEndian.PutUint64(v, first)
	return nil, nil
}

// BenchmarkQueue_fillAndDrain fills and drains a queue of b.N × 1000 rows several times:
// the last round must be as fast as the first. Run with -benchtime=1000x.
func BenchmarkQueue_fillAndDrain(b *testing.B) {
	for _, rounds := range []int{10} {
		b.Run(fmt.Sprintf("%drounds", rounds), func(b *testing.B) {
			e := benchEngine(b, Options{Durability: Interval, Machine: conveyor{}})
			args := make(chan []byte, 4)
			for range cap(args) {
				args <- make([]byte, 8+300*conveyorBatch)
			}
			propose := func(fn string, seq uint64, n int) {
				buf := <-args
				binary.BigEndian.PutUint64(buf, seq)
				e.Propose(engine.Command{Function: fn, Bucket: 1, Args: buf[:n]}, func(_ []byte, err error) {
					if err != nil {
						b.Error(err)
					}
					args <- buf
				})
			}
			settle := func() {
				for range cap(args) {
					defer func(buf []byte) { args <- buf }(<-args)
				}
			}
			next := uint64(1)
			b.ResetTimer()
			for round := range rounds {
				start := time.Now()
				first := next
				for range b.N {
					propose("add", next, 8+300*conveyorBatch)
					next += conveyorBatch
				}
				settle()
				filled := time.Now()
				for seq := first; seq < next; seq += conveyorBatch {
					// The reader takes the next rows from its watermark on.
					n := 0
					err := e.View(context.Background(), func(r engine.Reader) error {
						var from, to [13]byte
						conveyorKey(from[:], 2, seq)
						conveyorKey(to[:], 3, 0)
						return r.Scan(from[:], to[:], false, func(k, v []byte) bool { n++; return n < conveyorBatch })
					})
					if err != nil || n != conveyorBatch {
						b.Fatalf("read %d rows: %v", n, err)
					}
					propose("lease", seq, 8+40)
					propose("done", seq, 8+40)
				}
				settle()
				rows := float64(b.N * conveyorBatch)
				b.Logf("round %2d: fill %7.0f rows/s, drain %7.0f rows/s", round, rows/filled.Sub(start).Seconds(), rows/time.Since(filled).Seconds())
			}
			b.Logf("\n%v", e.rows.Load().db.Metrics())
		})
	}
}

// BenchmarkOpen_bigLog measures a start with a full log behind the last snapshot.
func BenchmarkOpen_bigLog(b *testing.B) {
	for _, rows := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%drows", rows), func(b *testing.B) {
			o := Options{Dir: b.TempDir(), Durability: Interval, SnapshotBytes: 1 << 40}
			machine := putter{rows: rows}
			size := rows * 256
			if rows == 1 {
				machine.rows, size = 0, 8+256
			}
			o.Machine = machine
			e, err := Open(context.Background(), o)
			if err != nil {
				b.Fatal(err)
			}
			const logBytes = 128 << 20
			done := make(chan error, 64)
			inFlight := 0
			for n := 0; n < logBytes; n += size {
				args := make([]byte, size)
				binary.BigEndian.PutUint64(args, uint64(n))
				if inFlight == cap(done) {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
					inFlight--
				}
				inFlight++
				e.Propose(engine.Command{Function: "put", Bucket: 1, Args: args}, func(_ []byte, err error) { done <- err })
			}
			for range inFlight {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			if err := e.Close(ended); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				start := time.Now()
				e, err := Open(context.Background(), o)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(time.Since(start).Seconds(), "s/open")
				b.StopTimer()
				if err := e.Close(ended); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
