package raftengine

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// rebuildRows takes the rows from the newest snapshot when their folder is not there:
// the log alone may not reach back to the first command.
func (e *Engine) rebuildRows(dir string) error {
	if err := e.removeStrayRows(dir); err != nil {
		return err
	}
	rows := e.fs.PathJoin(dir, e.meta.Load().rowsName())
	if _, err := e.fs.Stat(rows); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.snaps.newest == nil {
		return nil // a new folder, or the log has everything: see checkReach
	}
	from := e.fs.PathJoin(e.snaps.dir, e.snaps.newest.ID, snapshotRows)
	e.opts.Logger.Warn("the rows are missing; they are taken from the newest snapshot, and what came later from the log", "snapshot", from)
	return e.linkRows(from, rows)
}

// linkRows makes a folder of rows out of that of a snapshot. It is whole or not there. The
// tables are linked, since nobody changes them; all else is copied.
func (e *Engine) linkRows(from, to string) error {
	tmp := to + ".tmp" // one that was cut short is removed at the next start
	if err := e.fs.RemoveAll(tmp); err != nil {
		return err
	}
	names, err := e.fs.List(from)
	if err != nil {
		return err
	}
	if err := e.fs.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		move := vfs.LinkOrCopy
		if !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") {
			move = func(fsys vfs.FS, from, to string) error { return vfs.Copy(fsys, from, to) }
		}
		if err := move(e.fs, e.fs.PathJoin(from, name), e.fs.PathJoin(tmp, name)); err != nil {
			return err
		}
	}
	if err := syncDir(e.fs, tmp); err != nil {
		return err
	}
	if err := e.fs.Rename(tmp, to); err != nil {
		return err
	}
	return syncDir(e.fs, e.dir)
}

// checkReach refuses a log that begins behind the place where the rows stand: the
// commands between would be missing.
func (e *Engine) checkReach(dir string, at position) error {
	first, err := e.log.FirstIndex()
	if err != nil || first <= at.index+1 {
		return err
	}
	return fmt.Errorf("the rows in %s stand at log entry %d and the log begins at entry %d, so commands between them are missing; "+
		"move the folder %s away to have it rebuilt from the newest snapshot, or restore the whole data folder from a backup",
		e.fs.PathJoin(dir, e.meta.Load().rowsName()), at.index, first, e.meta.Load().rowsName())
}
