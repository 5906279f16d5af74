package wal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOS_listsAFolderInWhichFilesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stays"), []byte("abc"), 0o600))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			// As the log makes a spare file.
			name := filepath.Join(dir, "spare.tmp")
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				done <- err
				return
			}
			if err := os.Rename(name, filepath.Join(dir, "spare.seg")); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 3000 {
		files, err := OS.List(dir)
		require.NoError(t, err)
		require.Contains(t, files, FileInfo{"stays", 3})
	}
	close(stop)
	require.NoError(t, <-done)
}
