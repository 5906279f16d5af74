package wal

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

const (
	// fillChunk is written at once into a new file, and fillSync is how much of it is unsynced at most, so that a sync of
	// the log does not wait behind it for long.
	fillChunk = 256 << 10
	fillSync  = 1 << 20
	// wantSpares are kept ready; maxSpares is how many recycled files may wait.
	wantSpares = 1
	maxSpares  = 2
	// retrySpare is how long a failed preparation waits for the next try.
	retrySpare = time.Second
)

var zeroChunk = make([]byte, fillChunk)

// spareFile is a file ready to become a segment: real blocks on disk, its length durable.
type spareFile struct {
	path     string
	size     int64
	recycled bool
}

// spares makes and keeps files for future segments, in the background.
type spares struct {
	fs  FS
	dir string
	max int64       // size of a full-grown segment
	low func(error) // told when space runs low

	mu        sync.Mutex
	changed   sync.Cond
	ready     []spareFile
	size      int64  // of the next file to make
	number    uint64 // of the last file made
	preparing bool
	err       error // of the last preparation
	stopped   bool

	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

func newSpares(fs FS, dir string, max, size int64, number uint64, low func(error)) *spares {
	s := &spares{
		fs: fs, dir: dir, max: max, size: size, number: number, low: low,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.changed.L = &s.mu
	return s
}

// run prepares files until close.
func (s *spares) run() {
	defer close(s.done)
	var retry <-chan time.Time
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-retry:
		}
		retry = nil
		if s.fillUp() != nil {
			retry = time.After(retrySpare)
		}
	}
}

// fillUp makes files until enough are ready.
func (s *spares) fillUp() error {
	for {
		s.mu.Lock()
		if s.stopped || len(s.ready) >= wantSpares {
			s.mu.Unlock()
			return nil
		}
		s.preparing = true
		size := s.nextSize()
		s.number++
		n := s.number
		s.mu.Unlock()

		f, err := s.make(n, size)

		s.mu.Lock()
		s.preparing = false
		news := err != nil && s.err == nil
		s.err = err
		if err == nil {
			s.ready = append(s.ready, f)
		}
		s.changed.Broadcast()
		stopped := s.stopped
		s.mu.Unlock()
		if news && !stopped {
			s.low(err)
		}
		if err != nil {
			return err
		}
	}
}

// nextSize is the size of the file to make now: the log's files grow.
func (s *spares) nextSize() int64 {
	size := s.size
	s.size = min(s.size*4, s.max)
	return size
}

// make writes a file of zeros. Blocks that were written once cost less to sync than new ones.
func (s *spares) make(n uint64, size int64) (spareFile, error) {
	base := filepath.Join(s.dir, fmt.Sprintf("%016x", n))
	err := s.fill(base+extTemp, size)
	if err == nil {
		err = s.fs.Rename(base+extTemp, base+extZero)
	}
	if err != nil {
		// Not to hold what is left of a full disk.
		_ = s.fs.Remove(base + extTemp)
		return spareFile{}, fmt.Errorf("cannot prepare a log segment of %d bytes in %s: %w", size, s.dir, err)
	}
	return spareFile{path: base + extZero, size: size}, nil
}

func (s *spares) fill(path string, size int64) error {
	f, err := s.fs.Create(path)
	if err != nil {
		return err
	}
	for off := int64(0); off < size && err == nil; off += fillChunk {
		select {
		case <-s.stop:
			err = ErrClosed
			continue
		default:
		}
		chunk := zeroChunk[:min(fillChunk, size-off)]
		if _, err = f.WriteAt(chunk, off); err == nil && (off+fillChunk)%fillSync == 0 {
			err = f.Sync()
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// take hands out a file of at least need bytes. It waits for one that is being prepared, and makes one if there is none.
func (s *spares) take(need int64) (spareFile, error) {
	s.mu.Lock()
	for s.preparing && len(s.ready) == 0 && need <= s.max {
		s.changed.Wait()
	}
	for i, f := range s.ready {
		if f.size >= need {
			s.ready = append(s.ready[:i], s.ready[i+1:]...)
			s.mu.Unlock()
			s.signal()
			return f, nil
		}
	}
	size := s.nextSize()
	if size < need {
		size = (need + 4095) &^ 4095
	}
	s.number++
	n := s.number
	s.mu.Unlock()
	f, err := s.make(n, size)
	s.signal()
	return f, err
}

// signal wakes the preparer.
func (s *spares) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// recycle keeps the file of a deleted segment for later, or removes it.
func (s *spares) recycle(path string, size int64) error {
	s.mu.Lock()
	keep := !s.stopped && size == s.max && len(s.ready) < maxSpares
	var to string
	if keep {
		s.number++
		to = filepath.Join(s.dir, fmt.Sprintf("%016x%s", s.number, extRecycled))
	}
	s.mu.Unlock()
	if !keep {
		return s.fs.Remove(path)
	}
	if err := s.fs.Rename(path, to); err != nil {
		return err
	}
	s.mu.Lock()
	s.ready = append(s.ready, spareFile{path: to, size: size, recycled: true})
	s.err = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	return nil
}

// status returns the bytes ready and the error of the last preparation.
func (s *spares) status() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for _, f := range s.ready {
		n += f.size
	}
	return n, s.err
}

// close stops the preparation and waits for it.
func (s *spares) close() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	close(s.stop)
	<-s.done
}
