package matching

import "time"

type stat uint8

const (
	statAdded stat = iota
	statDispatched
	statSyncMatched
	statCompleted
	statFailed
	statDead
	statExpired
	statLeaseExpired
	numStats
)

const (
	statBucket  = int64(5 * time.Second)
	statBuckets = 6
)

// stats counts events: since the start for metrics, and over the last 30 s, in
// buckets of 5 s, for rates.
type stats struct {
	started int64
	total   [numStats]int64
	sent    [numStats]int64 // what metrics were told
	buckets [statBuckets][numStats]int64
	levels  [statBuckets][maxLevel + 1][numLevelStats]int64
	current int64 // number of the newest bucket
	slot    int   // and its place
	ends    int64 // when it is over
}

// numLevelStats: the first of the stats are also kept for each priority.
const numLevelStats = statSyncMatched + 1

func (s *stats) init(now int64) {
	s.started = now
	s.current = now / statBucket
	s.place()
}

func (s *stats) count(now int64, what stat, n int) {
	if n == 0 {
		return
	}
	s.turn(now)
	s.total[what] += int64(n)
	s.buckets[s.slot][what] += int64(n)
}

// countLevel counts an event that count counts too for its priority.
func (s *stats) countLevel(now int64, level uint8, what stat, n int) {
	s.turn(now)
	s.levels[s.slot][level][what] += int64(n)
}

func (s *stats) place() {
	s.slot = int(s.current % statBuckets)
	s.ends = (s.current + 1) * statBucket
}

// turn clears the buckets between the last event and now.
func (s *stats) turn(now int64) {
	if now < s.ends {
		return
	}
	for n := now / statBucket; s.current < n; {
		if n-s.current > statBuckets {
			s.current = n - statBuckets
		}
		s.current++
		s.place()
		s.buckets[s.slot] = [numStats]int64{}
		s.levels[s.slot] = [maxLevel + 1][numLevelStats]int64{}
	}
}

// rate is events per second over the last 30 s, or since the start.
func (s *stats) rate(now int64, what stat) float64 {
	s.turn(now)
	var n int64
	for i := range s.buckets {
		n += s.buckets[i][what]
	}
	return float64(n) / s.seconds(now)
}

// levelRates are the rates of one priority.
func (s *stats) levelRates(now int64, level uint8) (rates [numLevelStats]float64) {
	s.turn(now)
	for i := range s.levels {
		for what, n := range s.levels[i][level] {
			rates[what] += float64(n)
		}
	}
	for what := range rates {
		rates[what] /= s.seconds(now)
	}
	return rates
}

// seconds is how long the rates look back. The newest bucket is not full yet.
func (s *stats) seconds(now int64) float64 {
	window := int64(statBuckets-1)*statBucket + now%statBucket
	window = max(min(window, now-s.started), int64(time.Second))
	return float64(window) / 1e9
}

// share is the part of b's events over the last 30 s that a's are.
func (s *stats) share(now int64, a, b stat) float64 {
	if d := s.rate(now, b); d > 0 {
		return min(s.rate(now, a)/d, 1)
	}
	return 0
}

// pollerHistory remembers who polled.
type pollerHistory struct {
	limit int
	by    map[string]*pollerRecord
}

type pollerRecord struct {
	last    int64
	waiting int
}

func (h *pollerHistory) init(limit int) {
	h.limit = limit
	h.by = map[string]*pollerRecord{}
}

func (h *pollerHistory) began(identity string, now int64) {
	r := h.by[identity]
	if r == nil {
		if len(h.by) >= h.limit {
			h.prune(now)
			if len(h.by) >= h.limit {
				return
			}
		}
		r = &pollerRecord{}
		h.by[identity] = r
	}
	r.last = now
	r.waiting++
}

func (h *pollerHistory) ended(identity string, now int64) {
	if r := h.by[identity]; r != nil && r.waiting > 0 {
		r.last = now
		r.waiting--
	}
}

func (h *pollerHistory) prune(now int64) {
	for id, r := range h.by {
		if r.waiting == 0 && now-r.last > pollerTTL {
			delete(h.by, id)
		}
	}
}
