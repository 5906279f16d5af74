package routing

import "time"

// How long a poll waits at one partition while the backlogs of a queue are known. What is
// known may be out of date, so a poll does not stay at one place for long: after such a turn
// the client chooses again, until the poll's whole wait is over. Turns double, so that polls
// of a queue that hands nothing out, because it is paused say, cost little.
const (
	// EmptyWait is the first turn at a partition without backlog, while others have
	// some. Polls that waited there for long would pile up, and the backlog elsewhere
	// would be worked off by what is left.
	EmptyWait = 5 * time.Millisecond
	// BacklogWait is the first turn at a partition with backlog, which has a task at once
	// unless it was just emptied.
	BacklogWait = 50 * time.Millisecond
	// ChooseAgain is the longest turn, and every turn while no backlog is known anywhere.
	ChooseAgain = 5 * time.Second
)

// PollTurn is how long a poll waits at a partition that was chosen by weight and whose
// backlog is given: the turn'th time that it waits at a partition with backlog, or at one
// without, from 0 on; left is what remains of its whole wait.
func PollTurn(backlog int64, turn int, left time.Duration) time.Duration {
	first := EmptyWait
	if backlog > 0 {
		first = BacklogWait
	}
	return min(left, first<<min(turn, 12), ChooseAgain)
}
