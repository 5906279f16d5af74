package scaling

import "math/bits"

// bitset is a set of partitions.
type bitset struct{ words []uint64 }

func (b *bitset) has(p int32) bool {
	w := int(p >> 6)
	return w < len(b.words) && b.words[w]>>(uint(p)&63)&1 == 1
}

func (b *bitset) set(p int32) {
	for int(p>>6) >= len(b.words) {
		b.words = append(b.words, 0)
	}
	b.words[p>>6] |= 1 << (uint(p) & 63)
}

// setBelow adds all partitions below n.
func (b *bitset) setBelow(n int32) {
	for p := int32(0); p < n; p++ {
		b.set(p)
	}
}

func (b *bitset) clear(p int32) {
	if w := int(p >> 6); w < len(b.words) {
		b.words[w] &^= 1 << (uint(p) & 63)
	}
}

// clearFrom takes out n and all above.
func (b *bitset) clearFrom(n int32) {
	for p := b.end() - 1; p >= n; p-- {
		b.clear(p)
	}
}

// end is one more than the highest partition in the set; 0 when it is empty.
func (b *bitset) end() int32 {
	for w := len(b.words) - 1; w >= 0; w-- {
		if x := b.words[w]; x != 0 {
			return int32(w*64 + bits.Len64(x))
		}
	}
	return 0
}

func (b *bitset) count() int32 {
	n := 0
	for _, w := range b.words {
		n += bits.OnesCount64(w)
	}
	return int32(n)
}

func (b *bitset) clone() bitset { return bitset{append([]uint64(nil), b.words...)} }

func (b *bitset) append(to []byte) []byte {
	n := (b.end() + 7) / 8
	for i := range n {
		to = append(to, byte(b.words[i>>3]>>(8*(uint(i)&7))))
	}
	return to
}

func bitsetOf(from []byte) bitset {
	var b bitset
	for i, x := range from {
		if i&7 == 0 {
			b.words = append(b.words, 0)
		}
		b.words[i>>3] |= uint64(x) << (8 * (uint(i) & 7))
	}
	return b
}
