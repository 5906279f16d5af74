package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// patience bounds every wait for a condition.
const patience = 60 * time.Second

// TestMain looks for goroutines that stay. Those of memberlist end some time after its
// Shutdown.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find()
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = goleak.Find() {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// detection is slow where nobody crashes, so that a busy machine gives no false alarms,
// and quick is for the other tests, which must bear them.
const detection, quick = 20 * time.Second, 500 * time.Millisecond

func quickly(o *Options) { o.Detection = quick }

// start makes a node of the cluster "c".
func start(t *testing.T, name string, seeds []*Membership, change ...func(*Options)) (*Membership, error) {
	t.Helper()
	o := Options{
		Self:      Node{Name: name, ClusterID: "c", BucketCount: 16, Roles: Matching, InternalAddress: name + ":1"},
		Detection: detection, Rejoin: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	for _, s := range seeds {
		o.Seeds = append(o.Seeds, s.Address())
	}
	for _, c := range change {
		c(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := Start(ctx, o)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, m.Close()) })
	}
	return m, err
}

func mustStart(t *testing.T, name string, seeds []*Membership, change ...func(*Options)) *Membership {
	t.Helper()
	m, err := start(t, name, seeds, change...)
	require.NoError(t, err)
	return m
}

func names(nodes []Node) []string {
	out := []string{}
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// sees waits until m's view has these nodes and no others.
func sees(t *testing.T, m *Membership, want ...string) {
	t.Helper()
	sub := m.Subscribe(0)
	defer sub.Close()
	waitFor(t, sub, func() error {
		if got := names(m.View().Nodes()); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%s sees %v, not %v", m.Self().Name, got, want)
		}
		return nil
	})
}

// waitFor waits until ok holds, which changes only when sub hears of something.
func waitFor(t *testing.T, sub *Subscription, ok func() error) {
	t.Helper()
	timeout := time.After(patience)
	err := errors.New("not heard of yet")
	for err != nil {
		select {
		case <-sub.C():
			err = ok()
		case <-timeout:
			require.NoError(t, err)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wires cuts connections between nodes.
type wires struct {
	mu   sync.Mutex
	side map[string]int // of an address; those of different sides do not reach each other
}

func (w *wires) cut(side map[string]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.side = side
}

func (w *wires) wrap(t *memberlist.NetTransport) memberlist.Transport {
	return &wire{t, w, fmt.Sprintf("127.0.0.1:%d", t.GetAutoBindPort())}
}

// wire is a transport that loses what goes to the other side.
type wire struct {
	*memberlist.NetTransport
	wires *wires
	self  string
}

func (w *wire) open(to string) bool {
	w.wires.mu.Lock()
	defer w.wires.mu.Unlock()
	return w.wires.side[w.self] == w.wires.side[to]
}

func (w *wire) WriteTo(b []byte, to string) (time.Time, error) {
	return w.WriteToAddress(b, memberlist.Address{Addr: to})
}

func (w *wire) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	if !w.open(to.Addr) {
		return time.Now(), nil
	}
	return w.NetTransport.WriteToAddress(b, to)
}

func (w *wire) DialTimeout(to string, timeout time.Duration) (net.Conn, error) {
	return w.DialAddressTimeout(memberlist.Address{Addr: to}, timeout)
}

func (w *wire) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if !w.open(to.Addr) {
		return nil, errors.New("the wire is cut")
	}
	return w.NetTransport.DialAddressTimeout(to, timeout)
}
