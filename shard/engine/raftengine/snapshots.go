package raftengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

const (
	snapshotMeta    = "snapshot.json"
	snapshotRows    = "rows"
	snapshotTmp     = "tmp-"
	snapshotVersion = 1
)

// snapshotStore keeps the newest snapshot in a folder of its own: a Pebble checkpoint
// and a file that says where in the log it stands. A new one is made in a folder
// tmp-…, synced, and renamed; only then is the old one removed. So there is a whole
// one at every moment.
type snapshotStore struct {
	fs  vfs.FS
	dir string

	mu     sync.Mutex
	newest *raft.SnapshotMeta
	// live is where the rows themselves stand when the engine starts. They are as good
	// as a snapshot, so Raft starts from there and not from an older checkpoint. It is
	// forgotten once Raft has started, because it cannot be handed to another member.
	live *raft.SnapshotMeta
}

// snapshotFile is the content of snapshot.json.
type snapshotFile struct {
	Version     int                `json:"version"`
	Index       uint64             `json:"index"`
	Term        uint64             `json:"term"`
	Members     raft.Configuration `json:"members"`
	MembersFrom uint64             `json:"members_from"`
}

// openSnapshots removes what a crash left half made and finds the newest snapshot.
func openSnapshots(fsys vfs.FS, dir string) (*snapshotStore, error) {
	s := &snapshotStore{fs: fsys, dir: dir}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var old []string
	for _, name := range names {
		if strings.HasPrefix(name, snapshotTmp) {
			old = append(old, name)
			continue
		}
		m, err := s.read(name)
		if err != nil {
			return nil, fmt.Errorf("snapshot %s cannot be read: %w; move its folder away to start without it", fsys.PathJoin(dir, name), err)
		}
		if s.newest == nil || m.Index > s.newest.Index {
			if s.newest != nil {
				old = append(old, s.newest.ID)
			}
			s.newest = m
		} else {
			old = append(old, name)
		}
	}
	for _, name := range old {
		if err := fsys.RemoveAll(fsys.PathJoin(dir, name)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *snapshotStore) read(name string) (*raft.SnapshotMeta, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, name, snapshotMeta))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var sf snapshotFile
	if err := json.NewDecoder(f).Decode(&sf); err != nil {
		return nil, err
	}
	if sf.Version > snapshotVersion {
		return nil, fmt.Errorf("it has format version %d and this version of Switchyard knows %d", sf.Version, snapshotVersion)
	}
	return snapshotMetaOf(name, sf.Index, sf.Term, sf.Members, sf.MembersFrom), nil
}

func snapshotMetaOf(id string, index, term uint64, members raft.Configuration, from uint64) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: id, Index: index, Term: term,
		Configuration: members, ConfigurationIndex: from,
	}
}

// List returns the one snapshot that Raft should know of.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.live != nil:
		return []*raft.SnapshotMeta{s.live}, nil
	case s.newest != nil:
		return []*raft.SnapshotMeta{s.newest}, nil
	}
	return nil, nil
}

// setLive says where the rows stand while Raft starts; nil ends that.
func (s *snapshotStore) setLive(m *raft.SnapshotMeta) {
	s.mu.Lock()
	s.live = m
	s.mu.Unlock()
}

// newestIndex returns the log index of the newest snapshot, 0 for none.
func (s *snapshotStore) newestIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return 0
	}
	return s.newest.Index
}

// Open would hand a snapshot to another member.
func (s *snapshotStore) Open(string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	return nil, nil, errors.New("a group of one member has nobody to hand a snapshot to")
}

// Create begins a snapshot.
func (s *snapshotStore) Create(_ raft.SnapshotVersion, index, term uint64, members raft.Configuration, from uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	id := fmt.Sprintf("%020d-%d", index, term)
	sink := &sink{s: s, meta: snapshotMetaOf(id, index, term, members, from), tmp: s.fs.PathJoin(s.dir, snapshotTmp+id)}
	if err := s.fs.RemoveAll(sink.tmp); err != nil {
		return nil, err
	}
	return sink, s.fs.MkdirAll(sink.tmp, 0o755)
}

// sink is a snapshot in the making.
type sink struct {
	s    *snapshotStore
	meta *raft.SnapshotMeta
	tmp  string
	done bool
}

func (k *sink) ID() string { return k.meta.ID }

// Write would take a snapshot from another member.
func (k *sink) Write([]byte) (int, error) {
	return 0, errors.New("a group of one member has nobody to take a snapshot from")
}

// Close puts the finished snapshot in the place of the one before.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	s := k.s
	text, err := json.MarshalIndent(snapshotFile{
		Version: snapshotVersion, Index: k.meta.Index, Term: k.meta.Term,
		Members: k.meta.Configuration, MembersFrom: k.meta.ConfigurationIndex,
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(s.fs, k.tmp, snapshotMeta, append(text, '\n')); err != nil {
		return err
	}
	final := s.fs.PathJoin(s.dir, k.meta.ID)
	// A snapshot at the same place in the log is as good; it makes room for this one.
	if err := s.fs.RemoveAll(final); err != nil {
		return err
	}
	if err := s.fs.Rename(k.tmp, final); err != nil {
		return err
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.newest
	s.newest = k.meta
	s.mu.Unlock()
	if old != nil && old.ID != k.meta.ID {
		return s.fs.RemoveAll(s.fs.PathJoin(s.dir, old.ID))
	}
	return nil
}

// Cancel drops what was made.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	return k.s.fs.RemoveAll(k.tmp)
}

// checkpoint makes the snapshot that was asked for.
type checkpoint struct{ e *Engine }

// Persist runs beside the applying. When it is done, the rows on the disk hold at least
// everything up to the snapshot's index, so the log may be cut there.
func (c *checkpoint) Persist(s raft.SnapshotSink) error {
	k, ok := s.(*sink)
	if !ok {
		return fmt.Errorf("the sink of a snapshot is a %T", s)
	}
	start := time.Now()
	if err := c.e.db.Flush(); err != nil {
		return err
	}
	if err := c.e.db.Checkpoint(k.s.fs.PathJoin(k.tmp, snapshotRows)); err != nil {
		return err
	}
	c.e.metrics.snapshot(time.Since(start))
	return nil
}

func (c *checkpoint) Release() {}
