package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Options of Open.
type Options struct {
	// Registry holds the functions. Required; nothing can be registered afterwards.
	Registry *Registry
	// BucketCount is the cluster's number of buckets, at least 1.
	BucketCount uint32
	// ReplicaSet is the name of this replica set, for errors and reports.
	ReplicaSet string
	// OpenEngine opens the engine that keeps the rows, with the machine that it is to
	// drive. Required.
	OpenEngine func(context.Context, engine.Machine) (engine.Engine, error)
	// Logger takes what the storage has to say. Default: nothing.
	Logger *slog.Logger
	// Link reaches other replica sets. Without one, buckets cannot be moved.
	Link Link
	// PauseTime is how long the writes of a bucket may wait for the end of its move before
	// the move is called off (default 1.5 s).
	PauseTime time.Duration
	// CopyRate bounds how many bytes of rows are sent in a second to other replica sets
	// (default 90 MiB). When writes here or messages to the destinations become slow it goes
	// slower by itself.
	CopyRate int64
	// MaxReceiving is how many buckets may be on their way to this replica set (default 4096).
	MaxReceiving int
	// SplitRows is about how many rows one command looks at while bucket_count is doubled
	// (default 1024, at most 65536): the fewer, the shorter others wait for it.
	SplitRows int
}

// Storage is one replica of a replica set: functions over buckets over an engine. All
// methods may be called from any goroutine.
type Storage struct {
	opts   Options
	eng    engine.Engine
	writes map[string]WriteFunc
	reads  map[string]ReadFunc
	table  *bucketTable
	views  sync.Pool
	tx     Tx // of the command being applied

	served   atomic.Uint64 // calls of functions and views
	captures captures
	facts    facts
	refs     refs
	moving   moving
	chores   chores
	splits   splits
	// stop ends the goroutine of the chores, which closes stopped.
	stop    context.CancelFunc
	stopped chan struct{}
}

// Open opens the engine and reads which buckets are here.
func Open(ctx context.Context, opts Options) (*Storage, error) {
	if opts.Registry == nil || opts.OpenEngine == nil || opts.BucketCount == 0 {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "a storage needs a registry, an engine and a bucket count"}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.PauseTime == 0 {
		opts.PauseTime = defaultPauseTime
	}
	if opts.CopyRate == 0 {
		opts.CopyRate = defaultCopyRate
	}
	if opts.MaxReceiving == 0 {
		opts.MaxReceiving = defaultMaxReceiving
	}
	if opts.SplitRows == 0 {
		opts.SplitRows = defaultStepRows
	}
	if opts.SplitRows < 0 || opts.SplitRows > maxStepRows {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("a command cannot look at %d rows to split them; 1 to %d", opts.SplitRows, maxStepRows)}
	}
	if opts.CopyRate < 1 {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("the rate of copying is %d bytes a second; it must be at least 1", opts.CopyRate)}
	}
	if opts.PauseTime < 0 || opts.MaxReceiving < 0 || len(opts.ReplicaSet) > maxNameLength {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("pause time %v and receiving limit %d must not be negative, a name has at most %d bytes", opts.PauseTime, opts.MaxReceiving, maxNameLength)}
	}
	s := &Storage{opts: opts, table: newBucketTable(opts.BucketCount), stopped: make(chan struct{})}
	s.chores.init()
	s.splits.init()
	s.writes, s.reads = opts.Registry.freeze()
	s.views.New = func() any { return new(View) }
	var err error
	if s.eng, err = opts.OpenEngine(ctx, machine{s}); err != nil {
		return nil, err
	}
	if err := s.checkCount(); err != nil {
		return nil, errors.Join(err, s.eng.Close(ctx))
	}
	var background context.Context
	background, s.stop = context.WithCancel(context.Background())
	go s.runSplitter(background)
	if opts.Link == nil {
		close(s.stopped)
		return s, nil
	}
	go func() {
		defer close(s.stopped)
		s.runChores(background)
	}()
	return s, nil
}

// Served returns how many calls of functions, and views, there have been on this member.
func (s *Storage) Served() uint64 { return s.served.Load() }

// Close calls off moves, and stops the storage and its engine; see engine.Engine.
func (s *Storage) Close(ctx context.Context) error {
	s.moving.cancelAll()
	s.stop()
	for _, stopped := range [...]<-chan struct{}{s.stopped, s.splits.stopped} {
		select {
		case <-stopped:
		case <-ctx.Done():
		}
	}
	return s.eng.Close(ctx)
}

// Status returns the engine's condition.
func (s *Storage) Status() engine.Status { return s.eng.Status() }

// ReplicaSet returns the name of the storage's replica set.
func (s *Storage) ReplicaSet() string { return s.opts.ReplicaSet }

// BucketCount returns the cluster's number of buckets as this member was told. While it is
// doubled, others may be told otherwise; see As.
func (s *Storage) BucketCount() uint32 { return s.opts.BucketCount }

// checkBucket checks that there is a bucket, in any view.
func (s *Storage) checkBucket(bucket shard.BucketID) error {
	limit := s.opts.BucketCount
	if st := s.splits.state.Load(); st != nil {
		limit = st.limit()
	}
	if bucket < 1 || uint32(bucket) > limit {
		return s.noBucket(bucket, limit)
	}
	return nil
}

func notFound(bucket shard.BucketID, fn, kind string) error {
	return &shard.Error{Code: shard.FunctionNotFound, Bucket: bucket, Reason: fmt.Sprintf("%q is not the name of a registered %s function", fn, kind)}
}

// WriteAsync runs a write function and calls done with its outcome. It does not wait,
// and done never runs inside it; see engine.Engine.Propose for order, done and args.
func (s *Storage) WriteAsync(bucket shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	s.writeAsync(s.opts.BucketCount, bucket, fn, args, done)
}

// writeAsync is WriteAsync of a caller that knows count buckets.
func (s *Storage) writeAsync(count uint32, bucket shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	_, view, err := s.aim(count, bucket)
	if err == nil {
		if _, ok := s.writes[fn]; !ok {
			err = notFound(bucket, fn, "write")
		}
	}
	if err != nil {
		go done(nil, err)
		return
	}
	s.eng.Propose(engine.Command{Function: fn, Bucket: bucket, View: view, Args: args}, done)
}

// outcome of a Write that waits.
type outcome struct {
	value []byte
	err   error
}

// Write runs a write function and waits for its outcome. When ctx ends first, the
// function may still take effect, and args must stay as they are.
func (s *Storage) Write(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	return s.write(ctx, s.opts.BucketCount, bucket, fn, args)
}

func (s *Storage) write(ctx context.Context, count uint32, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return wait(ctx, func(done func([]byte, error)) { s.writeAsync(count, bucket, fn, args, done) })
}

func wait(ctx context.Context, start func(done func([]byte, error))) ([]byte, error) {
	ch := make(chan outcome, 1)
	start(func(value []byte, err error) { ch <- outcome{value, err} })
	select {
	case o := <-ch:
		return o.value, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Read runs a read function on the master's rows: it sees every write that ended before.
// NON_MASTER when this member is not the master.
func (s *Storage) Read(ctx context.Context, bucket shard.BucketID, fn string, args []byte) (result []byte, err error) {
	return s.read(ctx, s.opts.BucketCount, bucket, fn, args)
}

func (s *Storage) read(ctx context.Context, count uint32, bucket shard.BucketID, fn string, args []byte) (result []byte, err error) {
	if err := s.checkMaster(ctx, bucket); err != nil {
		return nil, err
	}
	return s.readAny(ctx, count, bucket, fn, args)
}

// ReadAny runs a read function on this member's rows of this moment, which are older than
// the master's when it is not the master.
func (s *Storage) ReadAny(ctx context.Context, bucket shard.BucketID, fn string, args []byte) (result []byte, err error) {
	return s.readAny(ctx, s.opts.BucketCount, bucket, fn, args)
}

func (s *Storage) readAny(ctx context.Context, count uint32, bucket shard.BucketID, fn string, args []byte) (result []byte, err error) {
	f, ok := s.reads[fn]
	if !ok {
		return nil, notFound(bucket, fn, "read")
	}
	err = s.viewAny(ctx, count, bucket, func(v *View) error {
		result, err = callRead(f, v, fn, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

func callRead(f ReadFunc, v *View, name string, args []byte) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, panicked(v.bucket, name, p)
		}
	}()
	return f(v, args)
}

// checkMaster returns nil once this member is known to be the master, with all that was
// written before.
func (s *Storage) checkMaster(ctx context.Context, bucket shard.BucketID) error {
	err := s.eng.ReadBarrier(ctx)
	if e, ok := err.(*shard.Error); ok { // the engine's own, which knows neither
		c := *e
		c.Bucket, c.ReplicaSet = bucket, s.opts.ReplicaSet
		return &c
	}
	return err
}

// View calls fn with a view of a bucket's rows on the master at this moment: with every write
// that ended before. NON_MASTER when this member is not the master.
func (s *Storage) View(ctx context.Context, bucket shard.BucketID, fn func(*View) error) error {
	return s.view(ctx, s.opts.BucketCount, bucket, fn)
}

func (s *Storage) view(ctx context.Context, count uint32, bucket shard.BucketID, fn func(*View) error) error {
	if err := s.checkMaster(ctx, bucket); err != nil {
		return err
	}
	return s.viewAny(ctx, count, bucket, fn)
}

// ViewAny calls fn with a view of this member's rows of a bucket at this moment, which holds every
// write whose done has run here.
func (s *Storage) ViewAny(ctx context.Context, bucket shard.BucketID, fn func(*View) error) error {
	return s.viewAny(ctx, s.opts.BucketCount, bucket, fn)
}

func (s *Storage) viewAny(ctx context.Context, count uint32, bucket shard.BucketID, fn func(*View) error) error {
	s.served.Add(1)
	for {
		split, view, err := s.aim(count, bucket)
		if err != nil {
			return err
		}
		before := s.table.load(bucket)
		if err := before.state().CheckRead(bucket, s.table.destination(bucket)); err != nil {
			return err
		}
		whole, done := split == nil, false
		if split != nil {
			done = split.isDone(view, bucket)
			whole = split.whole(view, done)
		}
		moved := false
		err = s.eng.View(ctx, func(r engine.Reader) (err error) {
			// A state that changed while the view was made says nothing about its rows.
			if moved = s.table.load(bucket) != before || s.splits.state.Load() != split; moved {
				return nil
			}
			if !whole {
				if r, err = split.reader(r, view, bucket, done); err != nil {
					return err
				}
			}
			v := s.views.Get().(*View)
			v.bucket, v.r = bucket, r
			err = fn(v)
			v.r = nil
			s.views.Put(v)
			return err
		})
		if !moved {
			return err
		}
	}
}

// panicked is the error of a function that panicked. The place is in the text, because
// nobody else sees it.
func panicked(bucket shard.BucketID, fn string, p any) error {
	return &shard.Error{Code: shard.FunctionFailed, Bucket: bucket, Reason: fmt.Sprintf("%s panicked: %v\n%s", fn, p, debug.Stack())}
}

// machine is the storage as the engine drives it.
type machine struct{ s *Storage }

// Reset reads the states of all buckets.
func (m machine) Reset(r engine.Reader) error {
	m.s.captures.lose()
	if err := m.s.facts.read(r); err != nil {
		return err
	}
	if err := m.s.splits.read(r); err != nil {
		return err
	}
	if st := m.s.splits.state.Load(); st != nil {
		m.s.table.grow(st.limit())
	}
	m.s.splits.signal()
	return m.s.table.read(r)
}

// Doubles implements engine.Doubler.
func (machine) Doubles() {}

// Apply carries out a command.
func (m machine) Apply(etx engine.Tx, cmd *engine.Command) ([]byte, error) {
	s := m.s
	if cmd.Bucket == 0 {
		return s.applySystem(etx, cmd)
	}
	s.served.Add(1)
	fn, ok := s.writes[cmd.Function]
	if !ok {
		return nil, engine.Fatal(fmt.Errorf("the log has a call of function %q, which this version of Switchyard does not know; use the version that wrote it, or a newer one", cmd.Function))
	}
	tx := &s.tx
	tx.tx, tx.r, tx.bucket, tx.time, tx.pair = etx, etx, cmd.Bucket, cmd.Time, nil
	if split := s.splits.state.Load(); split != nil || cmd.View != 0 {
		if err := s.aimTx(tx, split, cmd); err != nil {
			return nil, err
		}
	}
	if err := s.table.load(cmd.Bucket).state().CheckWrite(cmd.Bucket, ""); err != nil {
		return nil, withDestination(err, s.table.destination(cmd.Bucket))
	}
	tx.capture = s.captures.of(cmd.Bucket)
	result, err := callWrite(fn, tx, cmd)
	if tx.pair != nil && errors.Is(err, shard.TransferIsInProgress) {
		s.splits.hurry(tx.pair.lower)
	}
	return result, err
}

func callWrite(fn WriteFunc, tx *Tx, cmd *engine.Command) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, panicked(cmd.Bucket, cmd.Function, p)
		}
	}()
	return fn(tx, cmd.Args)
}

func withDestination(err error, destination string) error {
	var e *shard.Error
	if destination != "" && errors.As(err, &e) {
		c := *e
		c.Destination = destination
		return &c
	}
	return err
}
