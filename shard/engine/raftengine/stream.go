package raftengine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// A snapshot travels as one stream of bytes:
//
//	magic      8 bytes, streamMagic
//	length     4 bytes, big endian, of the header
//	header     JSON: the cluster, the bucket count, names and sizes of the files
//	checksum   4 bytes, big endian, CRC-32C of the header
//	files      the bytes of each file in the order of the header, each followed by its CRC-32C
const (
	streamMagic   = "SYSNAP\x00\x01"
	streamFixed   = 12
	maxHeader     = 16 << 20
	maxFiles      = 1 << 18
	streamVersion = 1
	crcSize       = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// streamHeader is the head of a snapshot on its way.
type streamHeader struct {
	Version     int          `json:"version"`
	ClusterID   string       `json:"cluster_id"`
	BucketCount uint32       `json:"bucket_count"`
	Files       []streamFile `json:"files"`
}

type streamFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// check refuses what no member sends.
func (h *streamHeader) check() error {
	if h.Version != streamVersion {
		return fmt.Errorf("a snapshot on its way has format version %d; this version of Switchyard knows %d", h.Version, streamVersion)
	}
	if len(h.Files) > maxFiles {
		return fmt.Errorf("a snapshot has %d files, the limit is %d", len(h.Files), maxFiles)
	}
	seen := make(map[string]bool, len(h.Files))
	for _, f := range h.Files {
		if f.Size < 0 || len(f.Name) == 0 || len(f.Name) > 255 || f.Name[0] == '.' || strings.ContainsFunc(f.Name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
		}) {
			return fmt.Errorf("a snapshot has a file %q of %d bytes, which cannot be", f.Name, f.Size)
		}
		if seen[f.Name] {
			return fmt.Errorf("a snapshot has the file %q twice", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

// Open implements raft.SnapshotStore: it hands out the newest snapshot. Its files are not
// touched before the first Read.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.ID != id {
		return nil, nil, fmt.Errorf("snapshot %s is not there any more", id)
	}
	dir := s.fs.PathJoin(s.dir, id, snapshotRows)
	names, err := s.fs.List(dir)
	if err != nil {
		return nil, nil, err
	}
	slices.Sort(names)
	h := streamHeader{Version: streamVersion, ClusterID: s.clusterID(), BucketCount: s.bucketCount}
	size := int64(0)
	for _, name := range names {
		info, err := s.fs.Stat(s.fs.PathJoin(dir, name))
		if err != nil {
			return nil, nil, err
		}
		h.Files = append(h.Files, streamFile{name, info.Size()})
		size += info.Size() + crcSize
	}
	if err := h.check(); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, nil, err
	}
	head := binary.BigEndian.AppendUint32([]byte(streamMagic), uint32(len(text)))
	head = append(head, text...)
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(text, castagnoli))
	m := *s.newest
	m.Size = int64(len(head)) + size
	s.open[id]++
	return &m, &snapshotReader{s: s, meta: m, dir: dir, files: h.Files, rest: head}, nil
}

// snapshotReader reads a snapshot as a stream.
type snapshotReader struct {
	s     *snapshotStore
	meta  raft.SnapshotMeta
	dir   string
	files []streamFile
	// rest is what comes next; then the open file, of which left bytes are missing, then the
	// next of files.
	rest   []byte
	f      vfs.File
	left   int64
	sum    hash.Hash32
	closed bool
}

func (r *snapshotReader) Read(b []byte) (int, error) {
	for {
		switch {
		case len(r.rest) > 0:
			n := copy(b, r.rest)
			r.rest = r.rest[n:]
			return n, nil
		case r.f != nil && r.left > 0:
			n, err := r.f.Read(b[:min(int64(len(b)), r.left)])
			r.sum.Write(b[:n])
			r.left -= int64(n)
			if n > 0 {
				return n, nil
			}
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		case r.f != nil:
			r.rest = r.sum.Sum(nil)
			err := r.f.Close()
			r.f = nil
			if err != nil {
				return 0, err
			}
		case len(r.files) == 0:
			return 0, io.EOF
		default:
			f, err := r.s.fs.Open(r.s.fs.PathJoin(r.dir, r.files[0].Name), vfs.SequentialReadsOption)
			if err != nil {
				return 0, err
			}
			r.f, r.left, r.sum = f, r.files[0].Size, crc32.New(castagnoli)
			r.files = r.files[1:]
		}
	}
}

// Close lets go of the snapshot.
func (r *snapshotReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	var err error
	if r.f != nil {
		err = r.f.Close()
	}
	s, id := r.s, r.meta.ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id]--; s.open[id] == 0 {
		delete(s.open, id)
		if s.doomed[id] {
			delete(s.doomed, id)
			err = errors.Join(err, s.fs.RemoveAll(s.fs.PathJoin(s.dir, id)))
		}
	}
	return err
}

// receiver writes the files of a stream into a folder.
type receiver struct {
	fs    vfs.FS
	dir   string
	check func(*streamHeader) error

	buf    []byte // of the header, or of a checksum
	header *streamHeader
	next   int // the file that is being written, or comes next
	f      vfs.File
	left   int64
	sum    hash.Hash32
	err    error
}

// Write takes the next bytes. After an error nothing more is taken.
func (v *receiver) Write(b []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n := len(b)
	for len(b) > 0 {
		used, err := v.take(b)
		if err != nil {
			v.err = err
			return 0, err
		}
		b = b[used:]
	}
	return n, nil
}

// take uses some of b, at least a byte.
func (v *receiver) take(b []byte) (used int, err error) {
	switch {
	case v.header == nil:
		return v.takeHeader(b)
	case v.next == len(v.header.Files):
		return 0, errors.New("a snapshot goes on behind its end")
	case v.f != nil && v.left > 0:
		used = int(min(int64(len(b)), v.left))
		v.sum.Write(b[:used])
		v.left -= int64(used)
		_, err = v.f.Write(b[:used])
		return used, err
	}
	used = v.collect(b, crcSize)
	if len(v.buf) < crcSize {
		return used, nil
	}
	name := v.header.Files[v.next].Name
	if got := binary.BigEndian.Uint32(v.buf); got != v.sum.Sum32() {
		return 0, fmt.Errorf("file %s of a snapshot was damaged on its way", name)
	}
	v.buf = v.buf[:0]
	err = errors.Join(v.f.Sync(), v.f.Close())
	v.f = nil
	if err != nil {
		return used, err
	}
	v.next++
	return used, v.begin()
}

// collect adds bytes to the buffer until it has size.
func (v *receiver) collect(b []byte, size int) int {
	n := min(len(b), size-len(v.buf))
	v.buf = append(v.buf, b[:n]...)
	return n
}

func (v *receiver) takeHeader(b []byte) (int, error) {
	if len(v.buf) < streamFixed {
		return v.collect(b, streamFixed), nil
	}
	if string(v.buf[:len(streamMagic)]) != streamMagic {
		return 0, errors.New("a snapshot does not begin like one")
	}
	length := int(binary.BigEndian.Uint32(v.buf[len(streamMagic):]))
	if length > maxHeader {
		return 0, fmt.Errorf("the header of a snapshot has %d bytes, the limit is %d", length, maxHeader)
	}
	size := streamFixed + length + crcSize
	used := v.collect(b, size)
	if len(v.buf) < size {
		return used, nil
	}
	text := v.buf[streamFixed : streamFixed+length]
	if crc32.Checksum(text, castagnoli) != binary.BigEndian.Uint32(v.buf[streamFixed+length:]) {
		return 0, errors.New("the header of a snapshot was damaged on its way")
	}
	h := &streamHeader{}
	if err := json.Unmarshal(text, h); err != nil {
		return 0, fmt.Errorf("the header of a snapshot cannot be read: %w", err)
	}
	if err := errors.Join(h.check(), v.check(h)); err != nil {
		return 0, err
	}
	v.header, v.buf = h, v.buf[:0]
	return used, v.begin()
}

// begin makes the next file.
func (v *receiver) begin() (err error) {
	if v.next == len(v.header.Files) {
		return nil
	}
	file := v.header.Files[v.next]
	v.f, err = v.fs.Create(v.fs.PathJoin(v.dir, file.Name), vfs.WriteCategoryUnspecified)
	v.left, v.sum = file.Size, crc32.New(castagnoli)
	return err
}

// finish checks that everything came, and makes the folder durable.
func (v *receiver) finish() error {
	if v.err == nil && (v.header == nil || v.next < len(v.header.Files)) {
		v.err = errors.New("a snapshot ends before its end")
	}
	if v.err != nil {
		return errors.Join(v.err, v.abandon())
	}
	return syncDir(v.fs, v.dir)
}

// abandon closes what is open.
func (v *receiver) abandon() error {
	if v.f == nil {
		return nil
	}
	f := v.f
	v.f = nil
	return f.Close()
}
