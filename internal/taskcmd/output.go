package taskcmd

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
)

// spillBytes is how much of one command's output is kept in memory; what comes
// after goes to a temporary file.
const spillBytes = 1 << 20

// spill holds the output of one command until it can be written in one piece.
type spill struct {
	dir  string
	mem  bytes.Buffer
	file *os.File
}

func (s *spill) Write(p []byte) (int, error) {
	if s.file == nil && s.mem.Len()+len(p) <= spillBytes {
		return s.mem.Write(p)
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "switchyard-output-*")
		if err != nil {
			return 0, err
		}
		s.file = f
	}
	return s.file.Write(p)
}

func (s *spill) writeTo(w io.Writer) error {
	if s.mem.Len() > 0 {
		if _, err := w.Write(s.mem.Bytes()); err != nil {
			return err
		}
	}
	if s.file == nil {
		return nil
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, s.file)
	return err
}

func (s *spill) close() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name())
	}
}

// maxLine is the longest line that is held back to be written whole.
const maxLine = 64 << 10

// tailWriter passes whole lines on and keeps the last bytes of all of them. It
// is written to by one goroutine at a time.
type tailWriter struct {
	limit int
	lines io.Writer
	mu    *sync.Mutex // guards lines among commands

	line []byte
	last []byte
	cut  bool
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if over := len(t.last) - t.limit; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
		t.cut = true
	}
	if t.lines == nil {
		return len(p), nil
	}
	t.line = append(t.line, p...)
	end := bytes.LastIndexByte(t.line, '\n') + 1
	if end == 0 && len(t.line) > maxLine {
		end = len(t.line)
	}
	if end > 0 {
		t.pass(t.line[:end])
		t.line = append(t.line[:0], t.line[end:]...)
	}
	return len(p), nil
}

// pass writes on. That the writer fails does not stop the command.
func (t *tailWriter) pass(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines.Write(p)
}

// flush passes on an unfinished last line.
func (t *tailWriter) flush() {
	if len(t.line) > 0 {
		t.pass(append(t.line, '\n'))
		t.line = nil
	}
}

// text returns the last lines: whole ones, when the beginning was cut off.
func (t *tailWriter) text() string {
	last := t.last
	if t.cut {
		if i := bytes.IndexByte(last, '\n'); i >= 0 && i+1 < len(last) {
			last = last[i+1:]
		}
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(last), "\uFFFD"))
}
