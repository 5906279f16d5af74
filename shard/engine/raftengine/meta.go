package raftengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// formatVersion is the version of the folder as a whole. A folder with a newer one is
// refused.
const formatVersion = 1

const metaName = "meta.json"

// meta is what a folder says about itself.
type meta struct {
	Format      int    `json:"format"`
	ClusterID   string `json:"cluster_id"`
	BucketCount uint32 `json:"bucket_count"`
	// MemberID is this member's name in its Raft group.
	MemberID string `json:"member_id"`
	// Started is set once the log has its first entry; from then on an empty log is a loss.
	Started bool `json:"started"`
	// Rows is the folder of the rows, empty for "rows". Base is where in the log they stood
	// when they were taken over from another member: up to there the log need not reach.
	Rows string `json:"rows,omitempty"`
	Base uint64 `json:"base,omitempty"`
	// Mute is set while a member that began without data has not caught up: it may have
	// lost a disk, and with it what it had promised, so it takes no part in elections.
	Mute bool `json:"mute,omitempty"`
	// Sum is the CRC-32C of the fields above as text, so that a flipped bit is noticed.
	Sum uint32 `json:"sum"`
}

func (m *meta) sum() uint32 {
	text := fmt.Sprintf("%d|%s|%d|%s|%t", m.Format, m.ClusterID, m.BucketCount, m.MemberID, m.Started)
	if m.Rows != "" || m.Base != 0 || m.Mute {
		text += fmt.Sprintf("|%s|%d|%t", m.Rows, m.Base, m.Mute)
	}
	return crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))
}

func badFolder(dir, format string, args ...any) error {
	return &shard.Error{Code: shard.InvalidConfig, Reason: "data folder " + dir + ": " + fmt.Sprintf(format, args...)}
}

// openMeta reads the folder's meta.json, or makes one in a new folder, and checks it
// against the options.
func openMeta(fsys vfs.FS, dir string, o *Options) (*meta, error) {
	path := fsys.PathJoin(dir, metaName)
	m, err := readMeta(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return newMeta(fsys, dir, o)
	}
	if err != nil {
		return nil, badFolder(dir, "%s cannot be used: %v", metaName, err)
	}
	if m.Format > formatVersion {
		return nil, badFolder(dir, "it has format version %d and this version of Switchyard knows %d; use the version that wrote it, or a newer one", m.Format, formatVersion)
	}
	if strings.ContainsAny(m.Rows, `/\`) || m.Rows != "" && !strings.HasPrefix(m.Rows, rowsDir) {
		return nil, badFolder(dir, "%s names %q as the folder of the rows", metaName, m.Rows)
	}
	if m.Sum != m.sum() {
		return nil, badFolder(dir, "%s is damaged: its checksum does not match; restore it from a backup of the folder", metaName)
	}
	if o.ClusterID != "" && m.ClusterID != "" && o.ClusterID != m.ClusterID {
		return nil, badFolder(dir, "it belongs to cluster %s, not to %s", m.ClusterID, o.ClusterID)
	}
	if _, doubles := o.Machine.(engine.Doubler); o.BucketCount != m.BucketCount && !(doubles && engine.Doubled(o.BucketCount, m.BucketCount)) {
		return nil, badFolder(dir, "it was made with bucket_count %d and cannot be used with %d", m.BucketCount, o.BucketCount)
	}
	return m, nil
}

func readMeta(fsys vfs.FS, path string) (*meta, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var m meta
	d := json.NewDecoder(f)
	if err := d.Decode(&m); err != nil {
		return nil, err
	}
	return &m, nil
}

func newMeta(fsys vfs.FS, dir string, o *Options) (*meta, error) {
	for _, sub := range []string{logDir, rowsDir, snapshotDir} {
		if names, err := fsys.List(fsys.PathJoin(dir, sub)); err == nil && len(names) > 0 {
			return nil, badFolder(dir, "%s is missing although %s is not empty; restore it from a backup, or use another folder", metaName, sub)
		}
	}
	m := &meta{Format: formatVersion, ClusterID: o.ClusterID, BucketCount: o.BucketCount}
	if o.Transport != nil {
		// The cluster is that of the group which this member will be part of.
		m.MemberID, m.Mute = o.Transport.ID(), true
		return m, m.write(fsys, dir)
	}
	m.MemberID = uuid.NewString()
	if m.ClusterID == "" {
		m.ClusterID = uuid.NewString()
	}
	return m, m.write(fsys, dir)
}

// rowsName returns the name of the folder of the rows.
func (m *meta) rowsName() string {
	if m.Rows == "" {
		return rowsDir
	}
	return m.Rows
}

func (m *meta) write(fsys vfs.FS, dir string) error {
	m.Sum = m.sum()
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(fsys, dir, metaName, append(text, '\n'))
}

// writeFile replaces a small file so that after a crash it is the old or the new one.
func writeFile(fsys vfs.FS, dir, name string, data []byte) (err error) {
	tmp := fsys.PathJoin(dir, name+".tmp")
	f, err := fsys.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fsys.Rename(tmp, fsys.PathJoin(dir, name))
	}
	if err == nil {
		err = syncDir(fsys, dir)
	}
	return err
}

// makeDir makes a folder and the missing ones above it, for good.
func makeDir(fsys vfs.FS, dir string) error {
	if info, err := fsys.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := fsys.PathDir(dir)
	if parent != dir {
		if err := makeDir(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fsys, parent)
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockFolder keeps a second process, or a second engine in this one, off the folder.
func lockFolder(fsys vfs.FS, dir string) (func() error, error) {
	path := fsys.PathJoin(dir, "LOCK")
	lock, err := fsys.Lock(path)
	if err != nil {
		abs, absErr := filepath.Abs(dir)
		if absErr != nil {
			abs = dir
		}
		if errors.Is(err, fs.ErrPermission) && !errors.Is(err, os.ErrExist) {
			return nil, badFolder(abs, "no permission to write: %v", err)
		}
		return nil, badFolder(abs, "another process uses it (%v); stop that one first, or use another folder", err)
	}
	return lock.Close, nil
}
