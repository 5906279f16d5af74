package rebalancer

import (
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// Limits bound what is under way at once. Zero fields get the default.
type Limits struct {
	// MaxSending is how many buckets a replica set sends at once. Default 100. A sent bucket is
	// written and read all the time here, so the number is not bound to be 1; what costs is the
	// copying, and that is bounded by bytes. 100 is enough that empty buckets, which cost log entries
	// and no time, go in lists.
	MaxSending int
	// MaxReceiving is how many buckets a replica set receives at once. Default 100.
	MaxReceiving int
	// MaxSendingBytes is the size of all buckets that a replica set sends at once. Default 64 MiB. A
	// bucket that is larger goes alone.
	MaxSendingBytes int64
	// BusyShare is the share of the time, above 0 and up to 1, that moving a list of buckets may take
	// while the source serves calls: after each list there is a rest. Default 0.2. A source that
	// serves next to nothing does not rest.
	BusyShare float64
}

const (
	// busy is how many calls a second make a source one that serves calls.
	busy = 100
	// longestRest bounds a rest.
	longestRest = 5 * time.Second
)

// rest returns how long to rest after a list that took so long while so many calls were served.
func (l Limits) rest(took time.Duration, served uint64) time.Duration {
	if took <= 0 || float64(served) < busy*took.Seconds() || served < 2 {
		return 0
	}
	return min(time.Duration(float64(took)*(1-l.BusyShare)/l.BusyShare), longestRest)
}

func (l Limits) withDefaults() Limits {
	if l.MaxSending <= 0 {
		l.MaxSending = 100
	}
	if l.MaxReceiving <= 0 {
		l.MaxReceiving = 100
	}
	if l.MaxSendingBytes <= 0 {
		l.MaxSendingBytes = 64 << 20
	}
	if !(l.BusyShare > 0 && l.BusyShare <= 1) {
		l.BusyShare = 0.2
	}
	return l
}

// batch is a list of buckets that go from one set to another in one call.
type batch struct {
	route       *Route
	source      *load
	destination *load
	buckets     []shard.BucketID
	bytes       int64
}

// load is what is under way from or to one set.
type load struct {
	n     int
	bytes int64
}

// schedule hands out the batches of a plan within limits. It is for one goroutine.
type schedule struct {
	limits    Limits
	routes    []Route // with what is not under way yet
	sending   map[string]*load
	receiving map[string]*load
	waiting   int // buckets not under way yet
	underway  int
}

func newSchedule(limits Limits, routes []Route) *schedule {
	s := &schedule{limits: limits.withDefaults(), routes: routes, sending: map[string]*load{}, receiving: map[string]*load{}}
	for i := range routes {
		s.waiting += len(routes[i].Buckets)
		s.sending[routes[i].Source] = &load{}
		s.receiving[routes[i].Destination] = &load{}
	}
	return s
}

// next returns a batch that may go now, false when there is none. The set that sends the least goes first.
func (s *schedule) next() (batch, bool) {
	var best batch
	for i := range s.routes {
		r := &s.routes[i]
		from, to := s.sending[r.Source], s.receiving[r.Destination]
		if len(r.Buckets) == 0 || from.n >= s.limits.MaxSending || to.n >= s.limits.MaxReceiving {
			continue
		}
		if from.n > 0 && from.bytes+size(r.Buckets[0]) > s.limits.MaxSendingBytes {
			continue
		}
		if best.route == nil || from.n < best.source.n || from.n == best.source.n && to.n < best.destination.n {
			best = batch{route: r, source: from, destination: to}
		}
	}
	if best.route == nil {
		return batch{}, false
	}
	s.fill(&best)
	return best, true
}

// fill takes the route's next buckets into b: half of the limits at most, so that one batch is copied
// while another is handed over.
func (s *schedule) fill(b *batch) {
	r := b.route
	n := min(len(r.Buckets), s.limits.MaxSending-b.source.n, s.limits.MaxReceiving-b.destination.n,
		max(1, min(s.limits.MaxSending, s.limits.MaxReceiving)/2))
	room := s.limits.MaxSendingBytes - b.source.bytes
	most := max(1, s.limits.MaxSendingBytes/2)
	for len(b.buckets) < n {
		bytes := size(r.Buckets[len(b.buckets)])
		if len(b.buckets) > 0 && b.bytes+bytes > min(room, most) {
			break
		}
		b.buckets = append(b.buckets, r.Buckets[len(b.buckets)].ID)
		b.bytes += bytes
	}
	n = len(b.buckets)
	r.Buckets = r.Buckets[n:]
	s.waiting -= n
	s.underway += n
	b.source.n += n
	b.source.bytes += b.bytes
	b.destination.n += n
	b.destination.bytes += b.bytes
}

// done gives back what b took up. When it failed, the rest of its route is given up.
func (s *schedule) done(b batch, failed bool) {
	n := len(b.buckets)
	s.underway -= n
	b.source.n -= n
	b.source.bytes -= b.bytes
	b.destination.n -= n
	b.destination.bytes -= b.bytes
	if failed {
		s.waiting -= len(b.route.Buckets)
		b.route.Buckets = nil
	}
}

func size(b Bucket) int64 { return max(b.Bytes, 0) }
