package raftengine

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// logStore is what the engine needs of a log beyond Raft.
type logStore interface {
	raft.LogStore
	// Sync makes everything stored durable.
	Sync() error
	Close() error
}

// memLog is a log in memory. Entries are copied, because the arguments of a command
// belong to its proposer again once it is done.
type memLog struct {
	mu      sync.RWMutex
	first   uint64 // index of entries[0]; 0 when empty
	entries []raft.Log
}

func (m *memLog) FirstIndex() (uint64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.first, nil
}

func (m *memLog) LastIndex() (uint64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if len(m.entries) == 0 {
		return 0, nil
	}
	return m.first + uint64(len(m.entries)) - 1, nil
}

func (m *memLog) GetLog(index uint64, out *raft.Log) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if len(m.entries) == 0 || index < m.first || index >= m.first+uint64(len(m.entries)) {
		return raft.ErrLogNotFound
	}
	*out = m.entries[index-m.first]
	return nil
}

func (m *memLog) StoreLog(l *raft.Log) error { return m.StoreLogs([]*raft.Log{l}) }

func (m *memLog) StoreLogs(logs []*raft.Log) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range logs {
		if len(m.entries) == 0 {
			m.first = l.Index
		} else if next := m.first + uint64(len(m.entries)); l.Index != next {
			return fmt.Errorf("log entry %d cannot follow %d", l.Index, next-1)
		}
		kept := *l
		kept.Data, kept.Extensions = bytes.Clone(l.Data), bytes.Clone(l.Extensions)
		m.entries = append(m.entries, kept)
	}
	return nil
}

func (m *memLog) DeleteRange(from, to uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) == 0 {
		return nil
	}
	last := m.first + uint64(len(m.entries)) - 1
	from, to = max(from, m.first), min(to, last)
	switch {
	case from > to:
	case from == m.first:
		m.entries = append([]raft.Log(nil), m.entries[to-m.first+1:]...)
		m.first = to + 1
	case to == last:
		clear(m.entries[from-m.first:])
		m.entries = m.entries[:from-m.first]
	default:
		return fmt.Errorf("entries %d to %d are in the middle of the log", from, to)
	}
	if len(m.entries) == 0 {
		m.first = 0
	}
	return nil
}

// IsMonotonic tells Raft that entries follow each other without gaps.
func (m *memLog) IsMonotonic() bool { return true }

func (m *memLog) Sync() error  { return nil }
func (m *memLog) Close() error { return nil }
