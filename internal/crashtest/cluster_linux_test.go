package crashtest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

var (
	clusterTime = flag.Duration("cluster", 0, "how long the long test of a cluster kills nodes; 0 leaves it out")
	clusterSeed = flag.Uint64("cluster-seed", 0, "its seed; 0: a random one")
)

// cluster is three nodes with one replica set of three, as real processes.
type cluster struct {
	t     *testing.T
	wires *wires
	nodes []*clusterNode
}

type clusterNode struct {
	*node
	name, config string
}

// clusterStart is how long a cluster, or a node that comes back to one, may take to be ready on
// a busy machine.
const clusterStart = 2 * time.Minute

// newCluster starts a cluster and bootstraps its store.
func newCluster(t *testing.T, env ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, wires: newWires(t)}
	dir := t.TempDir()
	const size = 3
	gossip := make([]string, size)
	for i := range gossip {
		gossip[i] = freeGossipAddress(t)
	}
	for i := range size {
		name, internal := fmt.Sprintf("n%d", i+1), freeAddress(t)
		n := &clusterNode{name: name, config: filepath.Join(dir, name+".yaml")}
		n.node = newNode(t, filepath.Join(dir, name))
		n.env = env
		text := fmt.Sprintf(`
listen: %s
data_dir: %s
bucket_count: 300
node:
  name: %s
cluster:
  id: crash
  listen: %s
  advertise: %s
  gossip: %s
  seeds: [%s]
`, n.addr, n.data, name, internal, c.wires.front(name, internal), gossip[i], strings.Join(gossip, ", "))
		if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		c.launch(n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), clusterStart)
	defer cancel()
	admin := switchyardv1.NewClusterServiceClient(c.dial(c.nodes...))
	for {
		_, err := admin.BootstrapCluster(ctx, &switchyardv1.BootstrapClusterRequest{ReplicaSets: 1, Members: size})
		if err == nil {
			break
		}
		if !pause(ctx, 100*time.Millisecond) {
			for _, n := range c.nodes {
				t.Logf("%s said:\n%s", n.name, n.output)
			}
			t.Fatalf("bootstrapping the cluster: %v", err)
		}
	}
	for _, n := range c.nodes {
		if err := n.waitReady(clusterStart); err != nil {
			t.Fatalf("%s: %v; it said:\n%s", n.name, err, n.output)
		}
	}
	return c
}

// freeGossipAddress finds a loopback port that is free for TCP and for UDP.
func freeGossipAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := freeAddress(t)
		if l, err := net.ListenPacket("udp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no port found that is free for TCP and UDP")
	return ""
}

func (c *cluster) launch(n *clusterNode) {
	c.t.Helper()
	n.launchIn("", "server", "--config", n.config)
	c.wires.runs(n.name, n.cmd.Process.Pid)
}

// dial connects to several nodes; each request goes to the next one that can be reached.
func (c *cluster) dial(nodes ...*clusterNode) *grpc.ClientConn {
	c.t.Helper()
	r := manual.NewBuilderWithScheme("nodes")
	var state resolver.State
	for _, n := range nodes {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: n.addr})
	}
	r.InitialState(state)
	quick := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient("nodes:///", grpc.WithResolvers(r),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}),
		grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

// others are the nodes but one.
func (c *cluster) others(but *clusterNode) []*clusterNode {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *clusterNode) bool { return n == but })
}

// disturb cuts wires between two nodes or lets one stand still, for a moment.
func (c *cluster) disturb(ctx context.Context, rnd *rand.Rand) (what string) {
	n := c.nodes[rnd.IntN(len(c.nodes))]
	other := c.others(n)[rnd.IntN(len(c.nodes)-1)]
	lasts := time.Duration(200+rnd.IntN(1800)) * time.Millisecond
	var heals []func()
	switch rnd.IntN(4) {
	case 0:
		what = fmt.Sprintf("%s stands still for %v", n.name, lasts)
		if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			c.t.Errorf("stopping %s: %v", n.name, err)
		}
		heals = append(heals, func() { _ = n.cmd.Process.Signal(syscall.SIGCONT) })
	case 1:
		what = fmt.Sprintf("%s does not reach %s for %v", n.name, other.name, lasts)
		heals = append(heals, c.wires.cut(n.name, other.name))
	case 2:
		what = fmt.Sprintf("%s and %s do not reach each other for %v", n.name, other.name, lasts)
		heals = append(heals, c.wires.cut(n.name, other.name), c.wires.cut(other.name, n.name))
	default:
		what = fmt.Sprintf("%s reaches nobody and is reached by nobody for %v", n.name, lasts)
		for _, o := range c.others(n) {
			heals = append(heals, c.wires.cut(n.name, o.name), c.wires.cut(o.name, n.name))
		}
	}
	pause(ctx, lasts)
	for _, heal := range heals {
		heal()
	}
	return what
}

// allowedGap is how soon after a kill a queue should serve again.
const allowedGap = 3 * time.Second

// probe is a queue that is used all the time: it notes when a task went all the way.
type probe struct {
	client *client

	mu         sync.Mutex
	ends       [][2]time.Time // of each round that succeeded: its beginning and its end
	woes       []string       // why others did not, since the last that did
	woesBefore [][]string     // the same for each of ends
}

func (p *probe) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		woe := p.round(ctx)
		p.mu.Lock()
		if woe == "" {
			p.ends, p.woesBefore = append(p.ends, [2]time.Time{began, time.Now()}), append(p.woesBefore, p.woes)
			p.woes = nil
		} else if len(p.woes) < 100 {
			p.woes = append(p.woes, woe)
		}
		p.mu.Unlock()
		pause(ctx, 10*time.Millisecond)
	}
}

// round adds a task, and takes and completes one. No request of it takes long. It returns what
// went wrong.
func (p *probe) round(ctx context.Context) (woe string) {
	short, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	if _, err := p.client.add(short, []*switchyardv1.TaskSpec{newTask(64)}); err != nil {
		return "add: " + err.Error()
	}
	tasks, err := p.client.poll(short, 10, 500*time.Millisecond, loadLease)
	if err != nil {
		return "poll: " + err.Error()
	}
	if len(tasks) == 0 {
		return "poll: no task"
	}
	if err := p.client.complete(short, tasks); err != nil {
		return "complete: " + err.Error()
	}
	return ""
}

// after returns how long after a moment the first round had succeeded that began after it, and
// what went wrong before.
func (p *probe) after(at time.Time) (took time.Duration, woes []string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.ends {
		if r[0].After(at) {
			return r[1].Sub(at), p.woesBefore[i], true
		}
	}
	return 0, p.woes, false
}

// underClusterKills puts load on a cluster, kills a node every interval and cuts wires in between.
// It returns the history and, for each kill and each probed queue, after how long the queue
// served again.
func underClusterKills(t *testing.T, seed uint64, kills int, interval time.Duration, clients, probes int) (*history.Recorder, []time.Duration) {
	t.Helper()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := newCluster(t)
	l := startLoadWith(t, func() *grpc.ClientConn { return c.dial(c.nodes...) }, "crash", seed, clients, clients)
	probing, stopProbing := context.WithCancel(t.Context())
	defer stopProbing()
	var all []*probe
	var probeWait sync.WaitGroup
	for i := range probes {
		p := &probe{client: newClient(c.dial(c.nodes...), l.recorder, fmt.Sprintf("probe-%d", i), fmt.Sprintf("probe-%d", i))}
		all = append(all, p)
		probeWait.Go(func() { p.run(probing) })
	}
	var killed []time.Time
	var victims []string
	for range kills {
		n := c.nodes[rnd.IntN(len(c.nodes))]
		end := time.Now().Add(interval)
		// Quiet around the kill, so that what follows is its own.
		pause(t.Context(), interval/10)
		killed, victims = append(killed, time.Now()), append(victims, n.name)
		n.kill()
		pause(t.Context(), interval/4+time.Duration(rnd.Int64N(int64(interval/4))))
		c.launch(n)
		if err := n.waitReady(clusterStart); err != nil {
			t.Fatalf("%s after a kill: %v; it said:\n%s", n.name, err, n.output)
		}
		for ctx := t.Context(); time.Until(end) > interval/5; {
			t.Log(c.disturb(ctx, rnd))
			pause(ctx, 300*time.Millisecond)
		}
		pause(t.Context(), time.Until(end))
	}
	// Every queue serves after the last kill too.
	served := func() bool {
		for _, p := range all {
			if _, _, ok := p.after(killed[len(killed)-1]); !ok {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(drainTimeout); !served() && time.Now().Before(deadline); {
		pause(t.Context(), 20*time.Millisecond)
	}
	stopProbing()
	probeWait.Wait()
	for _, p := range all {
		drainProbe(t, p)
	}
	l.drain()
	var gaps []time.Duration
	for i, at := range killed {
		var of []time.Duration
		for _, p := range all {
			d, woes, ok := p.after(at)
			if !ok {
				t.Errorf("queue %s did not serve again after kill %d: %q", p.client.queue, i+1, woes)
				continue
			}
			if d > allowedGap {
				t.Logf("kill %d, %s: queue %s served again after %v, before: %q", i+1, victims[i], p.client.queue, d.Round(time.Millisecond), woes)
			}
			of = append(of, d)
		}
		slices.Sort(of)
		if len(of) > 0 {
			t.Logf("kill %d, %s: queues served again after %v (first), %v (last)", i+1, victims[i], of[0].Round(time.Millisecond), of[len(of)-1].Round(time.Millisecond))
		}
		gaps = append(gaps, of...)
	}
	if len(gaps) == 0 {
		t.Fatal("no queue has served after a kill")
	}
	slices.Sort(gaps)
	return l.recorder, gaps
}

// drainProbe takes what is left in a probed queue.
func drainProbe(t *testing.T, p *probe) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	for {
		counts, err := p.client.counts(ctx)
		if err == nil && counts.GetReady()+counts.GetDelayed()+counts.GetLeased() == 0 {
			return
		}
		tasks, err := p.client.poll(ctx, 100, 200*time.Millisecond, loadLease)
		if err == nil {
			_ = p.client.complete(ctx, tasks)
		}
		if !pause(ctx, 10*time.Millisecond) {
			t.Fatalf("queue %s was not empty after %s: %v (error: %v)", p.client.queue, drainTimeout, counts, err)
		}
	}
}

// TestCluster_losesAndRepeatsNothing kills the nodes of a cluster one after the other, and cuts
// wires in between.
func TestCluster_losesAndRepeatsNothing(t *testing.T) {
	processTest(t)
	const kills = 3
	recorder, gaps := underClusterKills(t, 1, kills, 5*time.Second, 8, 4)
	wantSubstance(t, judgeBy(t, recorder, history.Options{ClockError: clockError, Repeats: true}), 500, 10, kills)
	t.Logf("queues served again after %v (median), %v (longest)", gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond))
}

// TestCluster_long does it every 10 s for some minutes.
func TestCluster_long(t *testing.T) {
	processTest(t)
	if *clusterTime == 0 {
		t.Skip("make chaos-cluster runs it")
	}
	seed := *clusterSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	const interval = 10 * time.Second
	recorder, gaps := underClusterKills(t, seed, max(int(*clusterTime/interval), 1), interval, 8, 8)
	judgeBy(t, recorder, history.Options{ClockError: clockError, Repeats: true})
	median, longest := gaps[len(gaps)/2], gaps[len(gaps)-1]
	t.Logf("queues served again after %v (median of %d), %v (longest)", median.Round(time.Millisecond), len(gaps), longest.Round(time.Millisecond))
	if median > allowedGap {
		t.Errorf("queues serve again after %v (median); %v are allowed", median, allowedGap)
	}
}
