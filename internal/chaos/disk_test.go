package chaos

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// disk is the disk below a member's log. It can hang, and when the member is killed it may
// lose, sector by sector, what was written and not synced.
type disk struct {
	wal.FS

	mu      sync.Mutex
	hung    int
	dead    bool
	changed chan struct{}
	files   map[string]*inode
}

const sectorSize = 512

// inode is a file, and what its sectors were when it was synced last, as far as they were
// written since.
type inode struct {
	old map[int64][]byte
}

var errDead = errors.New("the machine is off")

func newDisk() *disk {
	return &disk{FS: wal.OS, changed: make(chan struct{}), files: map[string]*inode{}}
}

func (d *disk) change(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
	close(d.changed)
	d.changed = make(chan struct{})
}

// hang makes writes and syncs wait until heal is called.
func (d *disk) hang() (heal func()) {
	d.change(func() { d.hung++ })
	return func() { d.change(func() { d.hung-- }) }
}

// die makes everything fail that writes, from now on. Votes and terms alone seem to be written, and are
// not: the process would end when they cannot, and this one must go on.
func (d *disk) die() { d.change(func() { d.dead = true }) }

func (d *disk) isDead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead
}

// wait returns when the disk works.
func (d *disk) wait() error {
	for {
		d.mu.Lock()
		dead, hung, changed := d.dead, d.hung > 0, d.changed
		d.mu.Unlock()
		if dead {
			return errDead
		}
		if !hung {
			return nil
		}
		<-changed
	}
}

// tear puts back a random part of the sectors that were not synced; call it after die, when
// nobody uses the disk any more. It returns how many it put back.
func (d *disk) tear(rnd *rand.Rand) (torn int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.files))
	for name := range d.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		i := d.files[name]
		if len(i.old) == 0 {
			continue
		}
		f, ferr := d.FS.Open(name, true)
		if ferr != nil {
			return torn, ferr
		}
		sectors := make([]int64, 0, len(i.old))
		for s := range i.old {
			sectors = append(sectors, s)
		}
		slices.Sort(sectors)
		for _, s := range sectors {
			if rnd.IntN(2) == 0 {
				continue
			}
			torn++
			if _, werr := f.WriteAt(i.old[s], s*sectorSize); werr != nil {
				err = werr
			}
		}
		if cerr := errors.Join(f.Sync(), f.Close()); cerr != nil {
			err = cerr
		}
	}
	return torn, err
}

func (d *disk) inode(name string, fresh bool) *inode {
	d.mu.Lock()
	defer d.mu.Unlock()
	name = filepath.Clean(name)
	i := d.files[name]
	if i == nil || fresh {
		i = &inode{old: map[int64][]byte{}}
		d.files[name] = i
	}
	return i
}

// Open implements wal.FS.
func (d *disk) Open(name string, write bool) (wal.File, error) {
	if err := d.wait(); err != nil && write {
		return nil, err
	}
	f, err := d.FS.Open(name, write)
	if err != nil {
		return nil, err
	}
	return &file{File: f, d: d, i: d.inode(name, false), name: name}, nil
}

// Create implements wal.FS.
func (d *disk) Create(name string) (wal.File, error) {
	if err := d.wait(); err != nil {
		if isVote(name) {
			return nowhere{}, nil
		}
		return nil, err
	}
	f, err := d.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return &file{File: f, d: d, i: d.inode(name, true), name: name}, nil
}

// Rename implements wal.FS.
func (d *disk) Rename(from, to string) error {
	if err := d.wait(); err != nil {
		if isVote(to) {
			return nil
		}
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.FS.Rename(from, to); err != nil {
		return err
	}
	from, to = filepath.Clean(from), filepath.Clean(to)
	d.files[to] = d.files[from]
	delete(d.files, from)
	if d.files[to] == nil {
		delete(d.files, to)
	}
	return nil
}

// Remove implements wal.FS.
func (d *disk) Remove(name string) error {
	if err := d.wait(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, filepath.Clean(name))
	return d.FS.Remove(name)
}

// SyncDir implements wal.FS.
func (d *disk) SyncDir(dir string) error {
	if err := d.wait(); err != nil {
		return nil // nothing is kept anyway
	}
	return d.FS.SyncDir(dir)
}

// isVote tells whether a file is that of Raft's votes and terms.
func isVote(name string) bool { return strings.HasPrefix(filepath.Base(name), "stable") }

// nowhere is a file that keeps nothing.
type nowhere struct{}

func (nowhere) ReadAt([]byte, int64) (int, error)      { return 0, errDead }
func (nowhere) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (nowhere) Sync() error                            { return nil }
func (nowhere) Close() error                           { return nil }
func (nowhere) Size() (int64, error)                   { return 0, nil }

// file is an open file.
type file struct {
	wal.File
	d    *disk
	i    *inode
	name string
}

func (f *file) WriteAt(b []byte, at int64) (int, error) {
	if isVote(f.name) {
		return f.File.WriteAt(b, at) // it counts once it has its name
	}
	if err := f.d.wait(); err != nil {
		return 0, err
	}
	if err := f.remember(at, int64(len(b))); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, at)
}

// remember keeps what is in the sectors that are about to be written. What is behind the
// end of the file may come to be zeros.
func (f *file) remember(at, n int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	size, err := f.File.Size()
	if err != nil {
		return err
	}
	for s := at / sectorSize; s*sectorSize < at+n; s++ {
		if _, ok := f.i.old[s]; ok {
			continue
		}
		b := make([]byte, sectorSize)
		if have := min(size-s*sectorSize, sectorSize); have > 0 {
			if _, err := f.File.ReadAt(b[:have], s*sectorSize); err != nil {
				return err
			}
		}
		f.i.old[s] = b
	}
	return nil
}

func (f *file) Sync() error {
	if err := f.d.wait(); err != nil {
		return err
	}
	if isVote(f.name) {
		return f.File.Sync()
	}
	f.d.mu.Lock()
	synced := f.i.old
	f.i.old = map[int64][]byte{}
	f.d.mu.Unlock()
	if err := f.File.Sync(); err != nil {
		return err
	}
	// What hung when the machine went off was not synced.
	if err := f.d.wait(); err != nil {
		f.d.mu.Lock()
		for s, b := range synced {
			f.i.old[s] = b
		}
		f.d.mu.Unlock()
		return err
	}
	return nil
}
