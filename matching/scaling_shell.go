package matching

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/scaling"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// Managed partition counts. Package scaling decides; this is what carries it out, on
// the owner of the queue's root.
//
// The counts and what the manager remembers are in the queue's row, where everything
// that concerns the queue as a whole looks for its partitions anyway. A change is
// swapped in against the row that it was worked out from, so a root that has lost its
// partition cannot interfere with its successor. A partition reads the row after it
// was taken, so it never goes by older counts than those that were in effect when it
// was loaded.
//
// Before the read count falls below a partition, that partition is dropped: its owner
// says that there is no task in it, dead ones included, and deletes its rows. When
// the owner cannot be reached, or the partition is not in memory, the root does that
// itself in the store, and fences a possible owner by it.

const (
	// scalePause is the least time between two looks at what was added.
	scalePause = 100 * time.Millisecond
	// askTimeout bounds the asking of one partition, and storeTimeout a change.
	askTimeout   = 5 * time.Second
	storeTimeout = 30 * time.Second
	// missedRounds is after how many rounds a partition that does not answer is
	// looked up in the store.
	missedRounds = 2
	// backlogInterval is the default of Scaling.BacklogInterval.
	backlogInterval = 5 * time.Second
)

// Scaling sets the pace of managed partition counts. The zero value of a field takes
// its default.
type Scaling struct {
	// Interval is how often a root asks the partitions of its queue. Default 23 s.
	Interval time.Duration
	// BacklogInterval is how often when it is less and the queue has a backlog cap: clients
	// choose partitions by the backlogs then. Default 5 s.
	BacklogInterval time.Duration
	// DrainBuffer is how long after a change a partition can count as empty. Default
	// 15 s.
	DrainBuffer time.Duration
	// Cooldown is the least time between two changes of the number of partitions
	// that there are to be. Default 3 s.
	Cooldown time.Duration
}

// scaler runs the manager of a root's queue. Its goroutine lives as long as the
// partition is in memory.
type scaler struct {
	o      *owner
	adds   atomic.Int64 // tasks taken since the last look
	news   atomic.Bool  // the queue's row has changed
	write  atomic.Int32 // the write count in effect
	status atomic.Pointer[v1.QueueScalingStatus]
	rounds atomic.Int64 // of questions
	signal chan struct{}

	// Of the goroutine only.
	m      *scaling.Manager
	state  []byte // as it is in the queue's row
	missed map[int32]int
	// eager: the backlogs are not known yet, and somebody wants to know them.
	eager   bool
	told    []byte // the backlogs that clients were told of last
	toldVer int64  // and their version
}

// managed says whether a queue's counts are managed: if not, they are as configured.
func managed(q *v1.StoredQueue) bool { return len(q.GetScalingState()) > 0 }

// scale lets a root's scaler know of its queue's row, and starts it when there is
// something to do.
func (o *owner) scale(q *v1.StoredQueue) {
	if !o.id.isRoot() {
		return
	}
	s := o.scaler.Load()
	if s == nil {
		if m := q.GetConfig().GetScaling().GetMode(); !managed(q) && m != v1.QueueScaling_MODE_ON && m != v1.QueueScaling_MODE_SHADOW {
			return
		}
		s = &scaler{o: o, signal: make(chan struct{}, 1), missed: map[int32]int{}}
		if !o.scaler.CompareAndSwap(nil, s) {
			s = o.scaler.Load()
		} else {
			defer o.engine.background(func(context.Context) { s.run(o.hops) })
		}
	}
	// The scaler reads the row itself: several that are on their way here could
	// overtake each other.
	s.news.Store(true)
	s.ring()
}

// addsSeen counts tasks that clients have added to the partition.
func (o *owner) addsSeen(n int) {
	s := o.scaler.Load()
	if s == nil {
		return
	}
	sum := s.adds.Add(int64(n)) * int64(s.write.Load())
	if sum >= scaling.BatchSize {
		s.ring()
	}
}

func (s *scaler) ring() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

func (s *scaler) run(ctx context.Context) {
	defer s.o.engine.metrics.unscaled(s.o)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := s.step(ctx)
		pause := time.NewTimer(scalePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.signal:
		case <-ctx.Done():
			return
		}
	}
}

// step does what is due, and returns how long nothing will be.
func (s *scaler) step(ctx context.Context) time.Duration {
	const long, again, shown = time.Hour, time.Second, 5 * time.Second
	due := false
	if s.news.Swap(false) {
		row, err := s.o.engine.getQueue(ctx, s.o.id.Namespace, s.o.id.Queue)
		if err != nil {
			s.news.Store(true)
			return again
		}
		due = s.take(row)
	}
	if s.m == nil {
		return long
	}
	now := s.o.engine.steady()
	if s.m.Observe(now, int(s.adds.Swap(0))) {
		due = true
	}
	if at, ok := s.m.Wake(); ok && (now >= at || s.eager) {
		s.eager = false
		s.round(ctx)
		s.rounds.Add(1)
		due = true
	}
	if due {
		s.change(ctx)
	}
	s.tell()
	at, ok := s.m.Wake()
	switch {
	case !ok:
		return long
	case s.eager:
		return 0
	}
	wait := time.Duration(max(at-s.o.engine.steady(), 0))
	if s.status.Load().GetAddRate() > 0 {
		wait = min(wait, shown) // the rate falls even if nothing happens
	}
	return wait
}

// take follows the queue's row. It says whether there may be something to change.
func (s *scaler) take(row *v1.StoredQueue) bool {
	set := scalingSettings(row, s.o.engine.partitions)
	pace := s.o.engine.options.Scaling
	set.Interval, set.DrainBuffer, set.Cooldown = pace.Interval, pace.DrainBuffer, pace.Cooldown
	if set.BacklogCap > 0 && set.Mode == scaling.On {
		often := cmp.Or(pace.BacklogInterval, backlogInterval)
		set.Interval = min(cmp.Or(set.Interval, often), often)
	}
	now := s.o.engine.steady()
	var err error
	if s.m == nil || !bytes.Equal(s.state, row.GetScalingState()) {
		// Somebody else's, or the first.
		var m *scaling.Manager
		if m, err = scaling.New(set, row.GetScalingState(), now, rand.Uint64()); err == nil {
			s.m, s.state = m, row.GetScalingState()
			s.eager = m.Counts().BacklogCap > 0
		}
	} else {
		err = s.m.Configure(set, now)
	}
	if err != nil {
		s.o.engine.log.Error("the partitions of a queue cannot be managed", "queue", s.o.id.String(), "err", err)
	}
	return err == nil
}

// tell shows where things are.
func (s *scaler) tell() {
	c := s.m.Counts()
	if !c.Managed() {
		c.Write = s.o.partitionCounts().GetWrite()
		c.Read = s.o.partitionCounts().GetRead()
	}
	s.write.Store(c.Write)
	st := &v1.QueueScalingStatus{AddRate: s.m.Rate(s.o.engine.steady())}
	st.Target, st.Largest, st.ShadowTarget = s.m.Targets()
	s.status.Store(st)
	s.o.engine.metrics.scaled(s.o, st, c)
}

// countsProto is how counts travel. backlogs is the version of the backlogs: a wall time, as
// the counts' own; those in the queue's row are as old as the counts.
func countsProto(c scaling.Counts, backlogs int64) *v1.PartitionCounts {
	return &v1.PartitionCounts{Read: c.Read, Write: c.Write, Version: c.Version, BacklogCap: c.BacklogCap, Backlog: c.Backlog, BacklogVersion: backlogs}
}

// round asks all partitions how they are.
func (s *scaler) round(ctx context.Context) {
	e := s.o.engine
	read := s.m.Round(e.steady(), rand.Uint64())
	counts := s.counts()
	reports := make([]*scaling.Report, read)
	missed := make([]bool, read)
	var g errgroup.Group
	g.SetLimit(fanOut)
	for n := range read {
		draining := s.m.Draining(e.steady(), n)
		look := s.missed[n] >= missedRounds
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			r, err := e.askPartition(ctx, s.o.id.sibling(n), counts, draining, look)
			if err != nil {
				missed[n] = true
				e.log.Debug("partition did not say how it is", "partition", s.o.id.sibling(n).String(), "err", err)
			}
			reports[n] = r
			return nil // the others are asked all the same
		})
	}
	_ = g.Wait() // no task returns an error
	if ctx.Err() != nil {
		return
	}
	before := s.missed
	s.missed = map[int32]int{}
	now := e.steady()
	for n, r := range reports {
		if r != nil {
			s.m.Answer(now, *r)
		}
		if missed[n] {
			s.missed[int32(n)] = before[int32(n)] + 1
		}
	}
	s.tellBacklogs(ctx)
}

// counts are those in effect, as they travel.
func (s *scaler) counts() *v1.PartitionCounts {
	c := s.m.Counts()
	return countsProto(c, max(s.toldVer, c.Version))
}

// tellBacklogs brings new backlogs to all partitions in memory, for their clients.
func (s *scaler) tellBacklogs(ctx context.Context) {
	e, c := s.o.engine, s.m.Counts()
	if !c.Managed() || bytes.Equal(c.Backlog, s.told) {
		return
	}
	s.told, s.toldVer = c.Backlog, max(e.now(), s.toldVer+1, c.Version)
	counts := s.counts()
	s.o.learnCounts(counts)
	var g errgroup.Group
	g.SetLimit(fanOut)
	for n := int32(1); n < c.Read; n++ {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			id := s.o.id.sibling(n)
			if peer, _, err := e.peers.Owner(id); err == nil {
				_, _ = peer.PublishCounts(ctx, &v1.PublishCountsRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: n, Counts: counts})
			}
			return nil // the next round brings it again
		})
	}
	_ = g.Wait() // no task returns an error
}

// askPartition brings a partition the counts and asks how it is. One that is not in
// memory, or was not reached for long (look), is looked up in the store; one that is
// to be emptied (draining) is dropped if it is empty.
func (e *Engine) askPartition(ctx context.Context, id PartitionID, counts *v1.PartitionCounts, draining, look bool) (*scaling.Report, error) {
	r := &scaling.Report{Partition: id.Number, Read: counts.GetRead(), Write: counts.GetWrite(), Version: counts.GetVersion()}
	peer, _, err := e.peers.Owner(id)
	if err == nil {
		var resp *v1.PublishCountsResponse
		req := &v1.PublishCountsRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: id.Number, Counts: counts}
		if resp, err = peer.PublishCounts(ctx, req); err == nil && resp.GetWasLoaded() {
			r.Backlog = resp.GetBacklog()
			if draining && resp.GetDrained() {
				left, err := e.dropPartition(ctx, id, false)
				if err != nil {
					return nil, err
				}
				r.Empty = left == 0
			}
			return r, nil
		}
	}
	if err != nil && !look {
		return nil, err
	}
	m, ok, err := e.storedMeta(ctx, id)
	if err != nil {
		return nil, err
	}
	r.Backlog = m.counts.fresh
	if !draining || m.counts.tasks() > 0 {
		return r, nil
	}
	if ok {
		if r.Empty, err = e.dropStored(ctx, id); err != nil {
			return nil, err
		}
		return r, nil
	}
	r.Empty = true // whoever loads it now reads the counts after that
	return r, nil
}

// dropStored deletes a partition's rows if there is no task, without its owner, who
// is fenced by it.
func (e *Engine) dropStored(ctx context.Context, id PartitionID) (empty bool, err error) {
	row, err := e.router.Call(ctx, e.bucketOf(id), router.CallRW, fnTake, takeArgs(id.Hash(), rand.Uint64(), id.Key()))
	if err != nil {
		return false, e.storeError(err)
	}
	var m meta
	if err := m.decode(row); err != nil {
		return false, e.storeError(err)
	}
	if m.counts.tasks() > 0 {
		return false, nil
	}
	var b batch
	b.begin(id.Hash(), m.uid, m.rangeID, id.Key())
	_, err = e.router.Call(ctx, e.bucketOf(id), router.CallRW, fnDrop, b.args)
	return err == nil, e.storeError(err)
}

// tasks is how many tasks there are.
func (c counts) tasks() int64 { return c.fresh + c.scheduled + c.leased + c.dead }

var errScalingMoved = errors.New("matching: somebody else has changed the queue's partition counts")

// change stores what the manager proposes, and has it take effect.
func (s *scaler) change(ctx context.Context) {
	e := s.o.engine
	p := s.m.Propose(e.steady(), e.now())
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	row, err := e.changeQueue(ctx, s.o.id.Namespace, s.o.id.Queue, func(q *v1.StoredQueue) error {
		if !bytes.Equal(q.GetScalingState(), s.state) || q.GetDeleting() {
			return errScalingMoved
		}
		if q.Config == nil {
			q.Config = &v1.QueueConfig{}
		}
		if q.Config.Partitions == 0 { // where to go back to
			q.Config.Partitions = rowCounts(q).GetWrite()
		}
		q.ScalingState = p.Row
		read, write := p.After.Read, p.After.Write
		if !p.After.Managed() {
			read, write = q.Config.Partitions, q.Config.Partitions
		}
		q.ReadPartitions = read
		setWritePartitions(q, write, e.now())
		return nil
	})
	if err != nil {
		s.m.Discard(p)
		if ctx.Err() == nil {
			e.log.Warn("partition counts were not changed", "queue", s.o.id.String(), "err", err)
		}
		s.news.Store(true) // it may have arrived all the same
		return
	}
	before := s.o.partitionCounts()
	s.m.Commit(e.steady(), p)
	s.state = p.Row
	s.eager = s.eager || p.After.BacklogCap > 0 && (p.Before.BacklogCap == 0 || p.After.Read > p.Before.Read)
	e.metrics.scaleEvent(s.o)
	e.log.Info("partition counts changed", "queue", s.o.id.String(), "read", row.GetReadPartitions(), "write", row.GetWritePartitions())
	// Those that are not polled any more are not among the queue's partitions.
	s.tellLeaving(ctx, rowCounts(row).GetRead(), max(p.Before.Read, before.GetRead()))
}

// tellLeaving lets the partitions from n to before know the counts, so that they
// refuse whoever still comes.
func (s *scaler) tellLeaving(ctx context.Context, n, before int32) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for ; n < before; n++ {
		id := s.o.id.sibling(n)
		g.Go(func() error {
			if peer, _, err := s.o.engine.peers.Owner(id); err == nil {
				_, _ = peer.ConfigurePartition(ctx, &v1.ConfigurePartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: id.Number})
			}
			return nil // clients learn the counts from other partitions too
		})
	}
	_ = g.Wait() // no task returns an error
}

// scalingSettings are what a queue's row says about scaling.
func scalingSettings(q *v1.StoredQueue, partitions int) scaling.Settings {
	c := q.GetConfig().GetScaling()
	s := scaling.Settings{
		Min: c.GetMinPartitions(), Max: c.GetMaxPartitions(), Fixed: c.GetFixedPartitions(),
		BacklogBase: c.GetBacklogBase(), BacklogReset: c.GetBacklogReset(), BacklogCap: c.GetBacklogCap(),
		Configured: q.GetConfig().GetPartitions(),
	}
	switch c.GetMode() {
	case v1.QueueScaling_MODE_ON:
		s.Mode = scaling.On
	case v1.QueueScaling_MODE_SHADOW:
		s.Mode = scaling.Shadow
	}
	for _, r := range c.GetUp() {
		s.Up = append(s.Up, scaling.Rule{Window: r.GetWindow().AsDuration(), Rate: r.GetRate()})
	}
	for _, r := range c.GetDown() {
		s.Down = append(s.Down, scaling.Rule{Window: r.GetWindow().AsDuration(), Rate: r.GetRate()})
	}
	if !managed(q) {
		s.Configured, s.ConfiguredRead = q.GetWritePartitions(), q.GetReadPartitions()
	}
	if s.Configured == 0 {
		s.Configured = int32(partitions)
	}
	return s
}

// checkScaling refuses settings that cannot be.
func checkScaling(c *v1.QueueConfig) error {
	if c.GetScaling() == nil {
		return nil
	}
	if _, ok := v1.QueueScaling_Mode_name[int32(c.GetScaling().GetMode())]; !ok {
		return reason.New(codes.InvalidArgument, reason.InvalidScaling, map[string]string{"field": "config.scaling.mode"}, "partition scaling has no mode %d", c.GetScaling().GetMode())
	}
	if err := scalingSettings(&v1.StoredQueue{Config: c, WritePartitions: 1, ReadPartitions: 1}, 1).Check(); err != nil {
		return reason.New(codes.InvalidArgument, reason.InvalidScaling, map[string]string{"field": "config.scaling"}, "%v", err)
	}
	return nil
}
