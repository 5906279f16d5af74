// Command growth shows that a large backlog costs no more than a small one: it
// measures a server's memory, its add rate and its drain rate with few and with many
// waiting tasks, and the rates of a queue that is filled and drained again and
// again.
//
//	go run ./growth -server ../bin/switchyard -many 5000000
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard"
)

var (
	server     = flag.String("server", "", "path of the switchyard binary")
	dir        = flag.String("dir", "", "folder for the data (default: a temporary one)")
	few        = flag.Int("few", 1000, "tasks of the small backlog")
	many       = flag.Int("many", 5_000_000, "tasks of the large backlog")
	sample     = flag.Int("sample", 1_000_000, "tasks of one measurement")
	rounds     = flag.Int("rounds", 10, "how often a queue is filled and drained")
	durability = flag.String("durability", "fsync", "fsync or interval")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *server == "" {
		log.Fatal("growth: -server is missing: build it with: go build -o bin/switchyard ./cmd/switchyard")
	}
	if *dir == "" {
		d, err := os.MkdirTemp("", "switchyard-growth-")
		if err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(d)
		*dir = d
	}
	if err := run(context.Background()); err != nil {
		log.Fatal("growth: ", err)
	}
}

// node is a running server.
type node struct {
	cmd  *exec.Cmd
	addr string
}

func start(ctx context.Context) (*node, time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	addr := l.Addr().String()
	l.Close()
	n := &node{exec.CommandContext(ctx, *server, "dev", "--data", *dir, "--listen", addr, "--durability", *durability), addr}
	n.cmd.Stderr = os.Stderr
	began := time.Now()
	if err := n.cmd.Start(); err != nil {
		return nil, 0, err
	}
	for time.Since(began) < time.Minute {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return n, time.Since(began), nil
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, 0, fmt.Errorf("the server was not ready within a minute")
}

func (n *node) stop(s os.Signal) (time.Duration, error) {
	began := time.Now()
	if err := n.cmd.Process.Signal(s); err != nil {
		return 0, err
	}
	_ = n.cmd.Wait()
	return time.Since(began), nil
}

// rss is the server's resident memory in MiB.
func (n *node) rss() float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// add adds n tasks in batches of 1000, with four requests in flight; it returns
// tasks per second.
func add(ctx context.Context, c *switchyard.Client, queue string, n int) (float64, error) {
	payload := bytes.Repeat([]byte("x"), 256)
	began := time.Now()
	errs := make(chan error, 4)
	var left atomic.Int64
	left.Store(int64(n))
	for range 4 {
		go func() {
			for {
				k := min(1000, 1000+int(left.Add(-1000)))
				if k <= 0 {
					errs <- nil
					return
				}
				tasks := make([]switchyard.Task, k)
				for i := range tasks {
					tasks[i] = switchyard.Task{Kind: "growth", Payload: payload}
				}
				results, err := c.AddMany(ctx, queue, tasks)
				if err == nil {
					for _, r := range results {
						if r.Err != nil {
							err = r.Err
						}
					}
				}
				if err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// drain completes n tasks with 64 handlers; it returns tasks per second.
func drain(ctx context.Context, c *switchyard.Client, queue string, n int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var done atomic.Int64
	mux := switchyard.NewMux()
	mux.HandleFunc("growth", func(context.Context, *switchyard.Job) error {
		if done.Add(1) == int64(n) {
			cancel()
		}
		return nil
	})
	began := time.Now()
	w := switchyard.NewWorker(c, queue, mux, switchyard.WorkerOptions{Concurrency: 64})
	if err := w.Run(ctx); err != nil {
		return 0, err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

func run(ctx context.Context) error {
	n, up, err := start(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = n.stop(os.Kill) }()
	fmt.Printf("start on an empty folder    %v\n", up.Round(time.Millisecond))
	c, err := switchyard.Dial(n.addr)
	if err != nil {
		return err
	}
	measure := func(backlog int, queue string) (rss, addRate, drainRate float64, err error) {
		if _, err = add(ctx, c, queue, backlog); err != nil {
			return
		}
		if addRate, err = add(ctx, c, queue, *sample); err != nil {
			return
		}
		rss = n.rss()
		drainRate, err = drain(ctx, c, queue, *sample)
		return
	}
	for _, backlog := range []int{*few, *many} {
		rss, a, d, err := measure(backlog, fmt.Sprintf("backlog-%d", backlog))
		if err != nil {
			return err
		}
		fmt.Printf("%9d waiting tasks     resident %4.0f MiB, add %7.0f/s, drain %7.0f/s\n", backlog, rss, a, d)
	}
	c.Close()
	if _, err := n.stop(os.Kill); err != nil {
		return err
	}
	if n, up, err = start(ctx); err != nil {
		return err
	}
	fmt.Printf("start after kill -9         %v\n", up.Round(time.Millisecond))
	down, err := n.stop(os.Interrupt)
	if err != nil {
		return err
	}
	fmt.Printf("stop                        %v\n", down.Round(time.Millisecond))
	if n, up, err = start(ctx); err != nil {
		return err
	}
	fmt.Printf("start after a clean stop    %v\n", up.Round(time.Millisecond))
	if c, err = switchyard.Dial(n.addr); err != nil {
		return err
	}
	defer c.Close()
	for i := range *rounds {
		a, err := add(ctx, c, "again", *sample)
		if err != nil {
			return err
		}
		d, err := drain(ctx, c, "again", *sample)
		if err != nil {
			return err
		}
		fmt.Printf("filled and drained %2d       add %7.0f/s, drain %7.0f/s\n", i+1, a, d)
	}
	return nil
}
