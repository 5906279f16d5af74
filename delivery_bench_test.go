package switchyard_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
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
				b.Run(fmt.Sprintf("nodes=1/disk=%t/rate=%d/polls=%d", disk, rate, polls), func(b *testing.B) { benchDelivery(b, 1, disk, rate, polls) })
			}
		}
	}
	// One replica set of three.
	b.Run("nodes=3/disk=true/rate=100/polls=2", func(b *testing.B) { benchDelivery(b, 3, true, 100, 2) })
}

// startNodes runs a node, or a cluster of three, and returns the address of one.
func startNodes(b *testing.B, n int, disk bool) string {
	var seed, address string
	for i := range n {
		dir := b.TempDir()
		var gossip string
		a, stop, err := startNode(func(c *server.Config) {
			if disk {
				c.Memory, c.DataDir = false, dir
			}
			if n == 1 {
				return
			}
			c.BucketCount = 30
			c.Node.Name = fmt.Sprint("n", i)
			c.Cluster.ID, c.Cluster.ReplicaSet, c.Cluster.AlignChanges = "bench", "s", 0
			c.Cluster.Listen, c.Cluster.Gossip = "127.0.0.1:0", freeAddress(b)
			if gossip = c.Cluster.Gossip; seed != "" {
				c.Cluster.Seeds = []string{seed}
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := stop(); err != nil {
				b.Error(err)
			}
		})
		if i == 0 {
			seed, address = gossip, a
		}
	}
	if n == 1 {
		return address
	}
	client, err := switchyard.Dial(address)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	operators := v1.NewClusterServiceClient(client.Conn())
	for {
		// It is refused until all three are seen.
		_, err := operators.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{ReplicaSets: 1, Members: 3})
		if err == nil {
			return address
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			b.Fatal(err)
		}
	}
}

// freeAddress is an address that nobody listens at.
func freeAddress(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func benchDelivery(b *testing.B, nodes int, disk bool, rate, polls int) {
	address := startNodes(b, nodes, disk)
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

// BenchmarkMixed measures one queue of a node with its data on disk by the number of its
// partitions: 64 goroutines add one task after the other while a worker of 64 handlers
// completes them. The processor time is that of client and node together.
func BenchmarkMixed(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("partitions=%d", n), func(b *testing.B) { benchMixed(b, n) })
	}
}

func benchMixed(b *testing.B, partitions int) {
	address := startNodes(b, 1, true)
	client, err := switchyard.Dial(address)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Queues().Create(b.Context(), "q", switchyard.QueueConfig{Partitions: partitions}); err != nil {
		b.Fatal(err)
	}
	var left, handled sync.WaitGroup
	w := switchyard.NewWorker(client, "q", switchyard.HandlerFunc(func(context.Context, *switchyard.Job) error {
		handled.Done()
		return nil
	}), switchyard.WorkerOptions{Concurrency: 64})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	add := func(n int) {
		handled.Add(n)
		var next atomic.Int64
		for range 64 {
			left.Go(func() {
				for next.Add(1) <= int64(n) {
					if _, err := client.Add(b.Context(), "q", switchyard.Task{Kind: "kind", Payload: make([]byte, 128)}); err != nil {
						b.Error(err)
						handled.Done()
					}
				}
			})
		}
		left.Wait()
		handled.Wait()
	}
	add(2000) // everything is loaded and connected
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ResetTimer()
	from := used()
	add(b.N)
	b.StopTimer()
	b.ReportMetric(float64((used()-from).Microseconds())/float64(b.N), "cpu-us/task")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}
