package chaos

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDisk_losesOnlyWhatWasNotSynced: the disk of these tests tears sectors that were not
// synced, and no others, also when the file was renamed meanwhile.
func TestDisk_losesOnlyWhatWasNotSynced(t *testing.T) {
	d, dir := newDisk(), t.TempDir()
	name, then := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	f, err := d.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(c byte, at int64, n int) {
		t.Helper()
		if _, err := f.WriteAt(bytes.Repeat([]byte{c}, n), at); err != nil {
			t.Fatal(err)
		}
	}
	const n = 64 * sectorSize
	write('s', 0, n)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	write('u', n/2, n/2)
	if err := d.Rename(name, then); err != nil {
		t.Fatal(err)
	}
	d.die()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, errDead) {
		t.Errorf("a write on a dead disk: %v", err)
	}
	torn, err := d.tear(rand.New(rand.NewPCG(1, 1)))
	if err != nil || torn == 0 || torn == 32 {
		t.Fatalf("%d sectors are torn, %v", torn, err)
	}
	b := mustRead(t, then)
	if !bytes.Equal(b[:n/2], bytes.Repeat([]byte{'s'}, n/2)) {
		t.Error("what was synced is lost")
	}
	if lost := bytes.Count(b[n/2:], []byte{'s'}); lost != torn*sectorSize {
		t.Errorf("%d bytes are as they were before, %d sectors were torn", lost, torn)
	}
}
