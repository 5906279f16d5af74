package raftengine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/switchyard-dev/switchyard/shard"
)

// rows are the rows in Pebble. An engine has one at a time; it gets another one when it
// takes over the rows of another member.
type rows struct {
	db  *pebble.DB
	dir string
	// views is where those who read enter.
	views gate
	// retired is set when others have taken their place; gone is closed when they are
	// closed and removed then.
	retired atomic.Bool
	gone    chan struct{}
}

// openRows opens the rows in a folder.
func (e *Engine) openRows(dir string) (*rows, error) {
	r := &rows{dir: dir, gone: make(chan struct{})}
	var err error
	r.db, err = pebble.Open(dir, e.pebbleOptions(e.fs, r))
	if err != nil {
		return nil, &shard.Error{Code: shard.StoreFailed, Reason: "the rows in " + dir + " cannot be opened", Err: err}
	}
	return r, nil
}

// enter returns the rows for reading; leave their gate afterwards. It returns nil when the
// engine is closed.
func (e *Engine) enter() *rows {
	for {
		r := e.rows.Load()
		if r.views.enter() {
			return r
		}
		if e.rows.Load() == r {
			return nil
		}
	}
}

// replaceRows puts new rows in the place of the old ones. The old ones are closed and
// removed when their last reader has left.
func (e *Engine) replaceRows(with *rows) {
	old := e.rows.Swap(with)
	old.retired.Store(true)
	old.views.close()
	e.oldMu.Lock()
	e.old = append(e.old, old)
	e.oldMu.Unlock()
	go func() {
		defer close(old.gone)
		_ = old.views.wait(context.Background())
		err := errors.Join(old.db.Close(), e.fs.RemoveAll(old.dir))
		if err != nil {
			e.opts.Logger.Warn("rows that are not needed any more could not be removed; the next start will", "folder", old.dir, "error", err)
		}
	}()
}

// waitOld waits until rows that were replaced are closed.
func (e *Engine) waitOld(ctx context.Context) error {
	e.oldMu.Lock()
	old := e.old
	e.oldMu.Unlock()
	for _, r := range old {
		select {
		case <-r.gone:
		case <-ctx.Done():
			return fmt.Errorf("views of the store are still open: %w", ctx.Err())
		}
	}
	return nil
}
