package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// settle waits until a cluster without faults and load has come to rest: every bucket has one
// owner and no other replica set has anything of it, and the members of each replica set have the
// same rows. When ctx ends before, the error says what is not so.
func (c *cluster) settle(ctx context.Context) error {
	for {
		why := c.unsettled(ctx)
		if why == "" {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("the store has not come to rest: %s", why)
		}
	}
}

// unsettled says what keeps the cluster from being at rest, or "".
func (c *cluster) unsettled(ctx context.Context) string {
	owners := map[shard.BucketID][]string{}
	for _, set := range c.names {
		var first []*v1.CheckBucketsResponse_Bucket
		var applied uint64
		masters := 0
		for i, n := range c.members(set) {
			p := n.process()
			if p == nil {
				return n.id + " is down"
			}
			st := p.store.Status()
			if st.Err != nil {
				return fmt.Sprintf("%s has failed: %v", n.id, st.Err)
			}
			if st.State == engine.Master {
				masters++
				for _, m := range st.Members {
					if len(st.Members) != c.opts.members || !m.Voter {
						return fmt.Sprintf("the members of %s are %+v", set, st.Members)
					}
				}
			}
			rows, err := check(ctx, p)
			if err != nil {
				return fmt.Sprintf("%s: %v", n.id, err)
			}
			if i == 0 {
				first, applied = rows, st.Applied
				continue
			}
			if st.Applied != applied {
				return fmt.Sprintf("%s has applied %d, another member %d", n.id, st.Applied, applied)
			}
			for k, r := range rows {
				if r.String() != first[k].String() {
					return fmt.Sprintf("%s differs from its replica set: %v, not %v", n.id, r, first[k])
				}
			}
		}
		if masters != 1 {
			return fmt.Sprintf("%s has %d masters", set, masters)
		}
		for _, r := range first {
			switch state := shard.State(r.GetState()); {
			case state == shard.Active:
				owners[shard.BucketID(r.GetBucket())] = append(owners[shard.BucketID(r.GetBucket())], set)
				if r.GetPeer() != "" {
					return fmt.Sprintf("bucket %d of %s is on its way to %s", r.GetBucket(), set, r.GetPeer())
				}
			case state != shard.Absent:
				return fmt.Sprintf("bucket %d of %s is %v, peer %q, transfer %d", r.GetBucket(), set, state, r.GetPeer(), r.GetTransfer())
			case r.GetRows() != 0:
				return fmt.Sprintf("bucket %d is not on %s and has %d rows there", r.GetBucket(), set, r.GetRows())
			}
		}
	}
	for b := shard.BucketID(1); b <= buckets; b++ {
		if len(owners[b]) != 1 {
			return fmt.Sprintf("bucket %d is owned by %d replica sets: %s", b, len(owners[b]), strings.Join(owners[b], ", "))
		}
	}
	for _, r := range c.clients {
		info := r.Info(ctx)
		if info.Level != router.Green {
			return fmt.Sprintf("an alert: %+v", info.Alerts[0])
		}
	}
	return ""
}

// check sums up the rows of every bucket on one member.
func check(ctx context.Context, p *process) (rows []*v1.CheckBucketsResponse_Bucket, err error) {
	all := make([]shard.BucketID, buckets)
	for i := range all {
		all[i] = shard.BucketID(i + 1)
	}
	_, err = p.store.CheckBuckets(ctx, all, func(r *v1.CheckBucketsResponse_Bucket) error {
		rows = append(rows, r)
		return nil
	})
	return rows, err
}
