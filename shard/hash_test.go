package shard

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

type hashVector struct {
	Fn          string          `json:"fn"`
	Type        string          `json:"type"`
	Key         json.RawMessage `json:"key"`
	BucketCount uint32          `json:"bucket_count"`
	Raw         uint32          `json:"raw"`
	BucketID    *uint32         `json:"bucket_id"`
	FedHex      *string         `json:"fed_hex"`
}

// goKey turns a key of the vectors into the Go value that stands for it.
func goKey(t testing.TB, typ string, raw json.RawMessage) any {
	t.Helper()
	if typ == "table" {
		var parts []struct {
			Type string          `json:"type"`
			Key  json.RawMessage `json:"key"`
		}
		require.NoError(t, json.Unmarshal(raw, &parts))
		list := []any{}
		for _, p := range parts {
			list = append(list, goKey(t, p.Type, p.Key))
		}
		return list
	}
	var v any
	require.NoError(t, json.Unmarshal(raw, &v))
	s, _ := v.(string)
	switch typ {
	case "nil", "null":
		return nil
	case "boolean":
		return v.(bool)
	case "string":
		return s
	case "string_hex":
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	case "number", "cdata_double":
		f, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return f
	case "cdata_float":
		f, err := strconv.ParseFloat(s, 32)
		require.NoError(t, err)
		return float32(f)
	case "int64":
		n, err := strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
		return n
	case "uint64":
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return n
	case "uuid":
		return uuid.MustParse(s)
	case "decimal":
		d, err := ParseDecimal(s)
		require.NoError(t, err)
		return d
	}
	t.Fatalf("unknown type %q in the vectors", typ)
	return nil
}

func TestHash_equalsTheReferenceForEveryVector(t *testing.T) {
	data, err := os.ReadFile("testdata/vshard_hash.json")
	require.NoError(t, err)
	var vectors []hashVector
	require.NoError(t, json.Unmarshal(data, &vectors))
	require.Len(t, vectors, 2220)
	for _, v := range vectors {
		key := goKey(t, v.Type, v.Key)
		hash, app := MPCRC32, appendPart(appendMPPart)
		if v.Fn == "strcrc32" {
			hash, app = STRCRC32, appendTextPart
		}
		got, err := hash(key)
		if v.BucketID == nil {
			require.ErrorIs(t, err, ErrNoKey, "%s %s %s", v.Fn, v.Type, v.Key)
			continue
		}
		require.NoError(t, err, "%s %s %s", v.Fn, v.Type, v.Key)
		if v.FedHex != nil {
			parts, ok := key.([]any)
			if !ok {
				parts = []any{key}
			}
			var fed []byte
			for _, p := range parts {
				fed, err = app(fed, p)
				require.NoError(t, err)
			}
			require.Equal(t, *v.FedHex, hex.EncodeToString(fed), "%s %s %s", v.Fn, v.Type, v.Key)
		}
		require.Equal(t, v.Raw, got, "%s %s %s", v.Fn, v.Type, v.Key)
		require.Equal(t, BucketID(*v.BucketID), BucketOf(got, v.BucketCount), "%s %s %s", v.Fn, v.Type, v.Key)
		switch k := key.(type) {
		case string:
			require.Equal(t, got, MPCRC32String(k))
			require.Equal(t, got, STRCRC32String(k))
		case []byte:
			require.Equal(t, got, MPCRC32Bytes(k))
			require.Equal(t, got, STRCRC32Bytes(k))
		}
	}
}

type (
	userID   int64
	userName string
	blob     []byte
	ratio    float64
	flag     bool
	path     []any
	ident    [16]byte
)

func TestHash_sameKeyWhateverTheGoType(t *testing.T) {
	same := func(h func(...any) (uint32, error), keys ...any) {
		t.Helper()
		want, err := h(keys[0])
		require.NoError(t, err)
		for _, k := range keys[1:] {
			got, err := h(k)
			require.NoError(t, err, "%T", k)
			require.Equal(t, want, got, "%T and %T", keys[0], k)
		}
	}
	same(MPCRC32, 123, int8(123), int16(123), int32(123), int64(123), uint(123), uint8(123), uint16(123), uint32(123), uint64(123), 123.0, userID(123), ratio(123))
	same(MPCRC32, -5, int8(-5), int64(-5), -5.0)
	same(MPCRC32, 0.0, math.Copysign(0, -1), 0)
	same(MPCRC32, math.NaN(), math.Float64frombits(0xfff8000000000000), math.Float64frombits(0x7ff0000000000001))
	same(STRCRC32, 123, int8(123), uint16(123), 123.0, "123")
	same(STRCRC32, int64(123), userID(123), "123LL")
	same(STRCRC32, uint(1e15), uint64(1e15), "1000000000000000ULL")
	same(STRCRC32, -100000000000000, "-100000000000000LL")
	same(STRCRC32, 99999999999999, "99999999999999")
	same(STRCRC32, math.NaN(), "nan")
	for _, h := range []func(...any) (uint32, error){MPCRC32, STRCRC32} {
		same(h, "ab", []byte("ab"), userName("ab"), blob("ab"), []any{"a", "b"}, path{"a", "b"}, []any{userName("a"), blob("b")})
		same(h, true, flag(true))
		u := uuid.MustParse("550e8400-e29b-41d4-a716-446655440000")
		same(h, u, [16]byte(u), ident(u))
		a, err := h("a", 1)
		require.NoError(t, err)
		b, err := h([]any{"a", 1})
		require.NoError(t, err)
		require.Equal(t, a, b, "several arguments are the list of them")
	}
}

func TestHash_listInsideAListHasItsHeader(t *testing.T) {
	long := strings.Repeat("x", 40)
	fed, err := appendMPPart(nil, []any{"ab", 1, []any{}, nil, long})
	require.NoError(t, err)
	require.Equal(t, "95a2616201"+"90"+"c0"+"d928"+hex.EncodeToString([]byte(long)), hex.EncodeToString(fed))

	fed, err = appendMPPart(nil, make([]any, 16))
	require.NoError(t, err)
	require.Equal(t, "dc0010"+strings.Repeat("c0", 16), hex.EncodeToString(fed))

	fed, err = appendMPPart(nil, []any{strings.Repeat("y", 256), strings.Repeat("y", 70000)})
	require.NoError(t, err)
	require.Equal(t, "92da0100", hex.EncodeToString(fed[:4]))
	require.Equal(t, "db00011170", hex.EncodeToString(fed[4+256:4+256+5]))
}

func TestHash_refusesWhatHasNoHash(t *testing.T) {
	loop := make([]any, 1)
	loop[0] = loop
	var np *int
	for name, tc := range map[string]struct {
		mp, str error
		key     []any
	}{
		"no argument":          {ErrNoKey, ErrNoKey, nil},
		"nil alone":            {ErrNoKey, ErrNoKey, []any{nil}},
		"map":                  {ErrKeyType, ErrKeyType, []any{map[string]int{}}},
		"struct":               {ErrKeyType, ErrKeyType, []any{struct{}{}}},
		"pointer":              {ErrKeyType, ErrKeyType, []any{np}},
		"complex":              {ErrKeyType, ErrKeyType, []any{1i}},
		"list of ints":         {ErrKeyType, ErrKeyType, []any{[]int{1}}},
		"func in a list":       {ErrKeyType, ErrKeyType, []any{[]any{1, func() {}}}},
		"float32":              {nil, ErrKeyType, []any{float32(1)}},
		"list in a list":       {nil, ErrKeyType, []any{1, []any{2}}},
		"list that has no end": {ErrKeyDepth, ErrKeyType, []any{loop}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				h    func(...any) (uint32, error)
				want error
			}{{MPCRC32, tc.mp}, {STRCRC32, tc.str}} {
				_, err := c.h(tc.key...)
				if c.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, c.want)
				}
			}
		})
	}
}

func TestBucketOf_coversOneToCount(t *testing.T) {
	require.Equal(t, BucketID(0), BucketOf(7, 0))
	require.Equal(t, BucketID(1), BucketOf(math.MaxUint32, 1))
	require.Equal(t, BucketID(1), BucketOf(3000, 3000))
	require.Equal(t, BucketID(3000), BucketOf(2999, 3000))
}

func TestParseDecimal_readsAndRefuses(t *testing.T) {
	for in, out := range map[string]string{
		"0": "0", "00": "0", "+5": "5", "007": "7", "0.0": "0.0", "1.50": "1.50", "-0.05": "-0.05", "0.000001": "0.000001",
		"0.0000001": "1E-7", "0.00000123": "0.00000123", "0.000000123": "1.23E-7", "-12.5": "-12.5", "0.00000000": "0E-8",
	} {
		d, err := ParseDecimal(in)
		require.NoError(t, err, in)
		require.Equal(t, out, d.String(), in)
	}
	require.Equal(t, "0", Decimal{}.String())
	for _, in := range []string{"", "-", ".", ".5", "5.", "1e5", "0x1", "--1", "+-1", "1.2.3", " 1", "-0", "-0.00", "NaN", "١",
		strings.Repeat("9", 39), "0." + strings.Repeat("0", 39), strings.Repeat("a", 1000)} {
		_, err := ParseDecimal(in)
		require.ErrorIs(t, err, ErrDecimal, in)
		require.Less(t, len(err.Error()), 300)
	}
	zero, err := MPCRC32(Decimal{})
	require.NoError(t, err)
	parsed, err := ParseDecimal("0")
	require.NoError(t, err)
	again, err := MPCRC32(parsed)
	require.NoError(t, err)
	require.Equal(t, zero, again)
}

func TestHash_fastPathsDoNotAllocate(t *testing.T) {
	s, b := strings.Repeat("k", 100), []byte("some key")
	var sink uint32
	require.Zero(t, testing.AllocsPerRun(100, func() { sink += MPCRC32String(s) + STRCRC32String(s) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { sink += MPCRC32Bytes(b) + STRCRC32Bytes(b) }))
	require.NotZero(t, sink)
}

func FuzzMPCRC32(f *testing.F) {
	f.Add("a", []byte("b"), int64(-33), uint64(1)<<63, 1.5)
	f.Add("", []byte(nil), int64(0), uint64(0), math.Inf(-1))
	f.Fuzz(func(t *testing.T, s string, b []byte, n int64, u uint64, d float64) {
		got, err := MPCRC32(s, b, n, u, d, []any{s, n, []any{d}})
		require.NoError(t, err)
		var fed []byte
		for _, p := range []any{s, b, n, u, d, []any{s, n, []any{d}}} {
			fed, err = appendMPPart(fed, p)
			require.NoError(t, err)
		}
		require.Equal(t, MPCRC32Bytes(fed), got)
		if n >= 0 {
			x, _ := MPCRC32(n)
			y, _ := MPCRC32(uint64(n))
			require.Equal(t, x, y)
		}
		x, _ := STRCRC32(s)
		require.Equal(t, MPCRC32String(s), x)
	})
}

func FuzzNumberText(f *testing.F) {
	for _, v := range []float64{0, 1, 0.1, 1e14, 1e15, 99999999999999.5, 1e-4, 1e-5, 5e-324, math.MaxFloat64} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		text := string(appendNumberText(nil, v))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
		back, err := strconv.ParseFloat(text, 64)
		if err != nil && errors.Is(err, strconv.ErrRange) {
			return
		}
		require.NoError(t, err, text)
		require.InDelta(t, v, back, math.Abs(v)*1e-13)
		require.LessOrEqual(t, len(strings.Trim(strings.SplitN(text, "e", 2)[0], "-.")), 14+1+4)
	})
}

func FuzzParseDecimal(f *testing.F) {
	f.Add("-123.456")
	f.Add("0.00")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDecimal(s)
		if err != nil {
			require.ErrorIs(t, err, ErrDecimal)
			return
		}
		_, err = MPCRC32(d)
		require.NoError(t, err)
		if !strings.Contains(d.String(), "E") {
			again, err := ParseDecimal(d.String())
			require.NoError(t, err)
			require.Equal(t, d, again)
		}
	})
}

var sinkHash uint32

func BenchmarkMPCRC32String(b *testing.B) {
	for _, n := range []int{8, 32, 256, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := strings.Repeat("k", n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				sinkHash += MPCRC32String(s)
			}
		})
	}
}

func BenchmarkMPCRC32(b *testing.B) {
	for name, key := range map[string][]any{
		"string": {"tenant-2"}, "int": {123456}, "list": {"tenant-2", 42}, "uuid": {uuid.MustParse("550e8400-e29b-41d4-a716-446655440000")},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h, err := MPCRC32(key...)
				if err != nil {
					b.Fatal(err)
				}
				sinkHash += h
			}
		})
	}
}
