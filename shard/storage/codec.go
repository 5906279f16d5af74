package storage

import "encoding/binary"

// appendText appends bytes with their number before them.
func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendFlag(b []byte, f bool) []byte {
	if f {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendOptional appends a text that may be missing: nil.
func appendOptional(b, text []byte) []byte {
	b = appendFlag(b, text != nil)
	if text == nil {
		return b
	}
	return appendText(b, text)
}

// decoder reads fields; the first that cannot be read makes it bad.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) fixed64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) number() uint64 {
	if d.bad {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() []byte { return d.take(d.number()) }

func (d *decoder) flag() bool {
	b := d.take(1)
	if len(b) == 1 && b[0] > 1 {
		d.bad = true
	}
	return len(b) == 1 && b[0] == 1
}

func (d *decoder) optional() ([]byte, bool) {
	if !d.flag() {
		return nil, false
	}
	return d.text(), true
}

func (d *decoder) hash() uint32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (d *decoder) end(what string) error {
	if d.bad || len(d.b) > 0 {
		return invalid(what, "the bytes are not what is expected")
	}
	return nil
}
