package wal

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
)

const sector = 512

var errPower = errors.New("the power is off")

// powerFS is a file system in memory that knows what would survive a power cut: synced bytes, a random part of the unsynced
// sectors, synced names, and a random first part of the unsynced name changes.
type powerFS struct {
	mu      sync.Mutex
	rng     *rand.Rand
	names   map[string]*inode
	durable map[string]*inode
	pending []func(map[string]*inode)
	ops     int
	cutAt   int // the operation during which the power goes; 0 for never
	off     bool
	space   int64 // bytes that files may still grow by; negative for no limit

	// fail is asked before each operation with its name and file; an error is returned instead, a short write done half.
	fail func(op, name string) error
}

type inode struct {
	cur, safe []byte
	dirty     map[int64]struct{} // sectors of cur that differ from safe, perhaps
}

var errShort = errors.New("short")

func newPowerFS(seed uint64) *powerFS {
	return &powerFS{
		rng: rand.New(rand.NewPCG(seed, 1)), names: map[string]*inode{}, durable: map[string]*inode{}, space: -1,
	}
}

// op counts an operation that changes something and tells whether the power goes during it.
func (p *powerFS) op(name, file string) error {
	if p.off {
		return errPower
	}
	if p.fail != nil {
		if err := p.fail(name, filepath.Base(file)); err != nil {
			return err
		}
	}
	p.ops++
	if p.ops == p.cutAt {
		p.off = true
	}
	return nil
}

func (p *powerFS) after() error {
	if p.off {
		return errPower
	}
	return nil
}

// content returns what a file holds, written back or not. A log that is open may be making
// spare files meanwhile.
func (p *powerFS) content(name string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names[name].cur)
}

// set changes the file system's own fields. A log that is open works on it in the background.
func (p *powerFS) set(change func(*powerFS)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// operations returns how many there were.
func (p *powerFS) operations() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ops
}

// kill returns the file system as the next process sees it when this one was killed: nothing is lost, nothing is synced.
func (p *powerFS) kill() *powerFS {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := newPowerFS(p.rng.Uint64())
	copied := map[*inode]*inode{}
	clone := func(n *inode) *inode {
		if copied[n] == nil {
			copied[n] = &inode{slices.Clone(n.cur), slices.Clone(n.safe), maps.Clone(n.dirty)}
		}
		return copied[n]
	}
	// Name changes that are not durable yet are taken for durable: they lie in the past of the next process.
	for name, n := range p.names {
		q.names[name], q.durable[name] = clone(n), clone(n)
	}
	p.off = true
	return q
}

// cut returns the file system after a power cut.
func (p *powerFS) cut() *powerFS {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	q := newPowerFS(p.rng.Uint64())
	names := maps.Clone(p.durable)
	for _, change := range p.pending[:p.rng.IntN(len(p.pending)+1)] {
		change(names)
	}
	keep := []float64{0, 1, 0.5, 0.9, 0.1}[p.rng.IntN(5)]
	done := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		if done[n] == nil {
			for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
				if p.rng.Float64() < keep {
					n.writeBack(s)
				}
			}
			b := slices.Clone(n.safe)
			done[n] = &inode{cur: b, safe: slices.Clone(b), dirty: map[int64]struct{}{}}
		}
		q.names[name], q.durable[name] = done[n], done[n]
	}
	return q
}

// writeBack makes one sector durable.
func (n *inode) writeBack(s int64) {
	from, to := s*sector, min((s+1)*sector, int64(len(n.cur)))
	if from < to {
		if grow := to - int64(len(n.safe)); grow > 0 {
			n.safe = append(n.safe, make([]byte, grow)...)
		}
		copy(n.safe[from:to], n.cur[from:to])
	}
	delete(n.dirty, s)
}

func (p *powerFS) Open(name string, _ bool) (File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return nil, errPower
	}
	if p.fail != nil {
		if err := p.fail("open", filepath.Base(name)); err != nil {
			return nil, err
		}
	}
	n := p.names[name]
	if n == nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	return &powerFile{p, n, name}, nil
}

func (p *powerFS) change(f func(map[string]*inode)) {
	f(p.names)
	p.pending = append(p.pending, f)
}

func (p *powerFS) Create(name string) (File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.op("create", name); err != nil {
		return nil, err
	}
	n := &inode{dirty: map[int64]struct{}{}}
	p.change(func(m map[string]*inode) { m[name] = n })
	return &powerFile{p, n, name}, p.after()
}

func (p *powerFS) Rename(from, to string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.op("rename", to); err != nil {
		return err
	}
	if p.names[from] == nil {
		return os.ErrNotExist
	}
	p.change(func(m map[string]*inode) { m[to] = m[from]; delete(m, from) })
	return p.after()
}

func (p *powerFS) Remove(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.op("remove", name); err != nil {
		return err
	}
	n := p.names[name]
	if n == nil {
		return os.ErrNotExist
	}
	if p.space >= 0 {
		p.space += int64(len(n.cur))
	}
	p.change(func(m map[string]*inode) { delete(m, name) })
	return p.after()
}

func (p *powerFS) List(dir string) ([]FileInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return nil, errPower
	}
	var out []FileInfo
	for name, n := range p.names {
		if base, ok := strings.CutPrefix(name, dir+"/"); ok && !strings.Contains(base, "/") {
			out = append(out, FileInfo{base, int64(len(n.cur))})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

func (p *powerFS) MkdirAll(string) error { return nil }

func (p *powerFS) SyncDir(dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.op("syncdir", dir); err != nil {
		return err
	}
	if p.off {
		return errPower
	}
	p.durable, p.pending = maps.Clone(p.names), nil
	return nil
}

type powerFile struct {
	p    *powerFS
	n    *inode
	name string
}

func (f *powerFile) ReadAt(b []byte, off int64) (int, error) {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	if f.p.off {
		return 0, errPower
	}
	if f.p.fail != nil {
		if err := f.p.fail("read", filepath.Base(f.name)); err != nil {
			return 0, err
		}
	}
	if off >= int64(len(f.n.cur)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.cur[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *powerFile) WriteAt(b []byte, off int64) (int, error) {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	err := f.p.op("write", f.name)
	if errors.Is(err, errShort) {
		b, err = b[:len(b)/2], nil
	}
	if err != nil {
		return 0, err
	}
	if grow := off + int64(len(b)) - int64(len(f.n.cur)); grow > 0 {
		if f.p.space >= 0 && grow > f.p.space {
			return 0, syscall.ENOSPC
		}
		if f.p.space >= 0 {
			f.p.space -= grow
		}
		f.n.cur = append(f.n.cur, make([]byte, grow)...)
	}
	copy(f.n.cur[off:], b)
	for s := off / sector; s*sector < off+int64(len(b)); s++ {
		f.n.dirty[s] = struct{}{}
		// The system writes back when it likes.
		if f.p.rng.IntN(10) == 0 {
			f.n.writeBack(s)
		}
	}
	return len(b), f.p.after()
}

func (f *powerFile) Sync() error {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	if err := f.p.op("sync", f.name); err != nil {
		return err
	}
	if f.p.off {
		return errPower
	}
	for s := range f.n.dirty {
		f.n.writeBack(s)
	}
	return nil
}

func (f *powerFile) Size() (int64, error) {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	return int64(len(f.n.cur)), f.p.after()
}

func (f *powerFile) Close() error { return nil }
