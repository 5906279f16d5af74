package raftengine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/shard"
)

// fillWithSnapshot makes a folder whose log does not reach back to its first command.
func fillWithSnapshot(t *testing.T, dir string) (names []string) {
	t.Helper()
	e := mustOpen(t, Options{Dir: dir, SnapshotBytes: 1 << 40, segmentBytes: 16 << 10})
	add := func(n int) {
		for range n {
			name := fmt.Sprintf("%06d", len(names))
			mustCall(t, e, "add", name)
			names = append(names, name)
		}
	}
	add(1000)
	require.NoError(t, e.snapshot())
	add(50)
	first, err := e.log.FirstIndex()
	require.NoError(t, err)
	require.Greater(t, first, uint64(1), "the log was cut")
	mustClose(t, e)
	return names
}

func TestRows_thatAreMissingAreTakenFromTheSnapshotAndTheLog(t *testing.T) {
	dir := t.TempDir()
	names := fillWithSnapshot(t, dir)
	for range 2 { // the snapshot is as good the second time
		require.NoError(t, os.RemoveAll(filepath.Join(dir, rowsDir)))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, rowsDir+".tmp", "half"), 0o755))
		e := mustOpen(t, Options{Dir: dir})
		n, got := contents(t, e)
		require.EqualValues(t, len(names), n)
		require.True(t, slices.Equal(got, names))
		mustCall(t, e, "add", fmt.Sprintf("%06d", len(names)))
		names = append(names, fmt.Sprintf("%06d", len(names)))
		mustClose(t, e)
	}
}

func TestRows_thatAreMissingWithoutASnapshotAreRefused(t *testing.T) {
	for name, remove := range map[string][]string{
		"no rows, no snapshot": {rowsDir, snapshotDir},
		"emptied rows":         {rowsDir + "/"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fillWithSnapshot(t, dir)
			for _, r := range remove {
				require.NoError(t, os.RemoveAll(filepath.Join(dir, r)))
			}
			if name == "emptied rows" {
				require.NoError(t, os.Mkdir(filepath.Join(dir, rowsDir), 0o755))
			}
			_, err := Open(testContext(t), Options{Dir: dir, Machine: &book{}, BucketCount: DefaultBucketCount})
			wantCode(t, err, shard.StoreFailed)
			require.ErrorContains(t, err, "missing")
			require.ErrorContains(t, err, "backup")
		})
	}
}

func TestRows_ofANewFolderNeedNoSnapshot(t *testing.T) {
	e := mustOpen(t, Options{Dir: "d", fs: vfs.NewMem(), Memory: true})
	mustCall(t, e, "add", "x")
	mustClose(t, e)
}
