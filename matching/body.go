package matching

import (
	"encoding/binary"
	"math"
	"time"
)

// body is a task as it is stored; written once.
type body struct {
	id          taskID
	addedAt     int64
	runAt       int64 // 0: none
	expiresAt   int64 // 0: never
	maxAttempts int32 // 0: the queue's
	leaseTime   int64 // 0: the queue's
	level       uint8 // 0: the default
	weight      float32
	fairKey     string
	retry       *retryPolicy
	kind        string
	headers     []header
	payload     []byte
}

type header struct{ key, value string }

// retryPolicy has zero where the queue's setting holds, and jitter -1.
type retryPolicy struct {
	initial, max       time.Duration
	multiplier, jitter float64
}

const (
	bodyRunAt = 1 << iota
	bodyExpires
	bodyMaxAttempts
	bodyLeaseTime
	bodyRetry
	bodyHeaders
)

// append adds the stored form. Fixed fields lead so that the few that matching
// looks at are read without decoding the rest.
func (t *body) append(b []byte) []byte {
	var flags byte
	set := func(f byte, on bool) {
		if on {
			flags |= f
		}
	}
	set(bodyRunAt, t.runAt != 0)
	set(bodyExpires, t.expiresAt != 0)
	set(bodyMaxAttempts, t.maxAttempts != 0)
	set(bodyLeaseTime, t.leaseTime != 0)
	set(bodyRetry, t.retry != nil)
	set(bodyHeaders, len(t.headers) > 0)
	version := byte(rowVersion)
	if t.level != 0 || t.fairKey != "" || t.weight != 0 {
		version = rowVersion2
	}
	b = append(b, version, flags)
	b = append(b, t.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.addedAt))
	if t.expiresAt != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(t.expiresAt))
	}
	if t.runAt != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(t.runAt))
	}
	if version == rowVersion2 {
		b = append(b, t.level)
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(t.weight))
		b = append(b, byte(len(t.fairKey)))
		b = append(b, t.fairKey...)
	}
	if t.maxAttempts != 0 {
		b = binary.AppendUvarint(b, uint64(t.maxAttempts))
	}
	if t.leaseTime != 0 {
		b = binary.AppendUvarint(b, uint64(t.leaseTime))
	}
	if r := t.retry; r != nil {
		b = binary.AppendUvarint(b, uint64(r.initial))
		b = binary.AppendUvarint(b, uint64(r.max))
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(r.multiplier))
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(r.jitter))
	}
	b = appendString(b, t.kind)
	if len(t.headers) > 0 {
		b = binary.AppendUvarint(b, uint64(len(t.headers)))
		for _, h := range t.headers {
			b = appendString(b, h.key)
			b = appendString(b, h.value)
		}
	}
	return append(b, t.payload...)
}

// bodyID and bodyExpiresAt read one field of a stored body.

func bodyID(b []byte) (id taskID, err error) {
	if len(b) < 26 || b[0] != rowVersion && b[0] != rowVersion2 {
		return id, corrupt("task body")
	}
	copy(id[:], b[2:18])
	return id, nil
}

// bodyShare reads a stored body's priority, fairness key and weight. key aliases b.
func bodyShare(b []byte) (level uint8, key []byte, weight float32) {
	if b[0] != rowVersion2 {
		return defaultLevel, nil, 1
	}
	at := 26
	if b[1]&bodyExpires != 0 {
		at += 8
	}
	if b[1]&bodyRunAt != 0 {
		at += 8
	}
	if len(b) < at+6 || len(b) < at+6+int(b[at+5]) {
		return defaultLevel, nil, 1
	}
	level, weight = b[at], math.Float32frombits(binary.BigEndian.Uint32(b[at+1:]))
	if level == 0 || level > maxLevel {
		level = defaultLevel
	}
	if !(weight > 0) {
		weight = 1
	}
	return level, b[at+6 : at+6+int(b[at+5])], weight
}

func bodyAddedAt(b []byte) int64 { return int64(binary.BigEndian.Uint64(b[18:])) }

func setBodyAddedAt(b []byte, t int64) { binary.BigEndian.PutUint64(b[18:], uint64(t)) }

func bodyExpiresAt(b []byte) int64 {
	if b[1]&bodyExpires == 0 || len(b) < 34 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b[26:]))
}

// decode fills t; payload aliases b.
func (t *body) decode(b []byte) error {
	*t = body{}
	if len(b) < 2 || b[0] != rowVersion && b[0] != rowVersion2 {
		return corrupt("task body")
	}
	flags := b[1]
	r := reader{b: b[2:]}
	copy(t.id[:], r.bytes(16))
	t.addedAt = int64(r.u64())
	if flags&bodyExpires != 0 {
		t.expiresAt = int64(r.u64())
	}
	if flags&bodyRunAt != 0 {
		t.runAt = int64(r.u64())
	}
	if b[0] == rowVersion2 {
		t.level = r.byte()
		t.weight = math.Float32frombits(r.u32())
		t.fairKey = string(r.bytes(int(r.byte())))
	}
	if flags&bodyMaxAttempts != 0 {
		t.maxAttempts = int32(r.uvarint())
	}
	if flags&bodyLeaseTime != 0 {
		t.leaseTime = int64(r.uvarint())
	}
	if flags&bodyRetry != 0 {
		t.retry = &retryPolicy{initial: time.Duration(r.uvarint()), max: time.Duration(r.uvarint())}
		t.retry.multiplier = math.Float64frombits(r.u64())
		t.retry.jitter = math.Float64frombits(r.u64())
	}
	t.kind = r.str()
	if flags&bodyHeaders != 0 {
		n := r.uvarint()
		if n > uint64(len(r.b)) {
			return corrupt("task body headers")
		}
		t.headers = make([]header, n)
		for i := range t.headers {
			t.headers[i] = header{r.str(), r.str()}
		}
	}
	if r.bad {
		return corrupt("task body")
	}
	t.payload = r.b
	return nil
}
