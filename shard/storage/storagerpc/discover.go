package storagerpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// lookAgain is how often it is looked at a storage that cannot tell its changes.
const lookAgain = 20 * time.Millisecond

// Discover implements StorageService.
func (s *Server) Discover(req *v1.DiscoverRequest, stream grpc.ServerStreamingServer[v1.DiscoverResponse]) error {
	ctx, end, err := s.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	storage, leave, err := s.join(ctx)
	if err != nil {
		return statusOf(err)
	}
	defer leave()
	return statusOf(s.watch(ctx, storage, req.GetOnce(), s.drained, stream.Send))
}

// place is where a bucket is, as a watcher has told it.
type place struct {
	state shard.State
	peer  string
}

// Watch calls send with the state of this member, and then with every change of it, until
// ctx ends or send returns an error: who is master at once, the buckets while this member is
// master, and something every heartbeat even when nothing changes. With once it calls send
// once. The message belongs to send.
func (s *Server) Watch(ctx context.Context, once bool, send func(*v1.DiscoverResponse) error) error {
	return s.watch(ctx, s.storage, once, nil, send)
}

func (s *Server) watch(ctx context.Context, seen Storage, once bool, stop <-chan struct{}, send func(*v1.DiscoverResponse) error) error {
	w := watcher{s: s, storage: seen}
	beat := time.NewTicker(s.opts.Heartbeat)
	defer beat.Stop()
	var again <-chan time.Time
	teller, tells := s.storage.(interface{ Changed() <-chan struct{} })
	master := make(chan struct{}, 1)
	if l, ok := s.storage.(leader); ok && tells {
		defer l.WatchMaster(func(engine.Leadership) {
			select {
			case master <- struct{}{}:
			default:
			}
		})()
	} else {
		t := time.NewTicker(lookAgain)
		defer t.Stop()
		again = t.C
	}
	counted, _ := seen.(checker)
	for due := true; ; {
		if counted != nil {
			if err := counted.Check(); err != nil {
				return err
			}
		}
		var changed <-chan struct{}
		if tells {
			changed = teller.Changed() // before the look, so that nothing is missed
		}
		resp, news := w.look()
		if news || due {
			if err := send(resp); err != nil {
				return err
			}
		}
		if once {
			return nil
		}
		due = false
		select {
		case <-changed:
		case <-master:
		case <-again:
		case <-beat.C:
			due = true
		case <-stop:
			return s.errStopping()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watcher finds out what has changed since the last look.
type watcher struct {
	s       *Server
	storage Storage // as the client knows it
	master  string
	term    uint64
	facts   uint64
	told    []place // by bucket; nil when this member was not master at the last look
}

// look makes a message of what is new, and reports whether anything is.
func (w *watcher) look() (*v1.DiscoverResponse, bool) {
	s := w.s
	master, term := s.role()
	n := w.storage.BucketCount()
	resp := &v1.DiscoverResponse{
		Member: s.opts.Member, Master: master, Term: term,
		ReplicaSet: s.storage.ReplicaSet(), ClusterId: s.clusterID(), BucketCount: n,
	}
	news := master != w.master || term != w.term
	if term != w.term {
		w.told = nil // whoever listens begins anew with a new master
	}
	w.master, w.term = master, term
	if master != s.opts.Member || master == "" {
		w.told = nil
		return resp, news
	}
	if f, ok := s.storage.(interface{ FactsSum() uint64 }); ok {
		resp.Facts = f.FactsSum()
		news = news || resp.GetFacts() != w.facts
		w.facts = resp.GetFacts()
	}
	if w.told == nil {
		w.told = make([]place, n+1)
		resp.Full = true
		news = true
	}
	for b := shard.BucketID(1); b <= shard.BucketID(n); b++ {
		state, peer := w.storage.BucketState(b)
		now := place{state, peer}
		if now == w.told[b] {
			continue
		}
		w.told[b] = now
		news = true
		if k := len(resp.GetRanges()); k > 0 {
			last := resp.GetRanges()[k-1]
			if last.GetLast() == uint32(b)-1 && last.GetState() == uint32(state) && last.GetPeer() == peer {
				last.Last++
				continue
			}
		}
		resp.Ranges = append(resp.Ranges, &v1.BucketRange{First: uint32(b), Last: uint32(b), State: uint32(state), Peer: peer})
	}
	return resp, news
}
