package wal

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func entry(i, term uint64, n int) *raft.Log {
	d := make([]byte, n)
	copy(d, fmt.Sprintf("%d/%d", i, term))
	return &raft.Log{Index: i, Term: term, Data: d}
}

func TestBasic(t *testing.T) {
	dir := t.TempDir()
	opt := Options{SegmentBytes: 4096, Durability: DurabilityNone}
	l, rec, err := Open(dir, opt)
	require.NoError(t, err)
	require.True(t, rec.Clean)
	for i := uint64(1); i <= 1000; i++ {
		require.NoError(t, l.StoreLog(entry(i, 1, 100)))
	}
	var e raft.Log
	for i := uint64(1); i <= 1000; i++ {
		require.NoError(t, l.GetLog(i, &e))
		require.Equal(t, *entry(i, 1, 100), e)
	}
	require.NoError(t, l.DeleteRange(900, 1000))
	require.NoError(t, l.DeleteRange(1, 300))
	require.NoError(t, l.StoreLog(entry(900, 2, 10)))
	require.NoError(t, l.Close())
	l, rec, err = Open(dir, opt)
	require.NoError(t, err)
	t.Logf("%+v", rec)
	for i := uint64(301); i < 900; i++ {
		require.NoError(t, l.GetLog(i, &e))
		require.Equal(t, *entry(i, 1, 100), e)
	}
	require.NoError(t, l.GetLog(900, &e))
	require.Equal(t, *entry(900, 2, 10), e)
	t.Logf("%+v", l.Status())
	require.NoError(t, l.Close())
}
