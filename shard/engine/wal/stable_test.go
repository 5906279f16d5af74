package wal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStable_keepsValuesThroughPowerCuts(t *testing.T) {
	for seed := range uint64(300) {
		fs := newPowerFS(seed)
		want := map[string]uint64{}
		for n := range uint64(5) {
			s, err := OpenStable("/s", StableOptions{FS: fs, MustExist: len(want) > 0})
			require.NoError(t, err, "seed %d", seed)
			for k, v := range want {
				got, err := s.GetUint64([]byte(k))
				require.NoError(t, err)
				require.Contains(t, []uint64{v, v + 1}, got, "seed %d", seed)
				want[k] = got
			}
			fs.set(func(p *powerFS) { p.cutAt = p.ops + 1 + int(seed+n)%12 })
			for {
				key := string(rune('a' + seed%3))
				if s.SetUint64([]byte(key), want[key]+1) != nil {
					require.ErrorIs(t, s.SetUint64([]byte(key), 1), ErrFailed)
					break
				}
				want[key]++
			}
			fs = fs.cut()
		}
	}
}

func TestStable_reportsAFlippedBitInEveryByte(t *testing.T) {
	fs := newPowerFS(1)
	s, err := OpenStable("/s", StableOptions{FS: fs})
	require.NoError(t, err)
	v, err := s.Get([]byte("none"))
	require.NoError(t, err)
	require.Empty(t, v)
	n, err := s.GetUint64([]byte("none"))
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, s.SetUint64([]byte("CurrentTerm"), 7))
	require.NoError(t, s.Set([]byte("LastVoteCand"), []byte("node-1")))
	_, err = s.GetUint64([]byte("LastVoteCand"))
	require.Error(t, err)
	require.ErrorIs(t, s.Set([]byte("big"), make([]byte, MaxStableBytes+1)), ErrStableTooLarge)
	size := len(fs.names["/s/stable"].cur)
	for off := range size {
		bad := fs.kill()
		fs.set(func(p *powerFS) { p.off = false })
		bad.flip("/s/stable", int64(off), off%8)
		_, err := OpenStable("/s", StableOptions{FS: bad})
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", off)
		bad = fs.kill()
		fs.set(func(p *powerFS) { p.off = false })
		bad.names["/s/stable"].cur = bad.names["/s/stable"].cur[:off]
		_, err = OpenStable("/s", StableOptions{FS: bad})
		require.ErrorIs(t, err, ErrCorrupt, "cut at %d", off)
	}
	again, err := OpenStable("/s", StableOptions{FS: fs, MustExist: true})
	require.NoError(t, err)
	v, err = again.Get([]byte("LastVoteCand"))
	require.NoError(t, err)
	require.Equal(t, "node-1", string(v))

	_, err = OpenStable("/other", StableOptions{FS: fs, MustExist: true})
	require.ErrorIs(t, err, ErrCorrupt)
}

func FuzzDecodeStable(f *testing.F) {
	f.Add(encodeStable(map[string][]byte{"a": []byte("b"), "": nil}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeStable(b)
		if err != nil {
			return
		}
		again, err := decodeStable(encodeStable(v))
		require.NoError(t, err)
		require.Len(t, again, len(v))
		for k := range v {
			require.True(t, bytes.Equal(v[k], again[k]))
		}
	})
}
