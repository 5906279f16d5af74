package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The demo must work and leave nothing behind.
func TestDemo_worksAndCleansUp(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	temp := t.TempDir()
	cmd := exec.Command(filepath.Join("..", "..", "scripts", "demo.sh"))
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "GOTMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `added [1-9][0-9,]* tasks to words`, string(out))
	require.Regexp(t, `completed [1-9][0-9,]* tasks of words`, string(out))
	require.Regexp(t, `[0-9]+ files, [0-9]+ words`, string(out))
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "the demo left files behind")
}
