package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// tail keeps the last of what nodes and nemesis say.
type tail struct {
	mu     sync.Mutex
	chunks [][]byte
	size   int
}

const tailBytes = 64 << 20

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunks = append(t.chunks, append([]byte(nil), b...))
	for t.size += len(b); t.size > tailBytes; t.chunks = t.chunks[1:] {
		t.size -= len(t.chunks[0])
	}
	return len(b), nil
}

// save writes what is kept to a folder.
func (t *tail) save(dir string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var all []byte
	for _, c := range t.chunks {
		all = append(all, c...)
	}
	return os.WriteFile(filepath.Join(dir, "nodes.log"), all, 0o600)
}

func (h *history) successes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops) - h.unknown
}

// report says how the clients fared.
func (h *history) report() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	took := time.Since(h.start)
	n := len(h.ops)
	return fmt.Sprintf("operations: %d, %.0f/s; outcome unknown: %d, %.2f %%; refused: %d; longest time without a success: %v, until %s",
		n, float64(n)/took.Seconds(), h.unknown, 100*float64(h.unknown)/float64(max(n, 1)), h.refused, h.longestGap.Round(time.Millisecond),
		h.start.Add(time.Duration(h.gapEnded)).UTC().Format("15:04:05.000"))
}
