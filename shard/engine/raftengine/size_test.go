package raftengine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/switchyard-dev/switchyard/shard"
)

func TestSize_isThatOfTheRowsInTheRange(t *testing.T) {
	e := mustOpen(t, Options{Dir: t.TempDir()})
	// Words that do not get smaller when they are packed.
	word := func() string {
		b := make([]byte, 1000)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		return string(b)
	}
	for i := range 1000 {
		mustCall(t, e, "put", fmt.Sprintf("%d%s", i%10, word()))
	}
	size := func(from, to string) int64 {
		t.Helper()
		n, err := e.Size(rowKey(from), rowKey(to))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := size("", ":"); n != 0 {
		t.Errorf("nothing has been flushed, and the size is %d", n)
	}
	if err := e.rows.Load().db.Flush(); err != nil {
		t.Fatal(err)
	}
	// Each row is its word twice, as key and as value.
	if n := size("", ":"); n < 1_900_000 || n > 2_300_000 {
		t.Errorf("1000 rows of 2 kB: %d bytes", n)
	}
	if n := size("3", "4"); n < 100_000 || n > 400_000 {
		t.Errorf("100 rows of 2 kB: %d bytes", n)
	}
	if n := size("x", "y"); n > 50_000 {
		t.Errorf("no rows: %d bytes", n)
	}
	mustClose(t, e)
	if _, err := e.Size(rowKey(""), rowKey(":")); !errors.Is(err, shard.StoreClosed) {
		t.Errorf("closed: %v", err)
	}
}
