package matching

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Spaces of the store that belong to this package. Their numbers are on disk.
const (
	spaceQueues   storage.Space = 0x10
	spaceMeta     storage.Space = 0x11
	spaceBacklog  storage.Space = 0x12
	spaceParked   storage.Space = 0x13
	spaceSchedule storage.Space = 0x14
	spaceWhen     storage.Space = 0x15
	spaceLeases   storage.Space = 0x16
	spaceIDs      storage.Space = 0x17
	spaceDead     storage.Space = 0x18
	spaceEnded    storage.Space = 0x19
	spacePasses   storage.Space = 0x1a
)

// partitionSpaces are the spaces whose keys start with a partition's uid.
var partitionSpaces = []storage.Space{
	spaceBacklog, spaceParked, spaceSchedule, spaceWhen, spaceLeases, spaceIDs, spaceDead, spaceEnded, spacePasses,
}

// rowVersion is the version of most row formats here; it is the first byte of every
// value that is more than a number. Rows of version 2 are like those of version 1
// with what was added since: a place in the backlog for leases and ids; priority,
// fairness key and weight for bodies.
const (
	rowVersion  = 1
	rowVersion2 = 2
)

// Priorities. Level 1 goes first.
const (
	maxLevel     = 5
	defaultLevel = 3
)

// maxFairKey is the longest fairness key in bytes.
const maxFairKey = 64

var errCorruptRow = errors.New("matching: corrupt row")

func corrupt(what string) error { return fmt.Errorf("%w: %s", errCorruptRow, what) }

// taskID is a task's UUID.
type taskID [16]byte

// location says where a task's body is. While a task is fresh, and while it is in
// its first worker's hands, that is its place in the backlog: priority, pass, sequence
// number. A pass of 0 is that of a task from before there were places; it comes first.
type location struct {
	parked bool
	level  uint8
	pass   uint64
}

const (
	parkedFlag = 0x80
	// placedFlag tells the level in a key with a pass from one in a key without.
	placedFlag = 0x10
)

func (l location) byte() byte {
	if l.parked {
		return parkedFlag
	}
	return l.level
}

func locationOf(b byte) location {
	if b == parkedFlag {
		return location{parked: true}
	}
	return location{level: b}
}

// Keys. All integers are big endian, so that byte order is number order.

func appendSeqKey(b []byte, uid, seq uint64) []byte {
	b = binary.BigEndian.AppendUint64(b, uid)
	return binary.BigEndian.AppendUint64(b, seq)
}

func appendBacklogKey(b []byte, uid uint64, level uint8, pass, seq uint64) []byte {
	b = binary.BigEndian.AppendUint64(b, uid)
	if pass == 0 {
		b = append(b, level)
	} else {
		b = append(b, level|placedFlag)
		b = binary.BigEndian.AppendUint64(b, pass)
	}
	return binary.BigEndian.AppendUint64(b, seq)
}

// backlogPlace reads a key of the backlog.
func backlogPlace(key []byte) (p place, ok bool) {
	switch {
	case len(key) == 17 && key[8]&placedFlag == 0:
		return place{level: key[8], seq: binary.BigEndian.Uint64(key[9:])}, true
	case len(key) == 25 && key[8]&placedFlag != 0:
		return place{level: key[8] &^ placedFlag, pass: binary.BigEndian.Uint64(key[9:]), seq: binary.BigEndian.Uint64(key[17:])}, true
	}
	return place{}, false
}

func appendScheduleKey(b []byte, uid uint64, at int64, seq uint64) []byte {
	b = binary.BigEndian.AppendUint64(b, uid)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	return binary.BigEndian.AppendUint64(b, seq)
}

func appendIDKey(b []byte, uid uint64, id taskID) []byte {
	b = binary.BigEndian.AppendUint64(b, uid)
	return append(b, id[:]...)
}

func (l location) appendBodyKey(b []byte, uid, seq uint64) []byte {
	if l.parked {
		return appendSeqKey(b, uid, seq)
	}
	return appendBacklogKey(b, uid, l.level, l.pass, seq)
}

func (l location) space() storage.Space {
	if l.parked {
		return spaceParked
	}
	return spaceBacklog
}

func lastSeq(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

// lease is a row of the space leases.
type lease struct {
	attempt  int32
	deadline int64
	// duration is what an extension without a time of its own adds.
	duration int64
	// readyAt is the task's place in line, kept for a release.
	readyAt int64
	// nonce tells this lease from every other lease of the task.
	nonce     uint64
	id        taskID
	addedAt   int64
	loc       location
	identity  string
	lastError string
	policy    attemptPolicy
}

// attemptPolicy is what a failure needs to know of a task without its body.
type attemptPolicy struct {
	maxAttempts int32
	retry       *retryPolicy
}

func (p *attemptPolicy) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(p.maxAttempts))
	if p.retry == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendUvarint(b, uint64(p.retry.initial))
	b = binary.AppendUvarint(b, uint64(p.retry.max))
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(p.retry.multiplier))
	return binary.BigEndian.AppendUint64(b, math.Float64bits(p.retry.jitter))
}

func (p *attemptPolicy) read(r *reader) {
	p.maxAttempts = int32(r.uvarint())
	if r.byte() == 0 {
		return
	}
	p.retry = &retryPolicy{initial: time.Duration(r.uvarint()), max: time.Duration(r.uvarint())}
	p.retry.multiplier = math.Float64frombits(r.u64())
	p.retry.jitter = math.Float64frombits(r.u64())
}

func (l *lease) append(b []byte) []byte {
	if l.loc.pass == 0 {
		b = append(b, rowVersion, l.loc.byte())
	} else {
		b = append(b, rowVersion2, l.loc.byte())
		b = binary.AppendUvarint(b, l.loc.pass)
	}
	b = append(b, l.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(l.addedAt))
	b = binary.BigEndian.AppendUint64(b, uint64(l.deadline))
	b = binary.BigEndian.AppendUint64(b, uint64(l.readyAt))
	b = binary.BigEndian.AppendUint64(b, l.nonce)
	b = binary.AppendUvarint(b, uint64(l.duration))
	b = binary.AppendUvarint(b, uint64(l.attempt))
	b = l.policy.append(b)
	b = appendString(b, l.identity)
	return appendString(b, l.lastError)
}

func (l *lease) decode(b []byte) error {
	*l = lease{}
	r := reader{b: b}
	version := r.byte()
	if version != rowVersion && version != rowVersion2 {
		return corrupt("lease")
	}
	l.loc = locationOf(r.byte())
	if version == rowVersion2 {
		l.loc.pass = r.uvarint()
	}
	copy(l.id[:], r.bytes(16))
	l.addedAt = int64(r.u64())
	l.deadline = int64(r.u64())
	l.readyAt = int64(r.u64())
	l.nonce = r.u64()
	l.duration = int64(r.uvarint())
	l.attempt = int32(r.uvarint())
	l.policy.read(&r)
	l.identity = r.str()
	l.lastError = r.str()
	return r.end("lease")
}

// scheduled is a row of the space schedule.
type scheduled struct {
	attempt   int32 // attempts so far
	loc       location
	lastError string
}

func (s *scheduled) append(b []byte) []byte {
	b = append(b, rowVersion, s.loc.byte())
	b = binary.AppendUvarint(b, uint64(s.attempt))
	return appendString(b, s.lastError)
}

func (s *scheduled) decode(b []byte) error {
	*s = scheduled{}
	r := reader{b: b}
	if r.byte() != rowVersion {
		return corrupt("schedule")
	}
	s.loc = locationOf(r.byte())
	s.attempt = int32(r.uvarint())
	s.lastError = r.str()
	return r.end("schedule")
}

// when is a row of the space when: the time under which a task is in schedule.
type when int64

func (w when) append(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(w)) }

// deadRow is a row of the space dead.
type deadRow struct {
	attempt   int32
	loc       location
	deadAt    int64
	lastError string
}

func (d *deadRow) append(b []byte) []byte {
	b = append(b, rowVersion, d.loc.byte())
	b = binary.BigEndian.AppendUint64(b, uint64(d.deadAt))
	b = binary.AppendUvarint(b, uint64(d.attempt))
	return appendString(b, d.lastError)
}

func (d *deadRow) decode(b []byte) error {
	*d = deadRow{}
	r := reader{b: b}
	if r.byte() != rowVersion {
		return corrupt("dead task")
	}
	d.loc = locationOf(r.byte())
	d.deadAt = int64(r.u64())
	d.attempt = int32(r.uvarint())
	d.lastError = r.str()
	return r.end("dead task")
}

// ending says how a task ended. A row of ids says endingNone until something
// else than completion ends the task; a task without a body was completed then.
type ending uint8

const (
	endingNone ending = iota
	endingCancelled
	endingExpired
)

// idRow is a row of the space ids.
type idRow struct {
	seq     uint64
	addedAt int64
	loc     location
	ending  ending
}

const idRowSize = 1 + 8 + 8 + 1 + 1

func (i *idRow) append(b []byte) []byte {
	version := byte(rowVersion)
	if i.loc.pass != 0 {
		version = rowVersion2
	}
	b = append(b, version)
	b = binary.BigEndian.AppendUint64(b, i.seq)
	b = binary.BigEndian.AppendUint64(b, uint64(i.addedAt))
	b = append(b, i.loc.byte(), byte(i.ending))
	if version == rowVersion2 {
		b = binary.BigEndian.AppendUint64(b, i.loc.pass)
	}
	return b
}

func (i *idRow) decode(b []byte) error {
	switch {
	case len(b) == idRowSize && b[0] == rowVersion:
		i.loc.pass = 0
	case len(b) == idRowSize+8 && b[0] == rowVersion2:
		i.loc.pass = binary.BigEndian.Uint64(b[idRowSize:])
	default:
		return corrupt("task id")
	}
	i.seq = binary.BigEndian.Uint64(b[1:])
	i.addedAt = int64(binary.BigEndian.Uint64(b[9:]))
	pass := i.loc.pass
	i.loc = locationOf(b[17])
	i.loc.pass = pass
	i.ending = ending(b[18])
	return nil
}
