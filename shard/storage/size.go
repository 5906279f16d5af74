package storage

import (
	"encoding/binary"

	"github.com/switchyard-dev/switchyard/shard"
)

// sizer is an engine that knows about how much rows take.
type sizer interface {
	Size(from, to []byte) (int64, error)
}

// Size returns about how many bytes all rows of this member take on disk, negative when that is not known.
// What was written lately is not part of it.
func (s *Storage) Size() int64 {
	return s.size([]byte{}, binary.BigEndian.AppendUint32(nil, uint32(len(*s.table.slots.Load()))))
}

// bucketSize is Size of one bucket.
func (s *Storage) bucketSize(b shard.BucketID) int64 {
	return s.size(binary.BigEndian.AppendUint32(nil, uint32(b)), binary.BigEndian.AppendUint32(nil, uint32(b)+1))
}

func (s *Storage) size(from, to []byte) int64 {
	e, ok := s.eng.(sizer)
	if !ok {
		return -1
	}
	n, err := e.Size(from, to)
	if err != nil {
		return -1 // the engine's status says what is wrong
	}
	return n
}
