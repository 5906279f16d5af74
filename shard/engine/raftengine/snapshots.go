package raftengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

const (
	snapshotMeta    = "snapshot.json"
	snapshotRows    = "rows"
	snapshotTmp     = "tmp-"
	snapshotVersion = 1
)

// snapshotStore keeps the newest snapshot in a folder of its own: a Pebble checkpoint
// and a file that says where in the log it stands. A new one is made, or received from
// another member, in a folder tmp-…, synced, and renamed; only then is the old one
// removed, once it is not being sent any more. So there is a whole one at every moment.
type snapshotStore struct {
	fs  vfs.FS
	dir string
	// What a snapshot must say that is received, and what one says that is sent.
	clusterID   func() string
	bucketCount uint32
	doubles     bool // the machine looks at the number of buckets itself

	mu     sync.Mutex
	newest *raft.SnapshotMeta
	// installing tells that the next snapshot comes from another member.
	installing bool
	// open counts the readers of snapshots by id, doomed are those to be removed after their
	// last one.
	open   map[string]int
	doomed map[string]bool
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
	s := &snapshotStore{fs: fsys, dir: dir, open: make(map[string]int), doomed: make(map[string]bool)}
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

// dropBeyond removes a snapshot that holds more than the rows, which stand at index. It came
// from another member, and a crash came before its rows were taken over: Raft must not start
// from there. The log goes on from the rows, and the master sends what is missing again.
func (s *snapshotStore) dropBeyond(index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.Index <= index {
		return nil
	}
	id := s.newest.ID
	s.newest = nil
	return errors.Join(s.fs.RemoveAll(s.fs.PathJoin(s.dir, id)), syncDir(s.fs, s.dir))
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

// setInstalling says whether the next snapshot comes from another member.
func (s *snapshotStore) setInstalling(yes bool) {
	s.mu.Lock()
	s.installing = yes
	s.mu.Unlock()
}

// oldestOpen returns the place in the log of the oldest snapshot that is being sent.
func (s *snapshotStore) oldestOpen() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.open {
		var at, term uint64
		if _, err := fmt.Sscanf(id, "%d-%d", &at, &term); err == nil && (!ok || at < index) {
			index, ok = at, true
		}
	}
	return index, ok
}

// Create begins a snapshot.
func (s *snapshotStore) Create(_ raft.SnapshotVersion, index, term uint64, members raft.Configuration, from uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	id := fmt.Sprintf("%020d-%d", index, term)
	sink := &sink{s: s, meta: snapshotMetaOf(id, index, term, members, from), tmp: s.fs.PathJoin(s.dir, snapshotTmp+id)}
	if err := s.fs.RemoveAll(sink.tmp); err != nil {
		return nil, err
	}
	if err := s.fs.MkdirAll(sink.tmp, 0o755); err != nil {
		return nil, err
	}
	s.mu.Lock()
	installing := s.installing
	s.mu.Unlock()
	if installing {
		dir := s.fs.PathJoin(sink.tmp, snapshotRows)
		if err := s.fs.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		sink.in = &receiver{fs: s.fs, dir: dir, check: s.check}
	}
	return sink, nil
}

// check refuses the snapshot of another cluster.
func (s *snapshotStore) check(h *streamHeader) error {
	if ours := s.clusterID(); h.ClusterID != ours {
		return fmt.Errorf("the snapshot is of cluster %q, this member of cluster %q", h.ClusterID, ours)
	}
	if h.BucketCount != s.bucketCount && !(s.doubles && engine.Doubled(h.BucketCount, s.bucketCount)) {
		return fmt.Errorf("the snapshot is of a cluster with bucket_count %d, this member has %d", h.BucketCount, s.bucketCount)
	}
	return nil
}

// sink is a snapshot in the making.
type sink struct {
	s    *snapshotStore
	meta *raft.SnapshotMeta
	tmp  string
	in   *receiver // of a snapshot from another member
	done bool
}

func (k *sink) ID() string { return k.meta.ID }

// Write takes the next bytes of a snapshot from another member.
func (k *sink) Write(b []byte) (int, error) {
	if k.in == nil {
		return 0, errors.New("a snapshot of this member's own is made of files, not of bytes")
	}
	return k.in.Write(b)
}

// Close puts the finished snapshot in the place of the one before.
func (k *sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	s := k.s
	if k.in != nil {
		if err := k.in.finish(); err != nil {
			return errors.Join(err, s.fs.RemoveAll(k.tmp))
		}
	}
	if err := s.writeMeta(k.tmp, k.meta); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.newest
	if old != nil && old.Index > k.meta.Index {
		return errors.Join(fmt.Errorf("a snapshot at entry %d is there already, later than %d", old.Index, k.meta.Index), s.fs.RemoveAll(k.tmp))
	}
	final := s.fs.PathJoin(s.dir, k.meta.ID)
	if old != nil && old.ID == k.meta.ID {
		if s.open[old.ID] > 0 {
			// As good, and being sent.
			return s.fs.RemoveAll(k.tmp)
		}
		// A snapshot at the same place in the log is as good; it makes room for this one.
		if err := s.fs.RemoveAll(final); err != nil {
			return err
		}
	}
	if err := s.fs.Rename(k.tmp, final); err != nil {
		return err
	}
	if err := syncDir(s.fs, s.dir); err != nil {
		return err
	}
	s.newest = k.meta
	if old == nil || old.ID == k.meta.ID {
		return nil
	}
	if s.open[old.ID] > 0 {
		s.doomed[old.ID] = true
		return nil
	}
	return s.fs.RemoveAll(s.fs.PathJoin(s.dir, old.ID))
}

// writeMeta writes where in the log the snapshot in a folder stands.
func (s *snapshotStore) writeMeta(dir string, m *raft.SnapshotMeta) error {
	text, err := json.MarshalIndent(snapshotFile{
		Version: snapshotVersion, Index: m.Index, Term: m.Term,
		Members: m.Configuration, MembersFrom: m.ConfigurationIndex,
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.fs, dir, snapshotMeta, append(text, '\n'))
}

// settle notes where the rows of the newest snapshot really stand: a checkpoint may hold
// later commands than the log said when it was asked for.
func (s *snapshotStore) settle(id string, at position, members raft.Configuration, from uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.ID != id {
		return nil
	}
	m := snapshotMetaOf(id, at.index, at.term, members, from)
	if err := s.writeMeta(s.fs.PathJoin(s.dir, id), m); err != nil {
		return err
	}
	s.newest = m
	return nil
}

// Cancel drops what was made.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	var err error
	if k.in != nil {
		err = k.in.abandon()
	}
	return errors.Join(err, k.s.fs.RemoveAll(k.tmp))
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
	rows := c.e.enter()
	if rows == nil {
		return errClosed()
	}
	defer rows.views.leave()
	if err := rows.db.Flush(); err != nil {
		return err
	}
	if err := rows.db.Checkpoint(k.s.fs.PathJoin(k.tmp, snapshotRows)); err != nil {
		return err
	}
	c.e.metrics.snapshot(time.Since(start))
	return nil
}

func (c *checkpoint) Release() {}
