package shard

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxDecimalDigits is the largest number of digits of a Decimal, before and behind the point together.
const MaxDecimalDigits = 38

// ErrDecimal says that a text is not a Decimal.
var ErrDecimal = errors.New("not a decimal number")

// Decimal is an exact decimal number as part of a sharding key. Its scale, the number of digits behind the point, belongs
// to it: 1.5 and 1.50 are two keys. The zero value is 0. It is not meant for arithmetic.
type Decimal struct {
	digits   string // without leading zeros; "" is zero
	scale    uint8
	negative bool
}

// ParseDecimal reads a number such as -123.450: an optional sign, digits, an optional point with digits behind it.
// At most MaxDecimalDigits digits; no exponent; no negative zero, whose hash vshard does not define.
func ParseDecimal(s string) (Decimal, error) {
	var d Decimal
	body, neg := strings.CutPrefix(s, "-")
	if !neg {
		body = strings.TrimPrefix(body, "+")
	}
	whole, frac, point := strings.Cut(body, ".")
	if whole == "" || point && frac == "" || !allDigits(whole) || !allDigits(frac) {
		return d, fmt.Errorf("%w: %q is not digits with an optional sign and point, such as -12.50", ErrDecimal, clip(s))
	}
	digits := strings.TrimLeft(whole+frac, "0")
	if len(digits) > MaxDecimalDigits || len(frac) > MaxDecimalDigits {
		return d, fmt.Errorf("%w: %q has more than %d digits", ErrDecimal, clip(s), MaxDecimalDigits)
	}
	if neg && digits == "" {
		return d, fmt.Errorf("%w: %q is a negative zero", ErrDecimal, clip(s))
	}
	return Decimal{digits: digits, scale: uint8(len(frac)), negative: neg}, nil
}

// String shows the number with its scale, as Tarantool writes it: numbers below a millionth with an exponent, such as 1E-7.
func (d Decimal) String() string { return string(d.appendText(nil)) }

func (d Decimal) appendText(dst []byte) []byte {
	if d.negative {
		dst = append(dst, '-')
	}
	digits, scale := d.digits, int(d.scale)
	if exp := max(len(digits), 1) - 1 - scale; scale > 0 && exp < -6 {
		return d.appendScientific(dst, exp)
	}
	whole := len(digits) - scale
	if whole <= 0 {
		dst = append(dst, '0')
	} else {
		dst = append(dst, digits[:whole]...)
		digits = digits[whole:]
	}
	if scale == 0 {
		return dst
	}
	dst = append(dst, '.')
	for n := len(digits); n < scale; n++ {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}

func (d Decimal) appendScientific(dst []byte, exp int) []byte {
	if d.digits == "" {
		dst = append(dst, '0')
	} else {
		dst = append(dst, d.digits[0])
		if len(d.digits) > 1 {
			dst = append(append(dst, '.'), d.digits[1:]...)
		}
	}
	return strconv.AppendInt(append(dst, 'E'), int64(exp), 10)
}

// appendMP appends the extension value: the scale, then the digits two to a byte with the sign in the last half byte.
func (d Decimal) appendMP(dst []byte) []byte {
	var body [1 + MaxDecimalDigits/2 + 1]byte
	body[0] = d.scale
	digits := d.digits
	if digits == "" {
		digits = "0"
	}
	n := len(digits)/2 + 1
	nibble := 2*n - 2
	for i := len(digits) - 1; i >= 0; i-- {
		v := digits[i] - '0'
		if nibble%2 == 0 {
			v <<= 4
		}
		body[1+nibble/2] |= v
		nibble--
	}
	sign := byte(0xc)
	if d.negative {
		sign = 0xd
	}
	body[n] |= sign
	return appendExt(dst, extDecimal, body[:1+n])
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// clip keeps an error message short whatever the input.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
