package load

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// PayloadSize is the size of every payload in bytes. Payloads are printable, so
// that systems that keep them as JSON do not have to escape them.
const PayloadSize = 256

const (
	headSize = 8 + 8 + 8 // mark, serial, time
	hexSize  = 2 * (headSize + 4)
	maxTasks = 1 << 26
)

// Ledger makes payloads and notes which of them were handled. All methods may be
// called at the same time.
type Ledger struct {
	mark   uint64
	start  time.Time
	serial atomic.Uint64
	seen   []atomic.Uint64

	handled    atomic.Int64
	duplicates atomic.Int64
	broken     atomic.Int64
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{mark: rand.Uint64(), start: time.Now(), seen: make([]atomic.Uint64, maxTasks/64)}
}

// filler is text that does not compress well; each payload takes a window of it.
var filler = func() []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = letters[rng.IntN(len(letters))]
	}
	return b
}()

// Payload makes the next payload, stamped with the present moment.
func (l *Ledger) Payload() []byte {
	serial := l.serial.Add(1) - 1
	if serial >= maxTasks {
		panic(fmt.Sprintf("more than %d tasks in one scenario", maxTasks))
	}
	var head [headSize + 4]byte
	binary.BigEndian.PutUint64(head[0:], l.mark)
	binary.BigEndian.PutUint64(head[8:], serial)
	binary.BigEndian.PutUint64(head[16:], uint64(time.Since(l.start)))
	p := make([]byte, PayloadSize)
	window := int(serial*131) % (len(filler) - PayloadSize)
	copy(p[hexSize:], filler[window:])
	sum := crc32.Update(crc32.ChecksumIEEE(head[:headSize]), crc32.IEEETable, p[hexSize:])
	binary.BigEndian.PutUint32(head[headSize:], sum)
	hex.Encode(p, head[:])
	return p
}

// Batch makes n payloads.
func (l *Ledger) Batch(n int) [][]byte {
	b := make([][]byte, n)
	for i := range b {
		b[i] = l.Payload()
	}
	return b
}

// Handle notes that a worker got a payload and returns how long ago it was made.
// It returns false when the payload is not one of this ledger's.
func (l *Ledger) Handle(p []byte) (age time.Duration, ok bool) {
	var head [headSize + 4]byte
	if len(p) != PayloadSize {
		l.broken.Add(1)
		return 0, false
	}
	if _, err := hex.Decode(head[:], p[:hexSize]); err != nil {
		l.broken.Add(1)
		return 0, false
	}
	serial := binary.BigEndian.Uint64(head[8:])
	sum := crc32.Update(crc32.ChecksumIEEE(head[:headSize]), crc32.IEEETable, p[hexSize:])
	if sum != binary.BigEndian.Uint32(head[headSize:]) || binary.BigEndian.Uint64(head[0:]) != l.mark || serial >= l.serial.Load() {
		l.broken.Add(1)
		return 0, false
	}
	bit := uint64(1) << (serial % 64)
	if l.seen[serial/64].Or(bit)&bit != 0 {
		l.duplicates.Add(1)
	} else {
		l.handled.Add(1)
	}
	return time.Since(l.start) - time.Duration(binary.BigEndian.Uint64(head[16:])), true
}

// Made returns how many payloads were made.
func (l *Ledger) Made() int64 { return int64(l.serial.Load()) }

// Handled returns how many different tasks were handled.
func (l *Ledger) Handled() int64 { return l.handled.Load() }

// Duplicates returns how many times a task was handled again.
func (l *Ledger) Duplicates() int64 { return l.duplicates.Load() }

// Check compares what was acknowledged with what was handled and what the system
// still holds. A task may be handled although its add was never acknowledged, so
// there may be more of them, but not fewer.
func (l *Ledger) Check(acknowledged, remaining int64) error {
	switch {
	case l.broken.Load() > 0:
		return fmt.Errorf("%d payloads came damaged or from elsewhere", l.broken.Load())
	case l.Handled()+remaining < acknowledged:
		return fmt.Errorf("lost work: %d adds acknowledged, %d handled, %d remain", acknowledged, l.Handled(), remaining)
	case l.Handled() > l.Made():
		return fmt.Errorf("%d tasks handled, %d made", l.Handled(), l.Made())
	}
	return nil
}
