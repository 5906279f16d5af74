package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

const (
	// sendList is how many buckets one list of a move has, and sendLists how many lists are under
	// way: one is copied while another is handed over.
	sendList  = 100
	sendLists = 2
	// What was cut short is sent again so often, at this pace.
	sendTries = 5
	sendPause = 500 * time.Millisecond
	// listTime bounds one list: large buckets take their time.
	listTime = 24 * time.Hour
	// progressTime is how often a long call says how far it is.
	progressTime = 250 * time.Millisecond
	// changeList bounds the buckets of one change of a replica set.
	changeList = 10_000
)

// UpdateBuckets implements v1.ClusterService.
func (s *Service) UpdateBuckets(ctx context.Context, req *v1.UpdateBucketsRequest) (*v1.UpdateBucketsResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.UpdateBucketsResponse, error) {
		buckets, err := list(req.GetBuckets(), s.router.BucketCount())
		if err != nil {
			return nil, err
		}
		resp := &v1.UpdateBucketsResponse{Buckets: uint32(len(buckets))}
		switch change := req.GetChange(); change {
		case v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE, v1.BucketChange_BUCKET_CHANGE_FORCE_DROP:
			if err := s.checkSet(req.GetReplicaSet()); err != nil {
				return nil, err
			}
			s.log.Warn("buckets are changed by force", "change", change.String(), "replica_set", req.GetReplicaSet(), "buckets", len(buckets))
			return resp, s.change(ctx, req.GetReplicaSet(), buckets, change)
		case v1.BucketChange_BUCKET_CHANGE_PIN, v1.BucketChange_BUCKET_CHANGE_UNPIN, v1.BucketChange_BUCKET_CHANGE_READ_ONLY, v1.BucketChange_BUCKET_CHANGE_READ_WRITE:
			return resp, s.changeOwned(ctx, buckets, change)
		}
		return nil, invalid("there is no change %v", req.GetChange())
	})
}

// changeOwned changes buckets where they are. It looks first whether all can be changed.
func (s *Service) changeOwned(ctx context.Context, buckets []shard.BucketID, change v1.BucketChange) error {
	p := s.look(ctx)
	bySet := map[string][]shard.BucketID{}
	for _, b := range buckets {
		at, err := p.owner(b)
		if err == nil {
			err = changeable(b, at, change)
		}
		if err != nil {
			return err
		}
		bySet[at.set] = append(bySet[at.set], b)
	}
	var done []string
	for _, set := range s.router.RouteAll() {
		if len(bySet[set]) == 0 {
			continue
		}
		if err := s.change(ctx, set, bySet[set], change); err != nil {
			if len(done) > 0 {
				return fmt.Errorf("those on %s were changed, the others were not: %w", strings.Join(done, ", "), err)
			}
			return err
		}
		done = append(done, set)
	}
	return nil
}

// changeable says whether a bucket can be changed as it is.
func changeable(b shard.BucketID, at place, change v1.BucketChange) error {
	e := &shard.Error{Bucket: b, ReplicaSet: at.set, Destination: at.peer}
	switch {
	case change == v1.BucketChange_BUCKET_CHANGE_PIN && at.state == shard.Pinned,
		change == v1.BucketChange_BUCKET_CHANGE_UNPIN,
		change == v1.BucketChange_BUCKET_CHANGE_READ_ONLY && at.state == shard.ReadOnly,
		change == v1.BucketChange_BUCKET_CHANGE_READ_WRITE && at.state == shard.Active:
		return nil // it is so already, or is never refused
	case at.moving():
		e.Code, e.Reason = shard.TransferIsInProgress, "it is on its way to another replica set; wait, or call the move off with: switchyard shard cancel-send"
	case change == v1.BucketChange_BUCKET_CHANGE_READ_ONLY && at.state == shard.Pinned:
		e.Code = shard.BucketIsPinned
	case change == v1.BucketChange_BUCKET_CHANGE_PIN && at.state == shard.ReadOnly:
		e.Code, e.Reason = shard.BucketInvalidUpdate, "a READONLY bucket cannot be pinned"
	default:
		return nil
	}
	return e
}

// change makes one change of buckets on a replica set.
func (s *Service) change(ctx context.Context, set string, buckets []shard.BucketID, change v1.BucketChange) error {
	for part := range slices.Chunk(buckets, changeList) {
		once := func() error {
			return s.router.OnMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.ChangeBuckets(ctx, &v1.ChangeBucketsRequest{Buckets: numbers(part), Change: change})
				return err
			})
		}
		err := once()
		// What is not by force may be done again.
		if change != v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE && change != v1.BucketChange_BUCKET_CHANGE_FORCE_DROP && errors.Is(err, shard.OutcomeUnknown) {
			err = insist(ctx, once)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CancelMoves implements v1.ClusterService.
func (s *Service) CancelMoves(ctx context.Context, req *v1.CancelMovesRequest) (*v1.CancelMovesResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.CancelMovesResponse, error) {
		buckets, err := list(req.GetBuckets(), s.router.BucketCount())
		if err != nil {
			return nil, err
		}
		p := s.look(ctx)
		resp := &v1.CancelMovesResponse{}
		bySet := map[string][]shard.BucketID{}
		for _, b := range buckets {
			if at, err := p.owner(b); err == nil && at.moving() {
				bySet[at.set] = append(bySet[at.set], b)
			}
		}
		for set, list := range bySet {
			err := s.router.OnMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.CancelSends(ctx, &v1.CancelSendsRequest{Buckets: numbers(list)})
				return err
			})
			if err != nil {
				return nil, err
			}
			resp.Cancelled += uint32(len(list))
		}
		return resp, nil
	})
}

// sending is a MoveBuckets under way.
type sending struct {
	s    *Service
	to   string
	from map[string]bool // sources

	mu       sync.Mutex
	total    int
	moved    int
	failed   []*v1.BucketFailure // not told yet
	first    error               // the first failure
	same     bool                // all failures have its code
	hopeless bool                // no other bucket can move
}

// MoveBuckets implements v1.ClusterService.
func (s *Service) MoveBuckets(req *v1.MoveBucketsRequest, stream grpc.ServerStreamingServer[v1.MoveBucketsResponse]) error {
	return userError(s.moveBuckets(stream.Context(), req, stream.Send))
}

func (s *Service) moveBuckets(ctx context.Context, req *v1.MoveBucketsRequest, tell func(*v1.MoveBucketsResponse) error) error {
	named, err := list(req.GetBuckets(), s.router.BucketCount())
	if err != nil {
		return err
	}
	if err := s.checkSet(req.GetReplicaSet()); err != nil {
		return err
	}
	m := &sending{s: s, to: req.GetReplicaSet(), from: map[string]bool{}, total: len(named), same: true}
	p := s.look(ctx)
	var buckets []shard.BucketID
	for _, b := range named {
		at, err := p.owner(b)
		if err == nil && at.set == m.to && !at.moving() {
			continue
		}
		if err == nil {
			m.from[at.set] = true
		}
		buckets = append(buckets, b)
	}
	already := len(named) - len(buckets)
	if len(buckets) == 0 {
		return &shard.Error{Code: shard.MoveToSelf, Bucket: named[0], ReplicaSet: m.to}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcome := make(chan error, 1)
	go func() { outcome <- m.run(ctx, buckets) }()
	tick := time.NewTicker(progressTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := tell(m.progress(already, m.moves(ctx))); err != nil {
				cancel()
				<-outcome
				return err
			}
			continue
		case err = <-outcome:
		}
		break
	}
	if err == nil {
		err = ctx.Err()
	}
	m.mu.Lock()
	if err == nil && m.moved == 0 && m.same {
		err = m.first
	}
	s.log.Info("buckets were moved", "to", m.to, "asked", m.total, "moved", m.moved, "already", already)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return tell(m.progress(already, nil))
}

// run sends the buckets, list by list.
func (m *sending) run(ctx context.Context, buckets []shard.BucketID) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sendLists)
	for part := range slices.Chunk(buckets, sendList) {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			m.mu.Lock()
			hopeless := m.hopeless
			m.mu.Unlock()
			if hopeless {
				failed := map[shard.BucketID]error{}
				for _, b := range part {
					failed[b] = m.first
				}
				m.note(part, failed)
				return nil
			}
			failed, err := m.sendList(ctx, part)
			if err != nil {
				return err
			}
			m.note(part, failed)
			return nil
		})
	}
	return g.Wait()
}

// sendList sends a list. What was cut short by the loss of a master is looked for, and sent again where it
// has not arrived.
func (m *sending) sendList(ctx context.Context, part []shard.BucketID) (map[shard.BucketID]error, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	failed, err := m.s.router.SendBuckets(ctx, part, m.to)
	if err != nil {
		return nil, err
	}
	for try := 0; try < sendTries && ctx.Err() == nil; try++ {
		var again []shard.BucketID
		for b, err := range failed {
			if passes(err) {
				again = append(again, b)
			}
		}
		if len(again) == 0 {
			break
		}
		select {
		case <-time.After(sendPause):
		case <-ctx.Done():
			return failed, nil
		}
		p := m.s.look(ctx)
		var rest []shard.BucketID
		for _, b := range again {
			if at, err := p.owner(b); err == nil && at.set == m.to && !at.moving() {
				delete(failed, b) // it has arrived
			} else {
				rest = append(rest, b)
			}
		}
		if len(rest) == 0 {
			break
		}
		more, err := m.s.router.SendBuckets(ctx, rest, m.to)
		if err != nil {
			return nil, err
		}
		for _, b := range rest {
			delete(failed, b)
			if more[b] != nil {
				failed[b] = more[b]
			}
		}
	}
	return failed, nil
}

// passes says that a move failed for a reason that is over soon, such as an election.
func passes(err error) bool {
	for _, code := range []shard.Code{shard.OutcomeUnknown, shard.NonMaster, shard.MissingMaster, shard.UnreachableMaster} {
		if errors.Is(err, code) {
			return true
		}
	}
	return errors.Is(err, context.DeadlineExceeded) // a step of the move took too long; this call has time
}

// note takes in what became of a list.
func (m *sending) note(part []shard.BucketID, failed map[shard.BucketID]error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range part {
		err := failed[b]
		if err == nil {
			m.moved++
			continue
		}
		var e, first *shard.Error
		if m.first == nil {
			m.first = err
		}
		m.same = m.same && errors.As(err, &e) && errors.As(m.first, &first) && e.Code == first.Code
		m.failed = append(m.failed, failure(b, err))
	}
	if m.moved == 0 && m.same && len(failed) == len(part) {
		m.hopeless = errors.Is(m.first, shard.ReplicaSetIsLocked) || errors.Is(m.first, shard.NoSuchReplicaSet)
	}
}

func (m *sending) progress(already int, moves []*v1.BucketMove) *v1.MoveBucketsResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &v1.MoveBucketsResponse{Total: uint32(m.total), Moved: uint32(m.moved), Already: uint32(already), Failed: m.failed, Moves: moves}
	m.failed = nil
	return resp
}

// moves asks the sources for what is under way.
func (m *sending) moves(ctx context.Context) (out []*v1.BucketMove) {
	ctx, cancel := context.WithTimeout(ctx, progressTime)
	defer cancel()
	for set := range m.from {
		// It is only for show.
		_ = m.s.router.OnMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
			info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			for _, move := range info.GetMoves() {
				if move.GetDestination() == m.to {
					out = append(out, move)
				}
			}
			return err
		})
	}
	return out
}
