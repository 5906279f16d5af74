package grpcretry

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/switchyard-dev/switchyard/balance/grpcbalance"
	"github.com/switchyard-dev/switchyard/internal/grpctest"
	"github.com/switchyard-dev/switchyard/retry"
)

// serverEnv makes a process of this test binary a server.
const serverEnv = "SWITCHYARD_GRPCRETRY_TEST_SERVER"

type healthServer struct {
	healthpb.UnimplementedHealthServer
}

func (healthServer) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	time.Sleep(time.Millisecond) // the work
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// serve runs a server until standard input ends, which is when its parent is gone.
func serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := grpc.NewServer(ServerOptions(ServerConfig{})...)
	healthpb.RegisterHealthServer(s, healthServer{})
	fmt.Println(l.Addr())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		s.Stop()
	}()
	_ = s.Serve(l) // ends with Stop
}

type process struct {
	cmd  *exec.Cmd
	addr string
}

func startProcess(t *testing.T) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd}
	t.Cleanup(func() {
		_ = stdin.Close()
		p.signal(t, syscall.SIGCONT)
		p.signal(t, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server says nothing: %v", err)
	}
	p.addr = strings.TrimSpace(line)
	return p
}

// signal sends to this very process, unless it has been waited for.
func (p *process) signal(t *testing.T, s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !strings.Contains(err.Error(), "already finished") {
		t.Error(err)
	}
}

const (
	perSecond = 2000
	phase     = 700 * time.Millisecond
)

// Three servers: one is stopped, one killed, one added, and the stopped one
// continues, at 2,000 requests a second.
func TestProcesses_noRequestFails(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	table := []string{"| policy | requests | failed | p50 | p99 | longest | retries | backups sent / won |", "|---|---|---|---|---|---|---|---|"}
	for _, name := range grpcbalance.Names() {
		if raceDetector && name != "switchyard_p2c_least_loaded" {
			continue // the client alone would take all of a small machine
		}
		t.Run(name, func(t *testing.T) { table = append(table, underFire(t, name)) })
	}
	t.Log("\n" + strings.Join(table, "\n"))
}

func underFire(t *testing.T, policy string) string {
	servers := []*process{startProcess(t), startProcess(t), startProcess(t)}
	added := startProcess(t)
	policyOf := retry.DefaultPolicy()
	policyOf.MaxRetries, policyOf.PerAttempt = 4, 300*time.Millisecond
	budget, err := retry.NewBudget(retry.DefaultBudget())
	if err != nil {
		t.Fatal(err)
	}
	client, rec := newClient(t, Method{Idempotent: true, Policy: &policyOf, Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.05}}, budget)
	r := grpctest.Resolver(servers[0].addr, servers[1].addr, servers[2].addr)
	options := "{}"
	if strings.Contains(policy, "aperture") {
		options = `{"min": 3}`
	}
	conn := grpctest.Dial(t, r, fmt.Sprintf(`{"loadBalancingConfig":[{%q:%s}]}`, policy, options), client.DialOptions()...)

	var mu sync.Mutex
	var latencies []time.Duration
	failed := map[string]int{}
	var wg sync.WaitGroup
	send := func() {
		began := time.Now()
		err := grpctest.Check(context.Background(), conn, "")
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		latencies = append(latencies, took)
		if err != nil {
			failed[err.Error()]++
		}
	}
	send()
	events := []func(){
		func() { servers[0].signal(t, syscall.SIGSTOP) },
		func() { servers[1].signal(t, syscall.SIGKILL) },
		func() { r.UpdateState(grpctest.State(servers[0].addr, servers[2].addr, added.addr)) },
		func() { servers[0].signal(t, syscall.SIGCONT) },
		nil,
	}
	began := time.Now()
	sent := 0
	next := phase
	for {
		elapsed := time.Since(began)
		if elapsed >= next {
			event := events[0]
			if event == nil {
				break
			}
			event()
			events, next = events[1:], next+phase
		}
		for ; sent < int(elapsed.Seconds()*perSecond); sent++ {
			wg.Go(send)
		}
		time.Sleep(2 * time.Millisecond) // the pace, not a condition
	}
	wg.Wait()
	failures := 0
	for what, n := range failed {
		failures += n
		t.Errorf("%d of %d requests failed: %s", n, len(latencies), what)
	}
	slices.Sort(latencies)
	at := func(q float64) string {
		return fmt.Sprintf("%.1f ms", float64(latencies[int(q*float64(len(latencies)-1))].Microseconds())/1000)
	}
	return fmt.Sprintf("| `%s` | %d | %d | %s | %s | %s | %d | %d / %d |", strings.TrimPrefix(policy, "switchyard_"), len(latencies), failures,
		at(.5), at(.99), at(1), rec.count(retry.CountRetries)+rec.count(retry.CountRequeues), rec.count(retry.CountHedges), rec.count(retry.CountHedgesWon))
}
