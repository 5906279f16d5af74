package routing

import (
	"encoding/binary"
	"math/bits"
)

// TaskBits are the 64 random bits that choose the partition of a task, made from its id:
// so a repeated add meets the partition that may have the task already, and a task is
// found by its id. Wherever the id's random part is, it is spread over all bits.
func TaskBits(id [16]byte) uint64 {
	high, low := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	x := high ^ bits.RotateLeft64(low, 32)
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return x
}
