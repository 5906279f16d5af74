package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard"
)

// Names of the built-in functions on the space SpaceKV, for plain use and tests.
const (
	KVGet    = "kv.get"    // read
	KVScan   = "kv.scan"   // read
	KVPut    = "kv.put"    // write
	KVDelete = "kv.delete" // write
	KVCAS    = "kv.cas"    // write: compare and set
)

// MaxKVScan is the largest number of rows of one kv.scan.
const MaxKVScan = 10000

// Arguments and results are fields one after the other: numbers are uvarints, flags one
// byte, texts a uvarint of their length and their bytes, a hash 4 bytes big endian.
// An optional text is a flag and, if that is 1, a text.
//
//	kv.get     key → optional value
//	kv.put     hash, key, value → nothing
//	kv.delete  key → flag: there was a row
//	kv.cas     hash, key, optional expected value, optional new value → flag: done, optional value found
//	kv.scan    optional from, optional to, flag reverse, limit → flag: there is more, then key and value of each row
//
// The hash is that of the row's sharding key, usually MPCRC32Bytes(key).

func registerKV(r *Registry) {
	r.writes[KVPut] = kvPut
	r.writes[KVDelete] = kvDelete
	r.writes[KVCAS] = kvCAS
	r.reads[KVGet] = kvGet
	r.reads[KVScan] = kvScan
}

// KVGetArgs returns the arguments of kv.get.
func KVGetArgs(key []byte) []byte { return appendText(nil, key) }

// KVPutArgs returns the arguments of kv.put.
func KVPutArgs(hash uint32, key, value []byte) []byte {
	b := make([]byte, 0, 4+2*binary.MaxVarintLen32+len(key)+len(value))
	b = binary.BigEndian.AppendUint32(b, hash)
	return appendText(appendText(b, key), value)
}

// KVDeleteArgs returns the arguments of kv.delete.
func KVDeleteArgs(key []byte) []byte { return appendText(nil, key) }

// KVCASArgs returns the arguments of kv.cas: when the row's value is expected (nil: there
// is no row), it becomes value (nil: the row is deleted).
func KVCASArgs(hash uint32, key, expected, value []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, hash)
	return appendOptional(appendOptional(appendText(b, key), expected), value)
}

// KVScanArgs returns the arguments of kv.scan: rows with keys at least from and below to
// (nil: the beginning and the end), at most limit of them, 1 to MaxKVScan.
func KVScanArgs(from, to []byte, reverse bool, limit int) []byte {
	b := appendOptional(appendOptional(nil, from), to)
	return binary.AppendUvarint(appendFlag(b, reverse), uint64(max(limit, 0)))
}

// KVGetResult reads the result of kv.get. The value shares memory with the result.
func KVGetResult(result []byte) (value []byte, found bool, err error) {
	d := decoder{b: result}
	value, found = d.optional()
	return value, found, d.end("the result of kv.get")
}

// KVDeleteResult reads the result of kv.delete: whether there was a row.
func KVDeleteResult(result []byte) (found bool, err error) {
	d := decoder{b: result}
	found = d.flag()
	return found, d.end("the result of kv.delete")
}

// KVCASResult reads the result of kv.cas: whether it was done, and the value that was
// found, nil for no row.
func KVCASResult(result []byte) (done bool, found []byte, err error) {
	d := decoder{b: result}
	done = d.flag()
	found, _ = d.optional()
	return done, found, d.end("the result of kv.cas")
}

// KVRow is a row of kv.scan.
type KVRow struct{ Key, Value []byte }

// KVScanResult reads the result of kv.scan: the rows and whether there are more. They
// share memory with the result.
func KVScanResult(result []byte) (found []KVRow, more bool, err error) {
	d := decoder{b: result}
	more = d.flag()
	for len(d.b) > 0 && !d.bad {
		key := d.text()
		found = append(found, KVRow{key, d.text()})
	}
	return found, more, d.end("the result of kv.scan")
}

func kvGet(v *View, args []byte) ([]byte, error) {
	d := decoder{b: args}
	key := d.text()
	if err := d.end("kv.get"); err != nil {
		return nil, err
	}
	value, ok, err := v.Get(SpaceKV, key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return appendFlag(nil, false), nil
	}
	return appendOptional(make([]byte, 0, 1+binary.MaxVarintLen32+len(value)), notNil(value)), nil
}

func kvPut(tx *Tx, args []byte) ([]byte, error) {
	d := decoder{b: args}
	hash := d.hash()
	key := d.text()
	value := d.text()
	if err := d.end(KVPut); err != nil {
		return nil, err
	}
	return nil, tx.Put(SpaceKV, hash, key, value)
}

func kvDelete(tx *Tx, args []byte) ([]byte, error) {
	d := decoder{b: args}
	key := d.text()
	if err := d.end(KVDelete); err != nil {
		return nil, err
	}
	_, ok, err := tx.Get(SpaceKV, key)
	if err != nil {
		return nil, err
	}
	if ok {
		err = tx.Delete(SpaceKV, key)
	}
	return appendFlag(nil, ok), err
}

func kvCAS(tx *Tx, args []byte) ([]byte, error) {
	d := decoder{b: args}
	hash := d.hash()
	key := d.text()
	expected, some := d.optional()
	value, put := d.optional()
	if err := d.end(KVCAS); err != nil {
		return nil, err
	}
	found, ok, err := tx.Get(SpaceKV, key)
	if err != nil {
		return nil, err
	}
	if ok != some || (ok && !bytes.Equal(found, expected)) {
		if !ok {
			found = nil
		} else {
			found = notNil(found)
		}
		return appendOptional(appendFlag(nil, false), found), nil
	}
	result := appendOptional(appendFlag(nil, true), expected)
	switch {
	case put:
		err = tx.Put(SpaceKV, hash, key, value)
	case ok:
		err = tx.Delete(SpaceKV, key)
	}
	return result, err
}

func kvScan(v *View, args []byte) ([]byte, error) {
	d := decoder{b: args}
	from, _ := d.optional()
	to, _ := d.optional()
	reverse := d.flag()
	limit := d.number()
	if err := d.end(KVScan); err != nil {
		return nil, err
	}
	if limit < 1 || limit > MaxKVScan {
		return nil, invalid(KVScan, fmt.Sprintf("a limit of 1 to %d is needed, not %d", MaxKVScan, limit))
	}
	b := appendFlag(nil, false)
	n := uint64(0)
	err := v.Scan(SpaceKV, from, to, reverse, func(key, value []byte) bool {
		if n == limit {
			b[0] = 1
			return false
		}
		n++
		b = appendText(appendText(b, key), value)
		return true
	})
	return b, err
}

func invalid(fn, why string) error {
	return &shard.Error{Code: shard.InvalidArguments, Reason: fn + ": " + why}
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
