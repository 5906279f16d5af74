package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

const (
	// checkReads bounds the members that are read at once.
	checkReads = 4
	// checkList is how many buckets are asked for in one request.
	checkList = 500
	// What differs is compared again so often, with a pause that grows to the longest.
	compareTries     = 40
	comparePause     = 5 * time.Millisecond
	longestCompare   = 250 * time.Millisecond
	namedDifferences = 3
)

// digest is what one member has of a bucket.
type digest struct {
	state    shard.State
	peer     string
	transfer uint64
	rows     uint64
	bytes    uint64
	sum      uint64
}

func (d digest) sameRows(o digest) bool {
	return d.rows == o.rows && d.bytes == o.bytes && d.sum == o.sum
}

// rows compares the rows of each replica set's members.
func (c *check) rows(ctx context.Context, info router.Info, p *places) error {
	owned := map[string][]shard.BucketID{}
	for _, b := range c.buckets {
		for _, o := range p.owners(b) {
			owned[o.set] = append(owned[o.set], b)
		}
	}
	var jobs []*comparison
	for i := range info.ReplicaSets {
		set := &info.ReplicaSets[i]
		if set.Master == "" || len(owned[set.Name]) == 0 {
			continue
		}
		j := &comparison{c: c, set: set.Name, master: set.Master, buckets: owned[set.Name]}
		for k := range set.Members {
			if m := &set.Members[k]; m.Err == nil && m.ID != set.Master && (m.State == engine.Replica || m.State == engine.Master) {
				j.replicas = append(j.replicas, m.ID)
			}
		}
		c.toCheck.Add(uint64(len(j.buckets) * (1 + len(j.replicas))))
		jobs = append(jobs, j)
	}
	if err := c.say("reading all rows"); err != nil {
		return err
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	limit := make(chan struct{}, checkReads)
	for _, j := range jobs {
		wg.Go(func() { j.readAll(ctx, limit) })
	}
	go func() { wg.Wait(); close(done) }()
	tick := time.NewTicker(progressTime)
	defer tick.Stop()
	var failed error
	for open := true; open; {
		select {
		case <-tick.C:
			if failed == nil {
				failed = c.say("") // the caller is gone when it fails; so is ctx
			}
		case <-done:
			open = false
		}
	}
	if failed != nil {
		return failed
	}
	for _, j := range jobs {
		for _, d := range j.of[j.master] {
			c.sum.Rows += d.rows
			c.sum.Bytes += d.bytes
		}
		for _, id := range j.replicas {
			if err := c.report(j.compare(ctx, id)...); err != nil {
				return err
			}
		}
		if err := c.report(j.unread...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// comparison is that of one replica set's members.
type comparison struct {
	c        *check
	set      string
	master   string
	replicas []string
	buckets  []shard.BucketID

	mu     sync.Mutex
	of     map[string]map[shard.BucketID]digest // by member
	unread []*v1.StoreFinding
}

// readAll reads all members once.
func (j *comparison) readAll(ctx context.Context, limit chan struct{}) {
	j.of = map[string]map[shard.BucketID]digest{}
	g := errgroup.Group{}
	for _, id := range append([]string{j.master}, j.replicas...) {
		g.Go(func() error {
			limit <- struct{}{}
			defer func() { <-limit }()
			digests, _, err := j.c.s.digests(ctx, j.set, id, j.buckets, func() { j.c.checked.Add(1) })
			j.mu.Lock()
			defer j.mu.Unlock()
			j.of[id] = digests
			if err != nil {
				j.unread = append(j.unread, &v1.StoreFinding{
					Severity: severityError, Kind: kindNotChecked, ReplicaSet: j.set, Member: id, Text: "its rows could not be read: " + err.Error(),
					Repair: "look at the log of its node, and check again",
				})
			}
			return nil
		})
	}
	_ = g.Wait() // none of them returns an error
}

// digests reads buckets on a member: what it has of each, and the last command that it had applied before it
// began.
func (s *Service) digests(ctx context.Context, set, id string, buckets []shard.BucketID, count func()) (out map[shard.BucketID]digest, applied uint64, err error) {
	out = make(map[shard.BucketID]digest, len(buckets))
	first := true
	for part := range slices.Chunk(buckets, checkList) {
		var at uint64
		err = s.router.OnMember(ctx, set, id, func(ctx context.Context, c v1.StorageServiceClient) error {
			stream, err := c.CheckBuckets(ctx, &v1.CheckBucketsRequest{Buckets: numbers(part)})
			if err != nil {
				return err
			}
			return each(stream, func(resp *v1.CheckBucketsResponse) error {
				if resp.GetApplied() > 0 {
					at = resp.GetApplied()
				}
				for _, b := range resp.GetBuckets() {
					out[shard.BucketID(b.GetBucket())] = digest{
						state: shard.State(b.GetState()), peer: b.GetPeer(), transfer: b.GetTransfer(),
						rows: b.GetRows(), bytes: b.GetBytes(), sum: b.GetSum(),
					}
					count()
				}
				return nil
			})
		})
		if err != nil {
			return nil, 0, err
		}
		if first || at < applied {
			applied, first = at, false
		}
	}
	return out, applied, nil
}

// compare compares a replica with its master. What differs may have been written between the two readings:
// it is read again, on the master, on the replica once that has applied all that the master had, and on
// the master. Where the two readings of the master are equal, and the replica's is another, they differ.
func (j *comparison) compare(ctx context.Context, id string) []*v1.StoreFinding {
	if j.of[j.master] == nil || j.of[id] == nil {
		return nil // it is told that they could not be read
	}
	open := differing(j.buckets, j.of[j.master], j.of[id])
	master, replica := map[shard.BucketID]digest{}, map[shard.BucketID]digest{}
	var wrong []shard.BucketID
	var last error
	pause := comparePause
	nothing := func() {}
	for try := 0; len(open) > 0 && try < compareTries && ctx.Err() == nil; try++ {
		if try > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, longestCompare)
		}
		before, _, err := j.c.s.digests(ctx, j.set, j.master, open, nothing)
		var info *v1.StorageInfoResponse
		if err == nil {
			info, err = j.c.s.info(ctx, j.set, j.master)
		}
		var theirs map[shard.BucketID]digest
		var applied uint64
		if err == nil {
			theirs, applied, err = j.c.s.digests(ctx, j.set, id, open, nothing)
		}
		var after map[shard.BucketID]digest
		if err == nil {
			after, _, err = j.c.s.digests(ctx, j.set, j.master, open, nothing)
		}
		if last = err; err != nil {
			continue
		}
		var still []shard.BucketID
		for _, b := range open {
			switch ours := before[b]; {
			case theirs[b] == ours && ours == after[b]:
			case ours == after[b] && applied >= info.GetApplied():
				wrong = append(wrong, b)
				master[b], replica[b] = ours, theirs[b]
			default:
				still = append(still, b)
			}
		}
		open = still
	}
	return j.judge(id, wrong, open, master, replica, last)
}

func differing(buckets []shard.BucketID, a, b map[shard.BucketID]digest) (out []shard.BucketID) {
	for _, bucket := range buckets {
		if a[bucket] != b[bucket] {
			out = append(out, bucket)
		}
	}
	return out
}

// judge makes findings of what a replica has that is wrong, and of what could not be compared.
func (j *comparison) judge(id string, wrong, open []shard.BucketID, master, replica map[shard.BucketID]digest, last error) (found []*v1.StoreFinding) {
	repair := fmt.Sprintf("keep the data folder of node %s for a closer look, empty it, and let the member join anew: switchyard shard remove-member %s %s, start the node with an empty folder, switchyard shard add-member %s %s",
		id, j.set, id, j.set, id)
	byKind := map[string][]shard.BucketID{}
	for _, b := range wrong {
		kind := kindStateDiffer
		if !master[b].sameRows(replica[b]) {
			kind = kindRowsDiffer
		}
		byKind[kind] = append(byKind[kind], b)
	}
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		f := &v1.StoreFinding{Severity: severityError, Kind: kind, ReplicaSet: j.set, Member: id, Buckets: spansOf(byKind[kind]), Repair: repair}
		for i, b := range byKind[kind] {
			m, r := master[b], replica[b]
			switch {
			case i == namedDifferences:
				f.Text += " …"
			case i > namedDifferences:
			case kind == kindRowsDiffer:
				f.Text += fmt.Sprintf("bucket %d has %d rows with checksum %016x on the master %s, and %d rows with %016x here; ", b, m.rows, m.sum, j.master, r.rows, r.sum)
			default:
				f.Text += fmt.Sprintf("bucket %d is %s on the master %s, and %s here; ", b, m.state, j.master, r.state)
			}
		}
		found = append(found, f)
	}
	if len(open) > 0 {
		f := &v1.StoreFinding{
			Severity: severityWarning, Kind: kindNotChecked, ReplicaSet: j.set, Member: id, Buckets: spansOf(open),
			Text: "they are written all the time, or the replica is behind, so that they could not be compared", Repair: "check again, when there is less to do",
		}
		if last != nil {
			f.Severity, f.Text, f.Repair = severityError, "they could not be read: "+last.Error(), "look at the nodes, and check again"
		}
		found = append(found, f)
	}
	return found
}
