package chaos

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// network carries bytes between nodes over loopback, and can be told not to. Nodes are known
// by their names; where their processes listen is looked up for each connection.
type network struct {
	mu        sync.Mutex
	addresses map[string]string // of the processes that run
	ways      map[[2]string]*way
	conns     map[*conn]struct{}
}

func newNetwork() *network {
	return &network{addresses: map[string]string{}, ways: map[[2]string]*way{}, conns: map[*conn]struct{}{}}
}

var (
	errRefused = errors.New("the connection is refused")
	errCut     = errors.New("the network is cut")
)

// way is one direction between two nodes. Faults overlap, so they are counted.
type way struct {
	mu      sync.Mutex
	stalls  int // bytes wait, and are not lost
	cuts    int // connections are refused
	delay   time.Duration
	changed chan struct{}
}

func (n *network) way(from, to string) *way {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.ways[[2]string{from, to}]
	if w == nil {
		w = &way{changed: make(chan struct{})}
		n.ways[[2]string{from, to}] = w
	}
	return w
}

func (w *way) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.changed)
	w.changed = make(chan struct{})
}

// pass returns when bytes may go, or with an error when the connection is closed before.
func (w *way) pass(closed <-chan struct{}) error {
	delayed := false
	for {
		w.mu.Lock()
		stalled, delay, changed := w.stalls > 0, w.delay, w.changed
		w.mu.Unlock()
		switch {
		case stalled:
			select {
			case <-changed:
			case <-closed:
				return errCut
			}
		case delay > 0 && !delayed:
			delayed = true
			t := time.NewTimer(delay)
			select {
			case <-t.C:
			case <-closed:
				t.Stop()
				return errCut
			}
		default:
			return nil
		}
	}
}

func (w *way) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts > 0
}

// stall holds back the bytes of these directions until heal is called.
func (n *network) stall(ways [][2]string) (heal func()) {
	return n.fault(ways, func(w *way, d int) { w.stalls += d })
}

// slow delays the bytes of these directions.
func (n *network) slow(ways [][2]string, by time.Duration) (heal func()) {
	return n.fault(ways, func(w *way, d int) { w.delay += time.Duration(d) * by })
}

// cut breaks the connections of these directions and refuses new ones.
func (n *network) cut(ways [][2]string) (heal func()) {
	heal = n.fault(ways, func(w *way, d int) { w.cuts += d })
	n.drop(ways)
	return heal
}

func (n *network) fault(ways [][2]string, add func(*way, int)) (heal func()) {
	for _, k := range ways {
		w := n.way(k[0], k[1])
		w.change(func() { add(w, 1) })
	}
	return func() {
		for _, k := range ways {
			w := n.way(k[0], k[1])
			w.change(func() { add(w, -1) })
		}
	}
}

// drop breaks the connections that use these directions.
func (n *network) drop(ways [][2]string) {
	for _, k := range ways {
		n.dropIf(func(c *conn) bool { return c.from == k[0] && c.to == k[1] || c.from == k[1] && c.to == k[0] })
	}
}

func (n *network) dropIf(which func(*conn) bool) {
	n.mu.Lock()
	var found []*conn
	for c := range n.conns {
		if which(c) {
			found = append(found, c)
		}
	}
	n.mu.Unlock()
	for _, c := range found {
		_ = c.Close()
	}
}

// up says where a node listens; "" is nowhere, and ends all its connections.
func (n *network) up(node, address string) {
	n.mu.Lock()
	n.addresses[node] = address
	n.mu.Unlock()
	if address == "" {
		n.dropIf(func(c *conn) bool { return c.from == node || c.to == node })
	}
}

// dial makes the connections of one node. Addresses are names of nodes with portSuffix.
func (n *network) dial(from string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		to := address[:len(address)-len(portSuffix)]
		out, in := n.way(from, to), n.way(to, from)
		for _, w := range []*way{out, in} {
			if err := w.pass(ctx.Done()); err != nil {
				return nil, err
			}
			if w.isCut() {
				return nil, errRefused
			}
		}
		n.mu.Lock()
		at := n.addresses[to]
		n.mu.Unlock()
		if at == "" {
			return nil, errRefused
		}
		raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, n: n, from: from, to: to, out: out, in: in, closed: make(chan struct{})}
		n.mu.Lock()
		gone := n.addresses[to] != at
		n.conns[c] = struct{}{}
		n.mu.Unlock()
		// A cut that came meanwhile has not seen it.
		if gone || out.isCut() || in.isCut() {
			_ = c.Close()
			return nil, errRefused
		}
		return c, nil
	})
}

const portSuffix = ":1"

func (n *network) dialOptions(from string) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), n.dial(from)}
}

// conn is the dialling end of a connection, where both directions are governed.
type conn struct {
	net.Conn
	n        *network
	from, to string
	out, in  *way
	once     sync.Once
	closed   chan struct{}
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.out.pass(c.closed); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read holds back what has come, the end of the stream too.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bad := c.in.pass(c.closed); bad != nil {
		return 0, bad
	}
	return n, err
}

func (c *conn) Close() (err error) {
	c.once.Do(func() {
		close(c.closed)
		c.n.mu.Lock()
		delete(c.n.conns, c)
		c.n.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}
