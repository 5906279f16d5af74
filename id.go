package switchyard

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// idLength is the length of a UUID as text.
const idLength = 36

// lastIDTime is the time part of the newest id of this process: milliseconds
// since 1970 times 4096, plus a fraction of the millisecond.
var lastIDTime atomic.Uint64

// NewID returns a new task id: a UUID of version 7 as text. Ids of one process
// are strictly increasing in the order in which they were made, even when the
// clock is set back. Safe for concurrent use.
//
// The random part comes from the runtime's ChaCha8 generator, which the system
// seeds: ids do not collide, but they are no secrets.
func NewID() string {
	var text [idLength]byte
	putID(&text, nextIDTime(&lastIDTime, time.Now().UnixNano()), rand.Uint64())
	return string(text[:])
}

// nextIDTime returns the time part of the next id at now, in nanoseconds since
// 1970: later than the last one, by force if need be.
func nextIDTime(last *atomic.Uint64, now int64) uint64 {
	ms, rest := uint64(now)/1e6, uint64(now)%1e6
	t := ms<<12 | rest<<12/1e6
	for {
		newest := last.Load()
		if t <= newest {
			t = newest + 1
		}
		if last.CompareAndSwap(newest, t) {
			return t
		}
	}
}

const hexDigits = "0123456789abcdef"

// putID writes the UUID with the time part t and 62 bits of random.
func putID(dst *[idLength]byte, t, random uint64) {
	ms, fraction := t>>12, t&0xfff
	putHex(dst[0:8], ms>>16)
	dst[8] = '-'
	putHex(dst[9:13], ms)
	dst[13] = '-'
	putHex(dst[14:18], 0x7000|fraction)
	dst[18] = '-'
	putHex(dst[19:23], 0x8000|random>>48&0x3fff)
	dst[23] = '-'
	putHex(dst[24:36], random)
}

// putHex fills dst with the lowest digits of v.
func putHex(dst []byte, v uint64) {
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = hexDigits[v&0xf]
		v >>= 4
	}
}
