package raftengine

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Bounds of the entries that are kept in memory: their number, and their bytes, which are
// no more than what stays in the log for members that lag behind.
const (
	tailEntries  = 8192
	tailBytes    = 32 << 20
	tailBytesMin = 64 << 10
)

// tail keeps copies of the latest log entries in memory, for the members that they are
// sent to, each of which reads them by itself, and for applying them on a replica.
type tail struct {
	mu      sync.RWMutex
	first   uint64 // index of entries[0]
	entries []raft.Log
	bytes   int
	max     int // of bytes
}

func entrySize(l *raft.Log) int { return len(l.Data) + len(l.Extensions) }

// add appends entries that were stored.
func (t *tail) add(logs []*raft.Log) {
	size := 0
	for _, l := range logs {
		size += entrySize(l)
	}
	if size > t.max {
		t.drop(0)
		return
	}
	slab := make([]byte, 0, size)
	keep := func(b []byte) []byte {
		if len(b) == 0 {
			return nil
		}
		n := len(slab)
		slab = append(slab, b...)
		return slab[n:len(slab):len(slab)]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.entries) == 0 || t.first+uint64(len(t.entries)) != logs[0].Index {
		t.entries, t.first, t.bytes = t.entries[:0:0], logs[0].Index, 0
	}
	for _, l := range logs {
		kept := *l
		kept.Data, kept.Extensions = keep(l.Data), keep(l.Extensions)
		t.entries = append(t.entries, kept)
	}
	t.bytes += size
	n := 0
	for len(t.entries)-n > tailEntries || t.bytes > t.max {
		t.bytes -= entrySize(&t.entries[n])
		t.entries[n] = raft.Log{}
		n++
	}
	t.entries, t.first = t.entries[n:], t.first+uint64(n)
}

// get copies out an entry; its bytes must not be changed.
func (t *tail) get(index uint64, out *raft.Log) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if index < t.first || index-t.first >= uint64(len(t.entries)) {
		return false
	}
	*out = t.entries[index-t.first]
	return true
}

// drop forgets the entries from an index on.
func (t *tail) drop(from uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	if from > t.first {
		n = int(min(from-t.first, uint64(len(t.entries))))
	}
	for i := n; i < len(t.entries); i++ {
		t.bytes -= entrySize(&t.entries[i])
		t.entries[i] = raft.Log{}
	}
	t.entries = t.entries[:n]
}

// markBytes is how far apart two marks are, at least, and maxMarks how many there are.
const (
	markBytes = 256 << 10
	maxMarks  = 16 << 10
)

// marks say roughly how many bytes lie between two entries of the log.
type marks struct {
	mu    sync.Mutex
	list  []mark
	total int64
}

// mark says that so many bytes were stored before an entry.
type mark struct {
	index uint64
	bytes int64
}

func (m *marks) add(logs []*raft.Log) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.list); n == 0 || m.total-m.list[n-1].bytes >= markBytes || logs[0].Index <= m.list[n-1].index {
		for n > 0 && m.list[n-1].index >= logs[0].Index {
			n-- // entries that were replaced
		}
		m.list = append(m.list[:n], mark{logs[0].Index, m.total})
	}
	for _, l := range logs {
		m.total += int64(entrySize(l)) + 32
	}
	if len(m.list) > maxMarks {
		m.list = append([]mark(nil), m.list[len(m.list)/2:]...)
	}
}

// found notes what a log held when it was opened.
func (m *marks) found(first, last uint64, bytes int64) {
	if last == 0 {
		return
	}
	const steps = 16
	for i := range uint64(steps) {
		m.list = append(m.list, mark{first + (last-first)/steps*i, bytes / steps * int64(i)})
	}
	m.total = bytes
}

// back returns the entry from which on there are at most limit bytes up to the entry to,
// and 0 when that is more than is known.
func (m *marks) back(to uint64, limit int64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.total
	from := uint64(0)
	for i := len(m.list) - 1; i >= 0; i-- {
		if m.list[i].index > to {
			end = m.list[i].bytes
			continue
		}
		if end-m.list[i].bytes > limit {
			if from == 0 {
				from = to
			}
			return from
		}
		from = m.list[i].index
	}
	return 0
}
