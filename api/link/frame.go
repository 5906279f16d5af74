package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

// Preface opens a connection. It is no beginning of HTTP/1 or HTTP/2, and ends a
// line, so that a server that does not know it answers at once.
const Preface = "SWYLINK/1\r\n"

type kind byte

const (
	kindRequest kind = iota + 1
	kindResponse
	kindError
	kindCancel
	kindPing
	kindPong
	kindGoaway
)

const (
	frameHead  = 4 + 1 + 8
	pingAfter  = 10 * time.Second
	deadAfter  = 40 * time.Second
	bufferSize = 64 << 10
	// requestHead is what stands before the method in a request, and maxMethod the
	// longest method.
	requestHead = 4 + 1
	maxMethod   = 255
	// maxSpare is the largest buffer that is kept for the next frames.
	maxSpare = 1 << 20
	// maxUnsent is how much may wait for a peer that does not read before the
	// connection is given up.
	maxUnsent = 256 << 20
)

var errSlowPeer = errors.New("link: the other side does not read what it is sent")

// frame is a received frame. Its body belongs to a pool; see free.
type frame struct {
	kind kind
	call uint64
	body mem.Buffer
}

// conn is what both sides of a connection share: reading frames, and writing them
// from any goroutine.
type conn struct {
	net.Conn
	in      *bufio.Reader
	maxBody int
	// lastRead and lastWrite are unix nanoseconds.
	lastRead, lastWrite atomic.Int64

	mu      sync.Mutex
	unsent  []byte // what waits for the goroutine that is writing
	spare   []byte
	writing bool
	werr    error
}

func newConn(c net.Conn, maxBody int) *conn {
	x := &conn{Conn: c, in: bufio.NewReaderSize(c, bufferSize), maxBody: maxBody}
	now := time.Now().UnixNano()
	x.lastRead.Store(now)
	x.lastWrite.Store(now)
	return x
}

// readFrame reads the next frame. Only one goroutine at a time may call it.
func (c *conn) readFrame() (f frame, err error) {
	head, err := c.in.Peek(frameHead)
	if err != nil {
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	n := int64(binary.BigEndian.Uint32(head)) - (frameHead - 4)
	f.kind, f.call = kind(head[4]), binary.BigEndian.Uint64(head[5:])
	if n < 0 || n > int64(c.maxBody) {
		return f, fmt.Errorf("link: a frame of %d bytes; the limit is %d", n, c.maxBody)
	}
	_, _ = c.in.Discard(frameHead)
	pool := mem.DefaultBufferPool()
	b := pool.Get(int(n))
	if _, err := io.ReadFull(c.in, *b); err != nil {
		pool.Put(b)
		return f, err
	}
	f.body = mem.NewBuffer(b, pool)
	c.lastRead.Store(time.Now().UnixNano())
	return f, nil
}

// send writes a frame made of parts. While another goroutine is writing it only
// leaves the frame to it. An error means that the connection is of no use any more.
func (c *conn) send(k kind, call uint64, parts ...[]byte) error {
	n := frameHead - 4
	for _, p := range parts {
		n += len(p)
	}
	c.mu.Lock()
	if c.werr != nil {
		defer c.mu.Unlock()
		return c.werr
	}
	if len(c.unsent)+n > maxUnsent {
		c.werr = errSlowPeer
		c.mu.Unlock()
		c.Close()
		return errSlowPeer
	}
	b := binary.BigEndian.AppendUint32(c.unsent, uint32(n))
	b = append(b, byte(k))
	b = binary.BigEndian.AppendUint64(b, call)
	for _, p := range parts {
		b = append(b, p...)
	}
	c.unsent = b
	if c.writing {
		c.mu.Unlock()
		return nil
	}
	c.writing = true
	for len(c.unsent) > 0 && c.werr == nil {
		out := c.unsent
		c.unsent, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		_, err := c.Write(out)
		c.lastWrite.Store(time.Now().UnixNano())
		c.mu.Lock()
		if cap(out) <= maxSpare {
			c.spare = out
		}
		if err != nil {
			c.werr = err
		}
	}
	c.writing = false
	err := c.werr
	c.mu.Unlock()
	if err != nil {
		c.Close()
	}
	return err
}

var errBadRequest = errors.New("link: malformed request")

// parseRequest takes the body of a request frame apart. The message is a part of
// the body, and freed with it.
func parseRequest(body []byte) (timeout time.Duration, method, message []byte, err error) {
	if len(body) < requestHead || len(body) < requestHead+int(body[4]) {
		return 0, nil, nil, errBadRequest
	}
	timeout = time.Duration(binary.BigEndian.Uint32(body)) * time.Millisecond
	n := requestHead + int(body[4])
	return timeout, body[requestHead:n], body[n:], nil
}

// appendRequestHead adds what stands before the message in a request.
func appendRequestHead(b []byte, timeout time.Duration, method string) []byte {
	ms := uint32(0)
	if timeout > 0 {
		ms = uint32(min((timeout+time.Millisecond-1)/time.Millisecond, 1<<31))
	}
	b = binary.BigEndian.AppendUint32(b, ms)
	b = append(b, byte(len(method)))
	return append(b, method...)
}
