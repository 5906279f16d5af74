package server

import (
	"context"
	"time"

	"github.com/switchyard-dev/switchyard/membership"
)

// tellTime bounds how long it may take to tell the others.
const tellTime = 5 * time.Second

// doubling is the bucket_count that this node's store is doubling, 0 when it is not.
func (n *member) doubling() uint32 {
	if n.storage == nil {
		return 0
	}
	if p := n.storage.SplitProgress(); p.Splitting() {
		return p.BucketCount
	}
	return 0
}

// tellDoubling tells the other nodes when this one's store begins and ends to double its
// bucket_count, until ctx ends: nodes of both counts can be in the cluster meanwhile.
func (n *member) tellDoubling(ctx context.Context) {
	for {
		changed := n.storage.Changed()
		if now := n.doubling(); now != n.members.Self().Doubling {
			try, cancel := context.WithTimeout(ctx, tellTime)
			err := n.members.Update(try, func(self *membership.Node) { self.Doubling = now })
			cancel()
			if err != nil && ctx.Err() == nil {
				n.logger.Warn("the other nodes may not know whether bucket_count is being doubled", "err", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
