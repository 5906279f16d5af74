package matching

import "math"

// rates are what a queue's configuration says about fairness keys and limits, for one
// partition.
type rates struct {
	fairness
	share   float64 // the partition's part of the limits
	version uint64
}

// fairness is what a queue's configuration says about fairness keys and limits.
// Rates are tasks per second of the whole queue; nil is none.
type fairness struct {
	limit    *float64 // of the queue
	keyLimit *float64 // of each key, times its weight
	keys     map[string]keySetting
}

// keySetting is what holds for one key instead. weight 0: what its tasks say.
type keySetting struct {
	weight float64
	limit  *float64
}

// weight is the weight of a task of a key that says w.
func (r *rates) weight(key string, w float32) float64 {
	if len(r.keys) > 0 {
		return r.weightOf([]byte(key), w)
	}
	return max(float64(w), minWeight)
}

// ofKey is the rate of a key, if it is limited.
func (r *rates) ofKey(key string, weight float64) (float64, bool) {
	if len(r.keys) > 0 {
		if s := r.keys[key]; s.limit != nil {
			return *s.limit * r.share, true
		}
	}
	if r.keyLimit != nil {
		return *r.keyLimit * weight * r.share, true
	}
	return 0, false
}

// bucketOf is the bucket of a key, nil if it is not limited.
func (q *readyQueue) bucketOf(k *keyQueue) *bucket {
	if k.rated == q.rates.version {
		return k.bucket
	}
	k.rated = q.rates.version
	rate, limited := q.rates.ofKey(k.key, k.weight)
	if !limited {
		k.bucket = nil
		return nil
	}
	if k.bucket = q.buckets[k.key]; k.bucket == nil {
		if q.buckets == nil {
			q.buckets = map[string]*bucket{}
		}
		k.bucket = newBucket(rate, q.since, q.now)
		q.buckets[k.key] = k.bucket
	}
	k.bucket.setRate(rate, q.now)
	return k.bucket
}

// setRates takes over what the queue's configuration says, and the partition's part
// of it.
func (q *readyQueue) setRates(f fairness, share float64) {
	q.rates.fairness, q.rates.share = f, share
	q.rates.version++
	switch {
	case f.limit == nil:
		q.limit = nil
	case q.limit == nil:
		q.limit = newBucket(*f.limit*share, q.now, q.now)
	default:
		q.limit.setRate(*f.limit*share, q.now)
	}
	for len(q.blocked) > 0 { // to find out anew
		q.unblock(q.blocked[0])
	}
	if f.keyLimit == nil && len(f.keys) == 0 {
		q.buckets = nil
	}
	for k := range q.holed {
		q.hunger(k)
	}
}

// holeRoom is the most tasks that are held of a key that has left some to the store.
const holeRoom = 1024

// room is how many fresh tasks of a key are held: all of one that has no limit, and of
// one that has about what it can use within two seconds, so that tasks that may not go
// don't keep those out that may.
func (q *readyQueue) room(k *keyQueue) int {
	b := q.bucketOf(k)
	if b == nil {
		return math.MaxInt
	}
	return max(4, min(int(2*b.rate), holeRoom))
}

// weightOf is weight of a key that is not a string yet.
func (r *rates) weightOf(key []byte, w float32) float64 {
	if len(r.keys) > 0 {
		if s := r.keys[string(key)]; s.weight > 0 {
			return s.weight
		}
	}
	return max(float64(w), minWeight)
}
