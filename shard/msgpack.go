package shard

import (
	"encoding/binary"
	"math"
	"reflect"

	"github.com/google/uuid"
)

// MessagePack extension types of Tarantool.
const (
	extDecimal = 1
	extUUID    = 2
)

// appendValue appends v as MessagePack. At depth 0 a text is not appended but returned raw, for the caller to feed
// without a header.
func appendValue(dst []byte, v any, depth int) (_ []byte, raw []byte, err error) {
	switch v := v.(type) {
	case nil:
		return append(dst, 0xc0), nil, nil
	case bool:
		if v {
			return append(dst, 0xc3), nil, nil
		}
		return append(dst, 0xc2), nil, nil
	case string:
		return appendStr(dst, viewBytes(v)), nil, nil
	case []byte:
		return appendStr(dst, v), nil, nil
	case float64:
		return appendNumber(dst, v), nil, nil
	case float32:
		return binary.BigEndian.AppendUint32(append(dst, 0xca), math.Float32bits(v)), nil, nil
	case [16]byte:
		return appendExt(dst, extUUID, v[:]), nil, nil
	case uuid.UUID:
		return appendExt(dst, extUUID, v[:]), nil, nil
	case Decimal:
		return v.appendMP(dst), nil, nil
	case []any:
		if depth >= MaxKeyDepth {
			return dst, nil, ErrKeyDepth
		}
		dst = appendArrayHeader(dst, len(v))
		for _, e := range v {
			if dst, _, err = appendValue(dst, e, depth+1); err != nil {
				return dst, nil, err
			}
		}
		return dst, nil, nil
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return appendInt(dst, rv.Int()), nil, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return appendUint(dst, rv.Uint()), nil, nil
	}
	plain, ok := plainValue(rv)
	if !ok {
		return dst, nil, ErrKeyType
	}
	if depth == 0 {
		switch p := plain.(type) {
		case string:
			return dst, viewBytes(p), nil
		case []byte:
			return dst, p, nil
		}
	}
	return appendValue(dst, plain, depth)
}

func appendUint(dst []byte, n uint64) []byte {
	switch {
	case n <= 0x7f:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return append(dst, 0xcc, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), n)
}

func appendInt(dst []byte, n int64) []byte {
	switch {
	case n >= 0:
		return appendUint(dst, uint64(n))
	case n >= -0x20:
		return append(dst, byte(n))
	case n >= math.MinInt8:
		return append(dst, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(n))
}

// canonicalNaN is what 0/0 gives on x86-64.
const canonicalNaN = 0xfff8000000000000

// appendNumber appends a Lua number. vshard takes a whole number between -1e63 and 1e64 for an integer, and what
// does not fit 64 bits becomes what the processor makes of it.
func appendNumber(dst []byte, f float64) []byte {
	if f == math.Trunc(f) && f > -1e63 && f < 1e64 {
		switch {
		case f >= 1<<64:
			return append(dst, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0)
		case f >= 0:
			return appendUint(dst, uint64(f))
		case f <= math.MinInt64:
			return appendInt(dst, math.MinInt64)
		}
		return appendInt(dst, int64(f))
	}
	bits := math.Float64bits(f)
	if f != f {
		bits = canonicalNaN
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), bits)
}

func appendStr(dst, s []byte) []byte {
	n := len(s)
	switch {
	case n <= 0x1f:
		dst = append(dst, 0xa0|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, 0xd9, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

func appendArrayHeader(dst []byte, n int) []byte {
	switch {
	case n <= 0xf:
		return append(dst, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
}

// appendExt appends an extension value of at most 255 bytes.
func appendExt(dst []byte, kind byte, body []byte) []byte {
	switch len(body) {
	case 1:
		dst = append(dst, 0xd4, kind)
	case 2:
		dst = append(dst, 0xd5, kind)
	case 4:
		dst = append(dst, 0xd6, kind)
	case 8:
		dst = append(dst, 0xd7, kind)
	case 16:
		dst = append(dst, 0xd8, kind)
	default:
		dst = append(dst, 0xc7, byte(len(body)), kind)
	}
	return append(dst, body...)
}
