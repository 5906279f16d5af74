package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// isTerminal reports whether f is a terminal.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	// The null device is a character device too.
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// progress keeps one line on standard error up to date. On a terminal the line
// is written over; elsewhere each state is a line of its own.
type progress struct {
	text            func() string
	delay, interval time.Duration
	silent          bool

	mu    sync.Mutex
	out   io.Writer
	over  bool // write over the line
	shown bool
	open  bool // what was written beside it does not end with a line feed

	stop, stopped chan struct{}
}

// newProgress makes a progress that, once started, shows text() after delay and
// then every interval, when standard error is a terminal or always is set.
func (a *app) newProgress(always bool, delay, interval time.Duration, text func() string) *progress {
	p := &progress{
		text: text, delay: delay, interval: interval, out: a.stderr, over: isTerminal(a.stderr),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	p.silent = !p.over && !always
	if always {
		p.delay = min(delay, 200*time.Millisecond)
	}
	if !p.over {
		p.interval = max(interval, time.Second)
	}
	return p
}

// startProgress makes and starts a progress. It must be ended.
func (a *app) startProgress(always bool, delay, interval time.Duration, text func() string) *progress {
	p := a.newProgress(always, delay, interval, text)
	p.start()
	return p
}

func (p *progress) start() {
	if p.silent {
		close(p.stopped)
		return
	}
	go func() {
		defer close(p.stopped)
		timer := time.NewTimer(p.delay)
		defer timer.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-timer.C:
				p.show()
				timer.Reset(p.interval)
			}
		}
	}()
}

func (p *progress) show() {
	text := p.text()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		fmt.Fprintln(p.out, text)
		return
	}
	p.newLine()
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
	p.shown = true
}

// end takes the line away.
func (p *progress) end() {
	close(p.stop)
	<-p.stopped
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.newLine()
}

// newLine ends a line that was begun beside the progress line.
func (p *progress) newLine() {
	if p.open {
		fmt.Fprintln(p.out)
		p.open = false
	}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

// beside returns a writer for whole lines that does not mix with the progress
// line.
func (p *progress) beside(w io.Writer) io.Writer {
	return &besideWriter{p: p, w: w, terminal: p.over && isTerminal(w)}
}

type besideWriter struct {
	p        *progress
	w        io.Writer
	terminal bool
}

func (b *besideWriter) Write(text []byte) (int, error) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.p.clear()
	if b.terminal && len(text) > 0 {
		b.p.open = text[len(text)-1] != '\n'
	}
	return b.w.Write(text)
}
