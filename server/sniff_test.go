package server

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/api/link"
)

// sniffed starts a sniffer on loopback; what each side accepts comes on a channel.
func sniffed(t *testing.T, timeout time.Duration) (addr string, http2, linked, http1 chan net.Conn, s *sniffer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = newSniffer(l, timeout, slog.New(slog.DiscardHandler))
	http2, linked, http1 = make(chan net.Conn, 10), make(chan net.Conn, 10), make(chan net.Conn, 10)
	var wg sync.WaitGroup
	for from, to := range map[*subListener]chan net.Conn{s.http2: http2, s.link: linked, s.http1: http1} {
		wg.Go(func() {
			for {
				c, err := from.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
					return
				}
				to <- c
			}
		})
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return l.Addr().String(), http2, linked, http1, s
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSniffer_tellsProtocolsApartAndLosesNoByte(t *testing.T) {
	addr, http2, linked, http1, _ := sniffed(t, time.Minute)
	for _, c := range []struct {
		parts []string
		to    chan net.Conn
	}{
		{[]string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrest\n"}, http2},
		{[]string{"P", "R", "I", " * HTTP/2.0\r\n"}, http2},
		{[]string{link.Preface + "rest\n"}, linked},
		{[]string{"S", "WY", "LINK/1\r\n"}, linked},
		{[]string{"POST / HTTP/1.1\r\n"}, http1},
		{[]string{"S", "EARCH / HTTP/1.1\r\n"}, http1},
		{[]string{"P", "UT / HTTP/1.1\r\n"}, http1},
		{[]string{"PR", "OPFIND / HTTP/1.1\r\n"}, http1},
		{[]string{"\n"}, http1},
	} {
		conn := dial(t, addr)
		for i, part := range c.parts {
			if i > 0 {
				time.Sleep(5 * time.Millisecond) // so that the parts arrive apart; either way is right
			}
			if _, err := io.WriteString(conn, part); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case got := <-c.to:
			whole := strings.Join(c.parts, "")
			buf := make([]byte, len(whole))
			if _, err := io.ReadFull(got, buf); err != nil || string(buf) != whole {
				t.Errorf("%q arrived as %q, %v", whole, buf, err)
			}
			if _, err := io.WriteString(got, "answer\n"); err != nil {
				t.Error(err)
			}
			if line, err := bufio.NewReader(conn).ReadString('\n'); line != "answer\n" {
				t.Errorf("the answer is %q, %v", line, err)
			}
			got.Close()
		case <-time.After(10 * time.Second):
			t.Fatalf("%q was handed to nobody, or to the other side", c.parts)
		}
	}
}

func TestSniffer_silentClientIsDroppedAndBlocksNobody(t *testing.T) {
	addr, http2, linked, http1, _ := sniffed(t, 200*time.Millisecond)
	silent, half := dial(t, addr), dial(t, addr)
	if _, err := io.WriteString(half, "PR"); err != nil {
		t.Fatal(err)
	}
	talking := dial(t, addr)
	if _, err := io.WriteString(talking, "GET"); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-http1:
		c.Close()
	case <-time.After(10 * time.Second):
		t.Fatal("a silent client is in the way of another")
	}
	for _, c := range []net.Conn{silent, half} {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection is still open: %v", err)
		}
	}
	if len(http2)+len(linked)+len(http1) != 0 {
		t.Error("a silent client was handed on")
	}
}

func TestSniffer_closeEndsWaitingConnections(t *testing.T) {
	addr, _, _, _, s := sniffed(t, time.Hour)
	c := dial(t, addr)
	if _, err := io.WriteString(c, "P"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiting) == 1 })
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still open: %v", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("it still accepts")
	}
}
