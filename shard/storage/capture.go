package storage

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/shard"
)

// maxCaptureBytes bounds what is noted of a bucket between two rounds of its copying.
// A bucket that is written faster than that cannot be moved at the moment.
const maxCaptureBytes = 64 << 20

// capture notes which keys of a bucket are written while it is copied. Keys are those
// of the engine without the bucket.
type capture struct {
	transfer atomic.Uint64

	mu     sync.Mutex
	keys   map[string]struct{}
	ranges [][2]string
	bytes  int
	// lost says that it does not have everything: it grew too large, or the rows were
	// replaced by those of another member.
	lost bool
}

// dirty is what was written in a round.
type dirty struct {
	keys   []string
	ranges [][2]string
}

func (c *capture) note(space Space, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	k := string(append([]byte{byte(space)}, key...))
	if _, ok := c.keys[k]; ok {
		return
	}
	c.keys[k] = struct{}{}
	c.grow(len(k))
}

// noteRange takes engine keys with their bucket.
func (c *capture) noteRange(from, to []byte) {
	const bucketLen = prefixLen - 1
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return
	}
	end := string(to[bucketLen:])
	if string(to[:bucketLen]) != string(from[:bucketLen]) {
		end = "" // the end of the bucket
	}
	c.ranges = append(c.ranges, [2]string{string(from[bucketLen:]), end})
	c.grow(len(from) + len(to))
}

func (c *capture) grow(n int) {
	if c.bytes += n + 48; c.bytes > maxCaptureBytes {
		c.lost, c.keys, c.ranges = true, nil, nil
	}
}

// take returns what was noted since the last time, in order, and false when that is not all.
func (c *capture) take() (d dirty, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return d, false
	}
	d = dirty{slices.Sorted(maps.Keys(c.keys)), c.ranges}
	c.keys, c.ranges, c.bytes = map[string]struct{}{}, nil, 0
	return d, true
}

// captures are those of all buckets that are being sent. A capture is asked for before the
// send is logged, and begins at its place in the log.
type captures struct {
	n      atomic.Int32 // live ones
	mu     sync.Mutex
	wanted map[shard.BucketID]*capture
	live   map[shard.BucketID]*capture
}

func (c *captures) want(buckets []shard.BucketID) map[shard.BucketID]*capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted == nil {
		c.wanted, c.live = map[shard.BucketID]*capture{}, map[shard.BucketID]*capture{}
	}
	out := make(map[shard.BucketID]*capture, len(buckets))
	for _, b := range buckets {
		if c.wanted[b] == nil && c.live[b] == nil {
			out[b] = &capture{keys: map[string]struct{}{}}
			c.wanted[b] = out[b]
		}
	}
	return out
}

// begin is called where a send is applied.
func (c *captures) begin(b shard.BucketID, transfer uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.wanted[b]; w != nil {
		w.transfer.Store(transfer)
		delete(c.wanted, b)
		c.live[b] = w
		c.n.Store(int32(len(c.live)))
	}
}

// end forgets captures that want made.
func (c *captures) end(made map[shard.BucketID]*capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, m := range made {
		if c.wanted[b] == m {
			delete(c.wanted, b)
		}
		if c.live[b] == m {
			delete(c.live, b)
		}
	}
	c.n.Store(int32(len(c.live)))
}

// of returns the capture of a bucket, nil for none. While nothing moves it costs a load.
func (c *captures) of(b shard.BucketID) *capture {
	if c.n.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[b]
}

// works says whether a transfer of a bucket is looked after here.
func (c *captures) works(b shard.BucketID, transfer uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[b] != nil && c.live[b].transfer.Load() == transfer
}

// lose says that the rows were replaced.
func (c *captures) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, all := range []map[shard.BucketID]*capture{c.wanted, c.live} {
		for _, one := range all {
			one.mu.Lock()
			one.lost, one.keys, one.ranges = true, nil, nil
			one.mu.Unlock()
		}
	}
}
