package shard

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"strconv"
	"sync"
	"unsafe"

	"github.com/google/uuid"
)

// BucketID is the number of a bucket, 1 to the cluster's bucket_count. 0 is no bucket.
type BucketID uint32

// BucketOf returns the bucket of a sharding key's hash: hash % count + 1.
// count is the cluster's bucket_count and is at least 1; with count 0 there are no buckets and the answer is 0.
func BucketOf(hash, count uint32) BucketID {
	if count == 0 {
		return 0
	}
	return BucketID(hash%count + 1)
}

// castagnoli selects the CRC instruction of the processor where there is one.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rawCRC is CRC-32C without the final inversion.
func rawCRC(b []byte) uint32 { return ^crc32.Checksum(b, castagnoli) }

// MPCRC32Bytes is MPCRC32 of one key of raw bytes (or text). It does not allocate.
func MPCRC32Bytes(b []byte) uint32 { return rawCRC(b) }

// MPCRC32String is MPCRC32 of one key of text. It does not allocate.
func MPCRC32String(s string) uint32 { return rawCRC(viewBytes(s)) }

// STRCRC32Bytes is STRCRC32 of one key of raw bytes (or text): the same number as MPCRC32Bytes. It does not allocate.
func STRCRC32Bytes(b []byte) uint32 { return rawCRC(b) }

// STRCRC32String is STRCRC32 of one key of text: the same number as MPCRC32String. It does not allocate.
func STRCRC32String(s string) uint32 { return rawCRC(viewBytes(s)) }

// viewBytes shows the bytes of s, to be read only and not kept.
func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Errors of MPCRC32 and STRCRC32. The returned error wraps one of them and says which part of the key is at fault.
var (
	// ErrNoKey says that there is no key: no argument at all, or a nil alone.
	ErrNoKey = errors.New("a sharding key is needed, not nil")
	// ErrKeyType says that a value of this type has no hash (see MPCRC32 and STRCRC32 for the types that have).
	ErrKeyType = errors.New("this type cannot be a sharding key")
	// ErrKeyDepth says that lists are nested deeper than MaxKeyDepth.
	ErrKeyDepth = errors.New("a sharding key is nested too deeply")
)

// MaxKeyDepth is the largest depth of lists within lists in a key.
const MaxKeyDepth = 32

// MPCRC32 is the recommended hash of a sharding key. One argument is the key; several are the list of them, as is one
// argument of type []any. The number is the one Tarantool vshard gives for the same key, see the package tests.
//
// Types: string and []byte (fed as they are), all integers (one number is one key, whatever its type), float64 (a whole
// number is the same key as the integer; else a double), float32 (always a single, so float32(1) is another key than 1),
// bool, [16]byte and uuid.UUID (a UUID), Decimal (with its scale: 1.5 is another key than 1.50), nil inside a list, and
// []any inside a list; named types with one of these underneath. Anything else is ErrKeyType: maps and structs have no
// agreed order, times no agreed form. A key of vshard's own type "double" (cdata) that holds a whole number has no
// equal here: float64 stands for Lua's number.
//
// The parts of a list are fed without separators, so ("a","b") and ("ab") are one key. 1 and "1" are two.
// Whole float64 numbers from 2^64 up to 1e64 are all one key, and those from -2^63 down to -1e63 are another, as in
// vshard on x86-64. Every NaN is one key.
//
// Safe for concurrent use.
func MPCRC32(parts ...any) (uint32, error) { return hashKey(appendMPPart, "MPCRC32", parts) }

// STRCRC32 is the hash of a sharding key's text, kept for compatibility with vshard; prefer MPCRC32. Arguments and types
// are those of MPCRC32, with these differences: numbers are fed as text with 14 significant digits (two numbers that
// differ only after that are one key), int64 as its digits and "LL", uint64 as its digits and "ULL" (so int64(1) is
// another key than 1); the other integer types are fed as digits when these are at most 14, else as the 64-bit types; nil inside a list is
// "cdata<void *>: NULL". float32 and lists inside a list are ErrKeyType: their text in vshard is a memory address.
//
// Safe for concurrent use.
func STRCRC32(parts ...any) (uint32, error) { return hashKey(appendTextPart, "STRCRC32", parts) }

type appendPart func(dst []byte, v any) ([]byte, error)

// scratch holds buffers for fed bytes: crc32's dispatch through a variable makes a buffer on the stack escape.
var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 256); return &b }}

// maxScratch bounds what a pooled buffer may keep.
const maxScratch = 64 << 10

func hashKey(app appendPart, name string, parts []any) (uint32, error) {
	if len(parts) == 1 {
		switch p := parts[0].(type) {
		case string:
			return rawCRC(viewBytes(p)), nil
		case []byte:
			return rawCRC(p), nil
		case []any:
			parts = p
		case nil:
			return 0, fmt.Errorf("%s: %w", name, ErrNoKey)
		default:
			if rv := reflect.ValueOf(p); rv.Kind() == reflect.Slice {
				if plain, ok := plainValue(rv); ok {
					return hashKey(app, name, []any{plain})
				}
			}
		}
	} else if len(parts) == 0 {
		return 0, fmt.Errorf("%s: %w", name, ErrNoKey)
	}
	bp := scratch.Get().(*[]byte)
	buf := (*bp)[:0]
	var err error
	for i, p := range parts {
		if buf, err = app(buf, p); err != nil {
			err = fmt.Errorf("%s: part %d of the key (%T): %w", name, i+1, p, err)
			break
		}
	}
	h := rawCRC(buf)
	if cap(buf) <= maxScratch {
		*bp = buf
		scratch.Put(bp)
	}
	if err != nil {
		return 0, err
	}
	return h, nil
}

// appendMPPart appends what MPCRC32 is fed for one part: text without a header, all else as MessagePack.
func appendMPPart(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return append(dst, v...), nil
	case []byte:
		return append(dst, v...), nil
	}
	dst, raw, err := appendValue(dst, v, 0)
	if err != nil || raw == nil {
		return dst, err
	}
	return append(dst, raw...), nil
}

// textNull is the text of box.NULL in LuaJIT.
const textNull = "cdata<void *>: NULL"

// maxNumberText is the largest magnitude of an integer that is a plain Lua number when it comes from outside:
// up to 14 digits, which %.14g shows in full.
const maxNumberText = 1e14 - 1

// appendTextPart appends what STRCRC32 is fed for one part.
func appendTextPart(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, textNull...), nil
	case string:
		return append(dst, v...), nil
	case []byte:
		return append(dst, v...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int64:
		return append(strconv.AppendInt(dst, v, 10), "LL"...), nil
	case uint64:
		return append(strconv.AppendUint(dst, v, 10), "ULL"...), nil
	case float64:
		return appendNumberText(dst, v), nil
	case [16]byte:
		return append(dst, uuid.UUID(v).String()...), nil
	case uuid.UUID:
		return append(dst, v.String()...), nil
	case Decimal:
		return v.appendText(dst), nil
	case float32, []any:
		return dst, ErrKeyType
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n := rv.Int()
		dst = strconv.AppendInt(dst, n, 10)
		if n > maxNumberText || n < -maxNumberText || rv.Kind() == reflect.Int64 {
			dst = append(dst, "LL"...)
		}
		return dst, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n := rv.Uint()
		dst = strconv.AppendUint(dst, n, 10)
		if n > maxNumberText || rv.Kind() == reflect.Uint64 {
			dst = append(dst, "ULL"...)
		}
		return dst, nil
	}
	plain, ok := plainValue(rv)
	if !ok {
		return dst, ErrKeyType
	}
	return appendTextPart(dst, plain)
}

// plainValue turns a value of a named type into the plain type underneath that the switches above know.
func plainValue(rv reflect.Value) (any, bool) {
	switch rv.Kind() {
	case reflect.String:
		return rv.String(), true
	case reflect.Bool:
		return rv.Bool(), true
	case reflect.Float64:
		return rv.Float(), true
	case reflect.Float32:
		return float32(rv.Float()), true
	case reflect.Slice:
		switch rv.Type().Elem() {
		case reflect.TypeFor[byte]():
			return rv.Bytes(), true
		case reflect.TypeFor[any]():
			return rv.Convert(reflect.TypeFor[[]any]()).Interface(), true
		}
	case reflect.Array:
		if t := reflect.TypeFor[[16]byte](); rv.Type().ConvertibleTo(t) {
			return rv.Convert(t).Interface(), true
		}
	}
	return nil, false
}

// appendNumberText appends f as C's "%.14g" does, which is how Lua shows a number.
func appendNumberText(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	const digits = 14
	var eb [32]byte
	e := strconv.AppendFloat(eb[:0], f, 'e', digits-1, 64)
	m := len(e) - 1
	for e[m] != 'e' {
		m--
	}
	exp, _ := strconv.Atoi(string(e[m+1:]))
	if exp < -4 || exp >= digits {
		return append(append(dst, trimZeros(e[:m])...), e[m:]...)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', digits-1-exp, 64)
	return dst[:start+len(trimZeros(dst[start:]))]
}

// trimZeros drops the zeros at the end of a decimal fraction, and its point when nothing is left behind it.
func trimZeros(b []byte) []byte {
	point := false
	for _, c := range b {
		point = point || c == '.'
	}
	if !point {
		return b
	}
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	if b[len(b)-1] == '.' {
		b = b[:len(b)-1]
	}
	return b
}
