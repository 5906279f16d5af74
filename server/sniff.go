package server

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/api/link"
)

// prefaceStart is how the HTTP/2 connection preface begins. No request of
// HTTP/1 starts with it, and none with the beginning of link's preface, which is as
// long.
const prefaceStart = "PRI "

var linkStart = link.Preface[:len(prefaceStart)]

const (
	// sniffTimeout is how long a connection may take to send its first bytes.
	sniffTimeout = 10 * time.Second
	// maxSniffing is how many connections may be without their first bytes at
	// once. More are closed at once: they are idle clients or an attack.
	maxSniffing = 4096
)

// sniffer accepts the connections of one listener and hands each to one of three
// listeners by its first bytes.
type sniffer struct {
	base    net.Listener
	http2   *subListener
	link    *subListener
	http1   *subListener
	logger  *slog.Logger
	timeout time.Duration

	done chan struct{} // closed when the sniffer closes
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	waiting map[net.Conn]struct{} // without their first bytes
}

// newSniffer starts to accept from base, which belongs to the sniffer.
func newSniffer(base net.Listener, timeout time.Duration, logger *slog.Logger) *sniffer {
	s := &sniffer{
		base: base, logger: logger, timeout: timeout,
		done: make(chan struct{}), waiting: make(map[net.Conn]struct{}),
	}
	s.http2 = newSubListener(base.Addr())
	s.link = newSubListener(base.Addr())
	s.http1 = newSubListener(base.Addr())
	s.wg.Add(1)
	go s.accept()
	return s
}

// close stops accepting, closes the connections that have not said what they
// are, and waits for the sniffer's goroutines. Handed-on connections live on.
func (s *sniffer) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.waiting {
		c.Close()
	}
	s.mu.Unlock()
	close(s.done)
	err := s.base.Close()
	s.http2.Close()
	s.link.Close()
	s.http1.Close()
	s.wg.Wait()
	return err
}

func (s *sniffer) accept() {
	defer s.wg.Done()
	pause := time.Duration(0)
	for {
		c, err := s.base.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, most likely: wait for some to come free.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.logger.Warn("cannot accept a connection", "err", err, "retry_in", pause)
			select {
			case <-time.After(pause):
				continue
			case <-s.done:
				return
			}
		}
		pause = 0
		s.mu.Lock()
		if s.closed || len(s.waiting) >= maxSniffing {
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.waiting[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go s.sniff(c)
	}
}

// sniff reads what it takes to know which protocol c speaks, and hands it on.
func (s *sniffer) sniff(c net.Conn) {
	defer s.wg.Done()
	to, first, err := s.decide(c)
	s.mu.Lock()
	delete(s.waiting, c)
	closed := s.closed
	s.mu.Unlock()
	if err != nil || closed {
		c.Close()
		return
	}
	to.hand(&sniffedConn{Conn: c, first: first})
}

func (s *sniffer) decide(c net.Conn) (*subListener, []byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(s.timeout)); err != nil {
		return nil, nil, err
	}
	first := make([]byte, 0, len(prefaceStart))
	for len(first) < len(prefaceStart) {
		n, err := c.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		if string(first) != prefaceStart[:len(first)] && string(first) != linkStart[:len(first)] {
			return s.http1, first, c.SetReadDeadline(time.Time{})
		}
		if err != nil && len(first) < len(prefaceStart) {
			return nil, nil, err
		}
	}
	to := s.http2
	if string(first) == linkStart {
		to = s.link
	}
	return to, first, c.SetReadDeadline(time.Time{})
}

// sniffedConn is a connection whose first bytes were read already.
type sniffedConn struct {
	net.Conn
	first []byte
}

func (c *sniffedConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// subListener is a net.Listener that gets its connections by hand.
type subListener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newSubListener(addr net.Addr) *subListener {
	return &subListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// hand gives c to whoever accepts, or closes it when nobody will.
func (l *subListener) hand(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.done:
		c.Close()
	}
}

// Accept implements net.Listener.
func (l *subListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *subListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *subListener) Addr() net.Addr { return l.addr }
