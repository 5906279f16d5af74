package switchyard_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard"
	"github.com/switchyard-dev/switchyard/server"
)

// BenchmarkDelivery measures how long a task is on its way from its add to the handler
// of the queue's only worker, side by side for queues of 1, 4 and 16 partitions: each
// round adds one task to each queue, in an order of chance, so that what disturbs one
// disturbs all. The worker of each queue has a connection of its own.
func BenchmarkDelivery(b *testing.B) {
	for _, disk := range []bool{false, true} {
		for _, rate := range []int{100, 1000} {
			for _, polls := range []int{1, 2} { // 2 is the default
				b.Run(fmt.Sprintf("disk=%t/rate=%d/polls=%d", disk, rate, polls), func(b *testing.B) { benchDelivery(b, disk, rate, polls) })
			}
		}
	}
}

func benchDelivery(b *testing.B, disk bool, rate, polls int) {
	dir := b.TempDir()
	address, stop, err := startNode(func(c *server.Config) {
		if disk {
			c.Memory, c.DataDir = false, dir
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			b.Error(err)
		}
	}()
	dial := func() *switchyard.Client {
		c, err := switchyard.Dial(address)
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	producer := dial()
	defer producer.Close()
	partitions := []int{1, 4, 16}
	took := make([][]time.Duration, len(partitions))
	var arrive sync.WaitGroup
	for i, n := range partitions {
		name := fmt.Sprintf("q%d", n)
		if _, err := producer.Queues().Create(b.Context(), name, switchyard.QueueConfig{Partitions: n}); err != nil {
			b.Fatal(err)
		}
		client := dial()
		defer client.Close()
		var mu sync.Mutex
		w := switchyard.NewWorker(client, name, switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
			d := time.Duration(time.Now().UnixNano() - int64(binary.BigEndian.Uint64(job.Payload)))
			mu.Lock()
			took[i] = append(took[i], d)
			mu.Unlock()
			arrive.Done()
			return nil
		}), switchyard.WorkerOptions{Polls: polls})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		defer func() {
			cancel()
			<-done
		}()
	}
	round := func() {
		var adds sync.WaitGroup
		arrive.Add(len(partitions))
		for _, i := range rand.Perm(len(partitions)) {
			adds.Go(func() {
				time.Sleep(time.Duration(rand.Int64N(int64(time.Second) / int64(rate))))
				payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
				if _, err := producer.Add(b.Context(), fmt.Sprintf("q%d", partitions[i]), switchyard.Task{Kind: "kind", Payload: payload}); err != nil {
					b.Error(err)
					arrive.Done()
				}
			})
		}
		adds.Wait()
	}
	for range 200 { // everything is loaded and connected
		round()
	}
	arrive.Wait()
	clear(took)
	b.ResetTimer()
	for range b.N {
		round()
	}
	arrive.Wait()
	b.StopTimer()
	at := func(i int, part float64) float64 {
		slices.Sort(took[i])
		return float64(took[i][int(part*float64(len(took[i])-1))].Nanoseconds()) / 1e3
	}
	for i, n := range partitions {
		b.ReportMetric(at(i, 0.5), fmt.Sprintf("p50-us/%d", n))
		b.ReportMetric(at(i, 0.99), fmt.Sprintf("p99-us/%d", n))
		if i > 0 {
			b.ReportMetric(at(i, 0.99)/at(0, 0.99), fmt.Sprintf("p99-ratio/%d", n))
		}
	}
	b.ReportMetric(float64(len(partitions)*b.N)/b.Elapsed().Seconds(), "tasks/s")
}
