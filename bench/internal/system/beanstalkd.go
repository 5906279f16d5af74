package system

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func init() { register("beanstalkd", func() System { return beanstalkd{} }) }

// beanstalkd is spoken to directly: its protocol is a few text lines, and a
// client of our own can pipeline.
type beanstalkd struct{}

func (beanstalkd) Name() string { return "beanstalkd" }

func (beanstalkd) Settings(d Durability) []string {
	s := []string{"binlog on (-b)", "a connection per adder and worker", "batches: pipelined puts on one connection",
		"workers: delete and the next reserve in one packet"}
	if d == Fsync {
		return append(s, "-f 0 (fsync at each write)")
	}
	return append(s, "fsync every 50 ms (default)")
}

func (beanstalkd) Start(ctx context.Context, env Env) (Server, error) {
	version, err := output(ctx, "beanstalkd", "-v")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	args := []string{"beanstalkd", "-l", "127.0.0.1", "-p", strconv.Itoa(ports[0]), "-b", env.Dir}
	if env.Durability == Fsync {
		args = append(args, "-f", "0")
	}
	p, err := startProcess(env, nil, nil, args...)
	if err != nil {
		return nil, err
	}
	s := &beanstalkdServer{process: p, addr: loopback(ports[0]), version: strings.TrimPrefix(version, "beanstalkd ")}
	if err := p.waitFor(ctx, env.StartTimeout, probeTCP(s.addr)); err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

type beanstalkdServer struct {
	process *process
	addr    string
	version string
}

func (s *beanstalkdServer) Version() string { return s.version }

func (s *beanstalkdServer) Stop() error { return s.process.stop(syscall.SIGTERM, 10*time.Second) }

func (s *beanstalkdServer) Queue(_ context.Context, name string) (Queue, error) {
	return &beanstalkdQueue{addr: s.addr, tube: name}, nil
}

type beanstalkdQueue struct{ addr, tube string }

func (q *beanstalkdQueue) Adder(ctx context.Context) (Adder, error) {
	c, err := dialBeanstalkd(ctx, q.addr)
	if err != nil {
		return nil, err
	}
	if _, err := c.call(ctx, "use "+q.tube, "USING"); err != nil {
		c.Close()
		return nil, err
	}
	return beanstalkdAdder{c}, nil
}

func (q *beanstalkdQueue) Remaining(ctx context.Context) (int64, error) {
	c, err := dialBeanstalkd(ctx, q.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.call(ctx, "use "+q.tube, "USING"); err != nil {
		return 0, err
	}
	fields, err := c.call(ctx, "stats-tube "+q.tube, "OK")
	if err != nil {
		return 0, err
	}
	body, err := c.body(fields)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range []string{"current-jobs-ready", "current-jobs-reserved", "current-jobs-delayed", "current-jobs-buried"} {
		_, rest, ok := strings.Cut(string(body), "\n"+name+": ")
		if !ok {
			return 0, fmt.Errorf("beanstalkd: no %s in its statistics", name)
		}
		line, _, _ := strings.Cut(rest, "\n")
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// Close leaves what is in the tube: beanstalkd has no command to empty one.
func (q *beanstalkdQueue) Close(context.Context) error { return nil }

type beanstalkdAdder struct{ c *beanstalkdConn }

func (a beanstalkdAdder) Close() error { return a.c.Close() }

func (a beanstalkdAdder) Add(ctx context.Context, payload []byte) error {
	a.c.deadline(ctx)
	a.c.writePut(payload)
	_, err := a.c.reply("INSERTED")
	return err
}

func (a beanstalkdAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	a.c.deadline(ctx)
	// Writing and reading at the same time, else both buffers could fill up.
	sent := make(chan error, 1)
	go func() {
		for _, p := range payloads {
			a.c.writePut(p)
		}
		sent <- a.c.w.Flush()
	}()
	for range payloads {
		if _, err := a.c.read("INSERTED"); err != nil {
			a.c.Close()
			<-sent
			return err
		}
	}
	return <-sent
}

func (q *beanstalkdQueue) Work(ctx context.Context, workers int, handle func([]byte)) (Workers, error) {
	w := &beanstalkdWorkers{errs: make(chan error, workers)}
	for range workers {
		c, err := dialBeanstalkd(ctx, q.addr)
		if err == nil {
			_, err = c.call(ctx, "watch "+q.tube, "WATCHING")
		}
		if err == nil {
			_, err = c.call(ctx, "ignore default", "WATCHING")
		}
		if err != nil {
			_ = w.Stop(ctx)
			return nil, err
		}
		w.conns = append(w.conns, c)
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			if err := w.run(c, handle); !w.stopping.Load() {
				w.errs <- err
			}
		}()
	}
	return w, nil
}

type beanstalkdWorkers struct {
	wg        sync.WaitGroup
	conns     []*beanstalkdConn
	completed atomic.Int64
	stopping  atomic.Bool
	errs      chan error
}

// run works until the connection fails or is closed.
func (w *beanstalkdWorkers) run(c *beanstalkdConn, handle func([]byte)) error {
	c.w.WriteString("reserve\r\n")
	for {
		fields, err := c.reply("RESERVED")
		if err != nil {
			return err
		}
		if len(fields) != 3 {
			return fmt.Errorf("beanstalkd: RESERVED with %d fields", len(fields))
		}
		id := fields[1]
		payload, err := c.body(append([]string{"OK"}, fields[2:]...))
		if err != nil {
			return err
		}
		handle(payload)
		c.w.WriteString("delete " + id + "\r\nreserve\r\n")
		if _, err := c.reply("DELETED"); err != nil {
			return err
		}
		w.completed.Add(1)
	}
}

func (w *beanstalkdWorkers) Completed(context.Context) (int64, error) {
	select {
	case err := <-w.errs:
		return 0, err
	default:
		return w.completed.Load(), nil
	}
}

// Stop closes the connections; the server makes their jobs ready again.
func (w *beanstalkdWorkers) Stop(context.Context) error {
	w.stopping.Store(true)
	for _, c := range w.conns {
		c.Close()
	}
	w.wg.Wait()
	select {
	case err := <-w.errs:
		return err
	default:
		return nil
	}
}

type beanstalkdConn struct {
	net.Conn
	forget func() bool // stops watching the context that the connection was made with
	r      *bufio.Reader
	w      *bufio.Writer
}

func dialBeanstalkd(ctx context.Context, addr string) (*beanstalkdConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	forget := context.AfterFunc(ctx, func() { c.Close() })
	return &beanstalkdConn{Conn: c, forget: forget, r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriterSize(c, 64<<10)}, nil
}

func (c *beanstalkdConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

func (c *beanstalkdConn) deadline(ctx context.Context) {
	t, _ := ctx.Deadline() // the zero time means none
	_ = c.SetDeadline(t)
}

func (c *beanstalkdConn) writePut(payload []byte) {
	// priority 0, no delay, 60 s to run
	c.w.WriteString("put 0 0 60 ")
	c.w.WriteString(strconv.Itoa(len(payload)))
	c.w.WriteString("\r\n")
	c.w.Write(payload)
	c.w.WriteString("\r\n")
}

func (c *beanstalkdConn) call(ctx context.Context, line, want string) ([]string, error) {
	c.deadline(ctx)
	c.w.WriteString(line + "\r\n")
	return c.reply(want)
}

func (c *beanstalkdConn) reply(want string) ([]string, error) {
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	return c.read(want)
}

func (c *beanstalkdConn) read(want string) ([]string, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(line))
	if len(fields) == 0 || fields[0] != want {
		return nil, fmt.Errorf("beanstalkd: %q instead of %s", bytes.TrimSpace(line), want)
	}
	return fields, nil
}

// body reads the data that follows a reply whose second field is its size.
func (c *beanstalkdConn) body(fields []string) ([]byte, error) {
	if len(fields) < 2 {
		return nil, errors.New("beanstalkd: a reply without a size")
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil || n < 0 || n > 16<<20 {
		return nil, fmt.Errorf("beanstalkd: size %q", fields[1])
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	return b[:n], nil
}
