package scaling

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Counts are how many partitions a queue has.
type Counts struct {
	// Read partitions are polled, and the first Write of them take new tasks:
	// 1 ≤ Write ≤ Read ≤ MaxPartitions. All zero: the counts are not managed.
	Read, Write int32
	// Version grows with every change.
	Version int64
	// BacklogCap is the backlog at which a partition counts as full; 0 for none.
	BacklogCap int64
	// Backlog is the backlog of each read partition in one byte. Shared: not to be
	// changed.
	Backlog []byte
}

// Managed says whether there are counts.
func (c Counts) Managed() bool { return c.Read > 0 }

// state is what a root remembers. Zero: not managed.
type state struct {
	target  int32
	largest int32 // target ever
	version int64
	// read and write follow from the rest; see settle.
	read, write int32
	// backlog are the partitions that may hold tasks: all below write, and those
	// from there on that have not been found empty since they took tasks.
	backlog bitset
	levels  []byte // backlog of each read partition in one byte
	cap     int64
	// The scaler's own: what the rates want, and the partitions whose backlog rose
	// above the base and has not fallen below the reset since.
	base   int32
	raised bitset
}

func (s *state) managed() bool { return s.target > 0 }

func (s *state) clone() state {
	c := *s
	c.backlog, c.raised = s.backlog.clone(), s.raised.clone()
	c.levels = append([]byte(nil), s.levels...)
	return c
}

// settle works out the counts from the target and the partitions with backlog.
func (s *state) settle(ratio float64, delta int32) {
	s.read = max(s.target, s.backlog.end())
	shrink := max(1, int32(math.Min(float64(s.read)*ratio, float64(delta))))
	s.write = max(s.target, s.read-shrink)
	s.backlog.setBelow(s.write)
	for int32(len(s.levels)) < s.read {
		s.levels = append(s.levels, 0)
	}
	s.levels = s.levels[:s.read]
	s.largest = max(s.largest, s.target)
}

// check says whether the state is one that can be.
func (s *state) check() error {
	bad := ""
	switch {
	case s.target < 1 || s.write < s.target || s.read < s.write || s.read > MaxPartitions:
		bad = "counts"
	case s.largest < s.target || s.largest > MaxPartitions:
		bad = "largest target"
	case s.base < 1 || s.base > MaxPartitions:
		bad = "base"
	case s.backlog.end() > s.read || s.backlog.count() < s.write || !s.holdsBelow(s.write):
		bad = "backlog"
	case int32(len(s.levels)) != s.read:
		bad = "levels"
	case s.raised.end() > s.read:
		bad = "raised partitions"
	case s.cap < 0:
		bad = "cap"
	}
	if bad == "" {
		return nil
	}
	return fmt.Errorf("%s (target %d, largest %d, read %d, write %d, backlog up to %d)", bad, s.target, s.largest, s.read, s.write, s.backlog.end())
}

func (s *state) holdsBelow(n int32) bool {
	for p := range n {
		if !s.backlog.has(p) {
			return false
		}
	}
	return true
}

// ErrCorrupt says that a stored state cannot be one.
var ErrCorrupt = errors.New("scaling: corrupt state")

const stateVersion = 1

// append adds the stored form: a version byte and numbers of variable length.
func (s *state) append(b []byte) []byte {
	b = append(b, stateVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(s.version))
	for _, n := range []int32{s.target, s.largest, s.read, s.write, s.base} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(s.cap))
	for _, x := range [][]byte{s.backlog.append(nil), s.raised.append(nil), s.levels} {
		b = binary.AppendUvarint(b, uint64(len(x)))
		b = append(b, x...)
	}
	return b
}

func (s *state) decode(b []byte) error {
	*s = state{}
	if len(b) < 9 {
		return fmt.Errorf("%w: %d bytes", ErrCorrupt, len(b))
	}
	if b[0] != stateVersion {
		return fmt.Errorf("scaling: the stored state has version %d, this program knows %d: upgrade it", b[0], stateVersion)
	}
	s.version = int64(binary.BigEndian.Uint64(b[1:]))
	b = b[9:]
	ok := true
	number := func(most uint64) uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > most {
			ok = false
			return 0
		}
		b = b[size:]
		return n
	}
	text := func(most uint64) []byte {
		n := number(most)
		if !ok || n > uint64(len(b)) {
			ok = false
			return nil
		}
		var x []byte
		x, b = b[:n], b[n:]
		return x
	}
	for _, n := range []*int32{&s.target, &s.largest, &s.read, &s.write, &s.base} {
		*n = int32(number(MaxPartitions))
	}
	s.cap = int64(number(math.MaxInt64))
	s.backlog, s.raised = bitsetOf(text(MaxPartitions/8)), bitsetOf(text(MaxPartitions/8))
	s.levels = append([]byte(nil), text(MaxPartitions)...)
	if !ok || len(b) > 0 {
		return fmt.Errorf("%w: wrong length", ErrCorrupt)
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// DecodeCounts returns the counts of a stored state, for a partition that is no
// root. An empty row has none.
func DecodeCounts(row []byte) (Counts, error) {
	if len(row) == 0 {
		return Counts{}, nil
	}
	var s state
	if err := s.decode(row); err != nil {
		return Counts{}, err
	}
	return s.counts(), nil
}

func (s *state) counts() Counts {
	if !s.managed() {
		return Counts{}
	}
	return Counts{Read: s.read, Write: s.write, Version: s.version, BacklogCap: s.cap, Backlog: s.levels}
}
