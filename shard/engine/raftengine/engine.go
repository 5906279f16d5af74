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
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// Names inside the engine's folder.
const (
	logDir      = "log"
	rowsDir     = "rows"
	snapshotDir = "snapshots"
)

// trailing is how many entries stay in the log behind a snapshot, at least.
const trailing = 64

// readyTimeout bounds how long a group of one may take to become ready, replay aside.
const readyTimeout = 30 * time.Second

// Engine is a member of a Raft group. It implements engine.Engine and engine.Group.
type Engine struct {
	opts    Options
	dir     string
	metrics *metrics
	queue   *queue
	clock   stamp

	// meta is replaced as a whole, under metaMu, once its file is written.
	meta   atomic.Pointer[meta]
	metaMu sync.Mutex

	fs     vfs.FS
	unlock func() error
	rows   atomic.Pointer[rows]
	oldMu  sync.Mutex
	old    []*rows // replaced, and perhaps not closed yet
	log    *timedLog
	wal    *wal.Log      // nil in memory
	found  *wal.Recovery // nil in memory
	stable raft.StableStore
	snaps  *snapshotStore
	fsm    *fsm
	raft   *raft.Raft
	// raftUp is raft for those who may come while Open is at work. raftDown is what Raft's
	// first Shutdown gave: only that one can be waited for.
	raftUp   atomic.Pointer[raft.Raft]
	raftOnce sync.Once
	raftDown raft.Future

	// logged counts bytes applied since the last snapshot; snapDue wakes the goroutine
	// that takes one. snapping is held by whoever takes or installs one.
	logged   atomic.Int64
	snapDue  chan struct{}
	snapping chan struct{}
	// stop ends the goroutines that background waits for.
	stop       chan struct{}
	background sync.WaitGroup
	lead       leading
	catchUp    catchUp
	barrier    barrier
	// members is held by whoever changes the members or hands over.
	members chan struct{}
	// down is closed when the engine has failed.
	down chan struct{}

	closing atomic.Bool
	failed  atomic.Pointer[shard.Error]
	closed  sync.Once
	closeE  error
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Group  = (*Engine)(nil)
	_ raftrpc.Host  = (*Engine)(nil)
)

// Open opens the engine's folder, or makes it. Without a transport it replays the log and
// returns when commands can be proposed; the replay of a full log takes well under a
// second. With a transport it returns at once, as a member that looks for its group; see
// Watch and Bootstrap. ctx bounds all of it.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	e := &Engine{
		opts: opts, metrics: newMetrics(), fs: opts.fs,
		snapDue: make(chan struct{}, 1), snapping: make(chan struct{}, 1), stop: make(chan struct{}),
		members: make(chan struct{}, 1), down: make(chan struct{}),
	}
	e.clock.now = opts.Now
	e.lead.init()
	e.queue = newQueue(opts.MaxInFlight, opts.MaxInFlightBytes, func(p *proposal) raft.ApplyFuture {
		return e.raft.ApplyLog(raft.Log{Data: p.args, Extensions: p.head}, 0)
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
	e.dir = dir
	if err := makeDir(e.fs, dir); err != nil {
		return badFolder(dir, "it cannot be made: %v", err)
	}
	var err error
	if e.unlock, err = lockFolder(e.fs, dir); err != nil {
		return err
	}
	m, err := openMeta(e.fs, dir, &e.opts)
	if err != nil {
		return err
	}
	e.meta.Store(m)
	if e.snaps, err = openSnapshots(e.fs, e.fs.PathJoin(dir, snapshotDir)); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	e.snaps.clusterID, e.snaps.bucketCount = e.ClusterID, e.BucketCount()
	_, e.snaps.doubles = e.opts.Machine.(engine.Doubler)
	if err := e.rebuildRows(dir); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Reason: "the rows cannot be taken from the snapshot", Err: err}
	}
	r, err := e.openRows(e.fs.PathJoin(dir, m.rowsName()))
	if err != nil {
		return err
	}
	e.rows.Store(r)
	at, err := loadPosition(r.db)
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.snaps.dropBeyond(at.index); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.openLog(e.fs.PathJoin(dir, logDir), at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Reason: "the log in " + e.fs.PathJoin(dir, logDir) + " cannot be opened", Err: err}
	}
	if err := e.dropStaleLog(at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if err := e.checkReach(dir, at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	// The folders inside are there for good before anything in them counts.
	if err := syncDir(e.fs, dir); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	e.clock.last = at.time
	if err := e.opts.Machine.Reset(&reader{src: r.db}); err != nil {
		return err
	}
	e.fsm = newFSM(e, r.db, at)
	if err := e.begin(dir, at); err != nil {
		return err
	}
	if err := e.startRaft(at); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	if e.found != nil {
		// What earlier runs logged counts too, or the log would grow over many short runs.
		e.logged.Store(e.found.Bytes)
	}
	if e.opts.Transport == nil {
		if err := e.becomeReady(ctx); err != nil {
			return err
		}
	}
	e.snapshotIfDue()
	return nil
}

// begin checks that the log is there, and writes its first entry, the members of the
// group, in a new folder of a group of one. It may be cut short by a crash at any point
// and done again.
func (e *Engine) begin(dir string, at position) error {
	last, err := e.log.LastIndex()
	if err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	m := e.meta.Load()
	lost := func(format string, args ...any) error {
		advice := "restore the whole data folder from a backup"
		if e.opts.Transport != nil {
			advice = "move the data folder away and start the member with an empty one, which the other members fill, or " + advice
		}
		return &shard.Error{Code: shard.StoreFailed, Reason: fmt.Sprintf(format, args...) + "; " + advice}
	}
	switch {
	case last == 0 && at.index == 0 && !m.Started && e.opts.Transport == nil:
		if err := e.writeFirst(m.MemberID); err != nil {
			return &shard.Error{Code: shard.StoreFailed, Err: err}
		}
		last = 1
	case last == 0 && at.index == 0 && !m.Started:
		return e.forgetBootstrap()
	case last == 0 && (at.index == 0 || at.index > m.Base):
		return lost("the log in %s is empty although commands were logged before", e.fs.PathJoin(dir, logDir))
	case last < at.index && at.index > m.Base:
		return lost("the log ends at entry %d, before entry %d that the rows hold", last, at.index)
	}
	if e.opts.Transport != nil && m.MemberID != e.opts.Transport.ID() {
		if err := e.rename(at); err != nil {
			return err
		}
	}
	if m.Started || m.Mute {
		return nil
	}
	if err := e.updateMeta(func(m *meta) { m.Started = true }); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	return nil
}

// forgetBootstrap undoes a Bootstrap that was cut short before its entry was logged, so that
// it can be done again. Other than that, a member that is not part of a group yet has
// nothing to be done.
func (e *Engine) forgetBootstrap() error {
	if e.meta.Load().Mute {
		return nil
	}
	term, err := e.stable.GetUint64(keyTerm)
	if err != nil || term != 1 {
		return nil // no term is an error for a stable store in memory
	}
	if err := e.stable.SetUint64(keyTerm, 0); err != nil {
		return &shard.Error{Code: shard.StoreFailed, Err: err}
	}
	return nil
}

// writeFirst writes the entry that makes this member a group of one.
func (e *Engine) writeFirst(id string) error {
	if err := e.stable.SetUint64(keyTerm, 1); err != nil {
		return err
	}
	first := raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(groupOfOne(id, memberAddress)), AppendedAt: e.opts.Now()}
	if err := e.log.StoreLog(&first); err != nil {
		return err
	}
	return e.log.Sync()
}

// keyTerm is where Raft keeps its term.
var keyTerm = []byte("CurrentTerm")

// memberAddress is the address of the member of a group of one without a transport;
// nobody calls it.
const memberAddress = raft.ServerAddress("local")

func groupOfOne(id string, address raft.ServerAddress) raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id), Address: address}}}
}

// updateMeta changes what the folder says about itself, for good.
func (e *Engine) updateMeta(change func(*meta)) error {
	e.metaMu.Lock()
	defer e.metaMu.Unlock()
	m := *e.meta.Load()
	change(&m)
	if m == *e.meta.Load() {
		return nil
	}
	if err := m.write(e.fs, e.dir); err != nil {
		return fmt.Errorf("%s: %w", metaName, err)
	}
	e.meta.Store(&m)
	return nil
}

// startRaft starts Raft at the place in the log where the rows stand.
func (e *Engine) startRaft(at position) error {
	if at.index > 0 {
		members, from, err := loadConfig(e.rows.Load().db)
		if err != nil {
			return err
		}
		if len(members.Servers) == 0 {
			return errors.New("the rows do not say who the group's members are; restore the data folder from a backup")
		}
		e.snaps.setLive(snapshotMetaOf("rows", at.index, at.term, members, from))
		e.log.setFloor(at)
	}
	var transport raft.Transport
	if e.opts.Transport != nil {
		transport = e.opts.Transport
		e.opts.Transport.Attach(e)
	} else {
		_, transport = raft.NewInmemTransport(memberAddress)
	}
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(e.meta.Load().MemberID)
	conf.Logger = &hlog{l: e.opts.Logger, name: "raft"}
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = window
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	conf.ShutdownOnRemove = false
	conf.NotifyCh = e.lead.won
	// Snapshots are taken by bytes, see snapshotIfDue.
	conf.SnapshotInterval = 24 * time.Hour
	conf.SnapshotThreshold = 1 << 62
	conf.TrailingLogs = trailing
	conf.HeartbeatTimeout = e.opts.HeartbeatTimeout
	conf.ElectionTimeout = e.opts.ElectionTimeout + time.Second
	conf.LeaderLeaseTimeout = e.opts.LeaseTimeout
	conf.CommitTimeout = commitTimeout

	r, err := raft.NewRaft(conf, e.fsm, e.log, fatalStable{e.stable, e}, e.snaps, transport)
	e.snaps.setLive(nil)
	if err != nil {
		return err
	}
	e.raft = r
	e.raftUp.Store(r)
	if e.opts.Transport != nil {
		e.queue.demote(e.notMaster)
	}
	e.lead.observe(r)
	e.background.Add(2)
	go e.followLeadership()
	go e.takeSnapshots()
	servers := r.GetConfiguration().Configuration().Servers
	e.log.several.Store(len(servers) > 1)
	switch {
	case len(servers) == 1 && servers[0].ID == conf.LocalID:
		if err := e.speak(); err != nil {
			return err
		}
		return e.electNow()
	case len(servers) > 1 && e.opts.Transport == nil:
		return errors.New("the folder belongs to a member of a group of several; start it with the configuration of its cluster")
	}
	return e.setElectionTimeout()
}

// commitTimeout is how long a master may take to tell the others what is committed when
// nothing else is sent.
const commitTimeout = 25 * time.Millisecond

// electNow makes the member of a group of one stand for election now and not after a
// timeout: a follower whose heartbeat timeout was shortened looks for its master at once.
func (e *Engine) electNow() error {
	rc := e.raft.ReloadableConfig()
	rc.HeartbeatTimeout = e.opts.HeartbeatTimeout + time.Millisecond
	rc.ElectionTimeout = e.opts.ElectionTimeout + time.Second
	if err := e.raft.ReloadConfig(rc); err != nil {
		return err
	}
	return e.setElectionTimeout()
}

func (e *Engine) setElectionTimeout() error {
	rc := e.raft.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = e.opts.HeartbeatTimeout, e.opts.ElectionTimeout
	return e.raft.ReloadConfig(rc)
}

// readyFunction is a command of the engine's own that does nothing. When it is done, so
// is everything before it.
const readyFunction = "_engine.ready"

// becomeReady waits until the member of a group of one is the master and has applied its
// log.
func (e *Engine) becomeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case <-e.lead.elected:
		return nil
	case <-e.down:
		return e.failure()
	case <-ctx.Done():
		return &shard.Error{Code: shard.MissingMaster, Reason: "the store did not become ready in time", Err: ctx.Err()}
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
		err = e.queue.add(&cmd, &e.clock, false, done)
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
	rows := e.enter()
	if rows == nil {
		return errClosed()
	}
	defer rows.views.leave()
	snap := rows.db.NewSnapshot()
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

// ClusterID returns the cluster id that the folder records, "" for a member that is not
// part of a group yet and was not told one.
func (e *Engine) ClusterID() string { return e.meta.Load().ClusterID }

// BucketCount returns the number of buckets that the folder records: that of the day on which
// it was made.
func (e *Engine) BucketCount() uint32 { return e.meta.Load().BucketCount }

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
		ctx, cancel := context.WithTimeout(context.Background(), e.opts.closeGrace)
		defer cancel()
		e.lead.waitWalk(ctx)
		_ = e.shutdownRaft().Error()
		e.queue.abort(failure, true)
	}()
}
