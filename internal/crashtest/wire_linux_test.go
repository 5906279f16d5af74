package crashtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// wires are proxies in front of the ports on which nodes talk to each other. Who calls is found
// by whose process has the other end of the connection, so the wire between any two nodes can be
// cut, in one direction too.
type wires struct {
	t      *testing.T
	fronts []net.Listener

	mu    sync.Mutex
	pids  map[int]string // of the nodes that run
	cuts  map[[2]string]int
	lines map[*line]struct{}
	done  sync.WaitGroup
}

// line is one connection.
type line struct {
	from, to    string
	left, right net.Conn
}

func newWires(t *testing.T) *wires {
	w := &wires{t: t, pids: map[int]string{}, cuts: map[[2]string]int{}, lines: map[*line]struct{}{}}
	t.Cleanup(func() {
		for _, l := range w.fronts {
			l.Close()
		}
		w.breakIf(func(*line) bool { return true })
		w.done.Wait()
	})
	return w
}

// front makes a proxy in front of a node's port and returns its address.
func (w *wires) front(node, port string) string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.fronts = append(w.fronts, l)
	w.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			w.done.Go(func() { w.carry(c, node, port) })
		}
	})
	return l.Addr().String()
}

// runs notes which process a node is.
func (w *wires) runs(node string, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, n := range w.pids {
		if n == node {
			delete(w.pids, p)
		}
	}
	w.pids[pid] = node
}

// carry carries the bytes of a connection to a node. Those of a stranger are refused.
func (w *wires) carry(left net.Conn, to, port string) {
	defer left.Close()
	from, err := w.caller(left)
	if err != nil {
		return // it has ended already
	}
	right, err := net.Dial("tcp", port)
	if err != nil {
		return
	}
	defer right.Close()
	x := &line{from: from, to: to, left: left, right: right}
	w.mu.Lock()
	cut := w.cuts[[2]string{from, to}] > 0
	w.lines[x] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.lines, x)
		w.mu.Unlock()
	}()
	if cut {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(left, right)
		left.Close()
	})
	_, _ = io.Copy(right, left)
	right.Close()
	back.Wait()
}

// cut breaks what one node dials another for, until the returned function is called.
func (w *wires) cut(from, to string) (heal func()) {
	key := [2]string{from, to}
	w.mu.Lock()
	w.cuts[key]++
	w.mu.Unlock()
	w.breakIf(func(x *line) bool { return x.from == from && x.to == to })
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cuts[key]--
	}
}

func (w *wires) breakIf(which func(*line) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := range w.lines {
		if which(x) {
			x.left.Close()
			x.right.Close()
		}
	}
}

var errStranger = errors.New("no node has the other end of the connection")

// caller finds the node at the other end of a connection.
func (w *wires) caller(c net.Conn) (string, error) {
	inode, err := inodeOf(c.RemoteAddr().(*net.TCPAddr).Port, c.LocalAddr().(*net.TCPAddr).Port)
	if err != nil {
		return "", err
	}
	socket := fmt.Sprintf("socket:[%d]", inode)
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, node := range w.pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if name, err := os.Readlink(fd); err == nil && name == socket {
				return node, nil
			}
		}
	}
	return "", errStranger
}

// inodeOf finds the socket that is bound to one loopback port and connected to another.
func inodeOf(port, peer int) (uint64, error) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	local, remote := fmt.Sprintf(":%04X", port), fmt.Sprintf(":%04X", peer)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && strings.HasSuffix(f[1], local) && strings.HasSuffix(f[2], remote) {
			return strconv.ParseUint(f[9], 10, 64)
		}
	}
	return 0, errors.Join(errStranger, lines.Err())
}
