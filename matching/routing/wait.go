package routing

import "time"

// EmptyWait is how long a poll waits at most at a partition without backlog, while
// other partitions have some.
const EmptyWait = 5 * time.Millisecond

// PollWait is how long a poll waits at a partition that ByBacklog chose, whose backlog is
// given. Now and then it chooses a partition without backlog, in case there is
// something after all; polls that waited there for their whole time would pile up, and
// the backlog elsewhere would be worked off by what is left.
func PollWait(backlog int64, wait time.Duration) time.Duration {
	if backlog > 0 {
		return wait
	}
	return min(wait, EmptyWait)
}
