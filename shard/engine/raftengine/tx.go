package raftengine

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
)

// batchHeader is the length of the head of a Pebble batch; the count of its records is
// in the last four bytes, little endian.
const batchHeader = 12

// maxBatchBytes is when rows of several commands are committed although more commands
// wait. It keeps a batch below the size that Pebble would write as a table of its own.
const maxBatchBytes = 4 << 20

// tx is the engine.Tx of the command that is being applied. Commands of one Raft batch
// share a Pebble batch until one of them reads: it must see what those before it wrote.
// A command that fails leaves nothing, because the batch is cut back to where it began.
type tx struct {
	reader
	f *fsm
	// begin and count are the length of the batch and the number of its records before
	// the command.
	begin int
	count uint32
}

// start marks the beginning of a command.
func (t *tx) start() {
	t.begin, t.count = t.f.batch.Len(), t.f.batch.Count()
}

// wrote reports whether the command has written anything yet.
func (t *tx) wrote() bool { return t.f.batch.Count() != t.count }

// Settle commits what earlier commands left in the batch, and keeps what this command
// has written so far in a new one.
func (t *tx) Settle() error {
	if t.count == 0 {
		return nil
	}
	if !t.wrote() {
		if err := t.f.commit(); err != nil {
			return err
		}
		t.start()
		return nil
	}
	// Rare: the command wrote before it read. Its records move to a fresh batch.
	repr := t.f.batch.Repr()
	own := append(make([]byte, batchHeader, len(repr)-t.begin+batchHeader), repr[t.begin:]...)
	binary.LittleEndian.PutUint32(own[8:], t.f.batch.Count()-t.count)
	if err := t.cut(); err != nil {
		return err
	}
	if err := t.f.commit(); err != nil {
		return err
	}
	t.start()
	return t.f.batch.SetRepr(own)
}

// rollback drops what the command wrote.
func (t *tx) rollback() error {
	if !t.wrote() {
		return nil
	}
	return t.cut()
}

func (t *tx) cut() error {
	repr := t.f.batch.Repr()[:t.begin]
	binary.LittleEndian.PutUint32(repr[8:], t.count)
	return t.f.batch.SetRepr(repr)
}

func (t *tx) Get(key []byte) ([]byte, bool, error) {
	if err := t.Settle(); err != nil {
		return nil, false, err
	}
	return t.reader.Get(key)
}

func (t *tx) Scan(from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	if err := t.Settle(); err != nil {
		return err
	}
	return t.reader.Scan(from, to, reverse, fn)
}

func (t *tx) Put(keyLen, valueLen int) (key, value []byte) {
	op := t.f.batch.SetDeferred(keyLen, valueLen)
	return op.Key, op.Value
}

func (t *tx) Delete(keyLen int) []byte {
	return t.f.batch.DeleteDeferred(keyLen).Key
}

func (t *tx) DeleteRange(from, to []byte) {
	op := t.f.batch.DeleteRangeDeferred(len(from), len(to))
	copy(op.Key, from)
	copy(op.Value, to)
}

// newBatch makes a batch whose buffer survives commits of usual size.
func newBatch(db *pebble.DB) *pebble.Batch {
	return db.NewBatch(pebble.WithInitialSizeBytes(64<<10), pebble.WithMaxRetainedSizeBytes(2*maxBatchBytes))
}
