package raftengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// Names inside the engine's folder.
const (
	logDir      = "log"
	rowsDir     = "rows"
	snapshotDir = "snapshots"
)

// Times of the Raft group. With one member they only cost timer ticks; the election at
// start does not wait for them, see startRaft.
const (
	heartbeat = 2 * time.Second
	// trailing is how many entries stay in the log behind a snapshot, at least.
	trailing = 64
	// readyTimeout bounds how long the group may take to find its master, replay aside.
	readyTimeout = 30 * time.Second
)

// Engine is a member of a Raft group. It implements engine.Engine.
type Engine struct {
	opts    Options
	meta    *meta
	metrics *metrics
	queue   *queue
	clock   stamp

	fs     vfs.FS
	unlock func() error
	db     *pebble.DB
	log    *timedLog
	wal    *wal.Log      // nil in memory
	found  *wal.Recovery // nil in memory
	stable raft.StableStore
	snaps  *snapshotStore
	fsm    *fsm
	raft   *raft.Raft
	// raftUp is raft for fail, which may run while Open is at work. raftDown is what
	// Raft's first Shutdown gave: only that one can be waited for.
	raftUp   atomic.Pointer[raft.Raft]
	raftOnce sync.Once
	raftDown raft.Future

	// logged counts bytes applied since the last snapshot; snapDue wakes the goroutine
	// that takes one.
	logged  atomic.Int64
	snapDue chan struct{}
	// stop ends that goroutine; background is done when it and the leadership watch are.
	stop       chan struct{}
	background sync.WaitGroup
	leadership chan bool
	// elected is closed when this member is the master, down when the engine has failed.
	elected chan struct{}
	down    chan struct{}

	views   gate
	closing atomic.Bool
	failed  atomic.Pointer[shard.Error]
	closed  sync.Once
	closeE  error
}

var _ engine.Engine = (*Engine)(nil)

// Open opens the engine's folder, or makes it, replays the log, and returns when
// commands can be proposed. The replay of a full log takes well under a second; ctx
// bounds all of it.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	e := &Engine{
		opts: opts, metrics: newMetrics(), fs: opts.fs,
		snapDue: make(chan struct{}, 1), stop: make(chan struct{}), leadership: make(chan bool, 8),
		elected: make(chan struct{}), down: make(chan struct{}),
	}
	e.clock.now = opts.Now
	e.queue = newQueue(opts.MaxInFlight, opts.MaxInFlightBytes, func(p *proposal) {
		e.raft.ApplyLog(raft.Log{Data: p.args, Extensions: p.head}, 0)
	})
	if err := e.open(ctx); err != nil {
		e.closing.Store(true)
		e.release()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context) error {
	dir := e.opts.Dir
	if e.opts.Memory {
		dir = "memory"
		if e.fs == nil {
			e.fs = vfs.NewMem()
		}
	}
	if e.fs == nil {
		e.fs = vfs.Default
	}
	if err := makeDir(e.fs, dir); err != nil {
		return badFolder(dir, "it cannot be made: %v", err)
	}
	var err error
	if e.unlock, err = lockFolder(e.fs, dir); err != nil {
		return err
	}
	if e.meta, err = openMeta(e.fs, dir, &e.opts); err != nil {
		return err
	}
	if e.snaps, err = openSnapshots(e.fs, e.fs.PathJoin(dir, snapshotDir)); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.rebuildRows(dir); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Reason: "the rows cannot be taken from the snapshot", Err: err}
	}
	e.db, err = pebble.Open(e.fs.PathJoin(dir, rowsDir), e.pebbleOptions(e.fs))
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Reason: "the rows in " + e.fs.PathJoin(dir, rowsDir) + " cannot be opened", Err: err}
	}
	at, err := loadPosition(e.db)
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.openLog(e.fs.PathJoin(dir, logDir), at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Reason: "the log in " + e.fs.PathJoin(dir, logDir) + " cannot be opened", Err: err}
	}
	if err := e.checkReach(dir, at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	// The folders inside are there for good before anything in them counts.
	if err := syncDir(e.fs, dir); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	e.clock.last = at.time
	if err := e.opts.Machine.Reset(&reader{src: e.db}); err != nil {
		return err
	}
	e.fsm = newFSM(e, e.db, at)
	if err := e.bootstrap(dir, at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.startRaft(at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.becomeReady(ctx); err != nil {
		return err
	}
	// Times go on behind those of the log.
	e.clock.catchUp(e.fsm.at.time)
	if e.found != nil {
		// What earlier runs logged counts too, or the log would grow over many short runs.
		e.logged.Store(e.found.Bytes)
		e.snapshotIfDue()
	}
	return nil
}

// bootstrap writes the log's first entry, the members of the group, in a new folder.
// It may be cut short by a crash at any point and done again.
func (e *Engine) bootstrap(dir string, at position) error {
	last, err := e.log.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 && at.index == 0 && !e.meta.Started {
		members := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(e.meta.MemberID), Address: memberAddress}}}
		if err := e.stable.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			return err
		}
		first := raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(members), AppendedAt: e.opts.Now()}
		if err := e.log.StoreLog(&first); err != nil {
			return err
		}
		if err := e.log.Sync(); err != nil {
			return err
		}
		last = 1
	}
	if last == 0 {
		return fmt.Errorf("the log in %s is empty although commands were logged before; restore the whole data folder from a backup", e.fs.PathJoin(dir, logDir))
	}
	if last < at.index {
		return fmt.Errorf("the log ends at entry %d, before entry %d that the rows hold; restore the whole data folder from a backup", last, at.index)
	}
	if e.meta.Started {
		return nil
	}
	e.meta.Started = true
	return e.meta.write(e.fs, dir)
}

// memberAddress is the one member's address; nobody calls it.
const memberAddress = raft.ServerAddress("local")

// startRaft starts Raft at the place in the log where the rows stand.
func (e *Engine) startRaft(at position) error {
	if at.index > 0 {
		members, from, err := loadConfig(e.db)
		if err != nil {
			return err
		}
		if len(members.Servers) == 0 {
			return errors.New("the rows do not say who the group's members are; restore the data folder from a backup")
		}
		e.snaps.setLive(snapshotMetaOf("rows", at.index, at.term, members, from))
	}
	_, transport := raft.NewInmemTransport(memberAddress)
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(e.meta.MemberID)
	conf.Logger = &hlog{l: e.opts.Logger, name: "raft"}
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = window
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	conf.NotifyCh = e.leadership
	// Snapshots are taken by bytes, see snapshotIfDue.
	conf.SnapshotInterval = 24 * time.Hour
	conf.SnapshotThreshold = 1 << 62
	conf.TrailingLogs = trailing
	conf.HeartbeatTimeout = heartbeat + time.Second
	conf.ElectionTimeout = heartbeat + time.Second
	conf.LeaderLeaseTimeout = heartbeat
	conf.CommitTimeout = heartbeat

	r, err := raft.NewRaft(conf, e.fsm, e.log, fatalStable{e.stable, e}, e.snaps, transport)
	e.snaps.setLive(nil)
	if err != nil {
		return err
	}
	e.raft = r
	e.raftUp.Store(r)
	e.background.Add(2)
	go e.watchLeadership()
	go e.takeSnapshots()
	// A shorter heartbeat makes a follower look at once for a master, so the one member
	// elects itself now and not after a timeout.
	rc := r.ReloadableConfig()
	rc.HeartbeatTimeout = heartbeat
	return r.ReloadConfig(rc)
}

// readyFunction is a command of the engine's own that does nothing. When it is done, so
// is everything before it.
const readyFunction = "_engine.ready"

// becomeReady waits until this member is the master and has applied its log.
func (e *Engine) becomeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	late := func() error {
		return &shard.Error{Code: shard.MissingMaster, Reason: "the store did not become ready in time", Err: ctx.Err()}
	}
	select {
	case <-e.elected:
	case <-e.down:
		return e.failure()
	case <-ctx.Done():
		return late()
	}
	e.queue.open() // nobody else can propose before Open returns
	done := make(chan error, 1)
	err := e.queue.add(&engine.Command{Function: readyFunction}, &e.clock, func(_ []byte, err error) { done <- err })
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return late()
	}
}

// watchLeadership notes when this member becomes the master of its group of one, and
// ends the engine when it stops being that: it happens only when the log cannot be
// written.
func (e *Engine) watchLeadership() {
	defer e.background.Done()
	elected := false
	for {
		select {
		case <-e.stop:
			return
		case master := <-e.leadership:
			switch {
			case master && !elected:
				elected = true
				close(e.elected)
			case !master && !e.closing.Load():
				e.fail(errors.New("this member stopped being the master of its group of one"))
			}
		}
	}
}

// Propose implements engine.Engine.
func (e *Engine) Propose(cmd engine.Command, done func([]byte, error)) {
	var err error
	switch {
	case len(cmd.Function) == 0 || len(cmd.Function) > engine.MaxFunctionName:
		err = &shard.Error{Code: shard.FunctionNotFound, Bucket: cmd.Bucket, Reason: fmt.Sprintf("a name has 1 to %d bytes, this one %d", engine.MaxFunctionName, len(cmd.Function))}
	case len(cmd.Args) > e.opts.MaxArgs:
		err = &shard.Error{Code: shard.ArgumentsTooLarge, Bucket: cmd.Bucket, Reason: fmt.Sprintf("%d bytes, the limit is %d", len(cmd.Args), e.opts.MaxArgs)}
	default:
		err = e.queue.add(&cmd, &e.clock, done)
	}
	if err != nil {
		// Never inside Propose: its caller may hold a lock that done takes.
		go done(nil, err)
	}
}

// View implements engine.Engine.
func (e *Engine) View(ctx context.Context, fn func(engine.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.failure(); err != nil {
		return err
	}
	if !e.views.enter() {
		return errClosed()
	}
	defer e.views.leave()
	snap := e.db.NewSnapshot()
	r := reader{src: snap}
	err := fn(&r)
	if closeErr := errors.Join(r.release(), snap.Close()); err == nil {
		err = closeErr
	}
	if err != nil && pebble.IsCorruptionError(err) {
		e.fail(fmt.Errorf("rows: %w", err))
		return e.failure()
	}
	return err
}

// Status implements engine.Engine.
func (e *Engine) Status() engine.Status {
	s := engine.Status{
		State: engine.Master, Applied: e.fsm.applied.Load(), Logged: e.raft.LastIndex(),
		SnapshotAt: e.snaps.newestIndex(), LogBytes: e.logged.Load(),
	}
	s.InFlight, s.InFlightBytes = e.queue.inFlight()
	if e.wal != nil {
		if low := e.wal.Status().LowSpace; low != nil {
			s.Warning = "the disk is full: the log goes on until its current file is full: " + low.Error()
		}
	}
	if e.closing.Load() {
		s.State = engine.Closed
	}
	if f := e.failed.Load(); f != nil {
		s.State, s.Err = engine.Failed, f
	}
	return s
}

// ClusterID returns the cluster id that the folder records.
func (e *Engine) ClusterID() string { return e.meta.ClusterID }

// BucketCount returns the number of buckets that the folder records.
func (e *Engine) BucketCount() uint32 { return e.meta.BucketCount }

// failure returns why the engine failed, or nil.
func (e *Engine) failure() error {
	if f := e.failed.Load(); f != nil {
		return f
	}
	return nil
}

func (e *Engine) failedError(err error) *shard.Error {
	return &shard.Error{Code: shard.StoreFailed, Err: err}
}

// fail ends the engine. Only the first error counts. It may be called from anywhere,
// also from inside Raft and Pebble with their locks held, so it only starts what is
// to be done.
func (e *Engine) fail(err error) {
	failure := e.failedError(err)
	if !e.failed.CompareAndSwap(nil, failure) {
		return
	}
	close(e.down)
	e.opts.Logger.Error("the store has failed and takes no more calls", "error", err)
	go e.opts.OnFatal(failure)
	go func() {
		e.queue.abort(failure, false)
		if e.raftUp.Load() == nil {
			return
		}
		// Closing the channel that this waits for is all that Shutdown itself does.
		_ = e.shutdownRaft().Error()
		e.queue.abort(failure, true)
	}()
}
