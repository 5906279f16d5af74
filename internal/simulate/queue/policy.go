package queue

import (
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/matching/scaling"
)

// Policy is a way to choose the partitions of polls.
type Policy struct {
	Name, About string
	weighted    bool
	short       bool
}

// Policies of polling.
func Policies() []Policy {
	return []Policy{
		{Name: "fewest", About: "the partition with the fewest polls of this client, whatever the backlogs are"},
		{Name: "weighted_long", About: "at random by backlog; a poll at a partition without backlog waits like any other", weighted: true},
		{Name: "weighted", About: "at random by backlog; a poll at a partition without backlog hardly waits", weighted: true, short: true},
	}
}

// reader chooses the partitions of one client's polls.
type reader struct {
	policy Policy
	random *routing.Sequence
	polls  []int32
}

// wait is the whole wait of one poll, which it spends in turns at partitions.
type wait struct {
	left            time.Duration
	empty, nonEmpty int // turns so far
	wasEmpty        bool
}

// begin chooses the partition of a poll's next turn and how long that is, given the
// backlog of each.
func (r *reader) begin(levels []byte, w *wait) (int32, time.Duration) {
	if r.policy.weighted {
		backlogs := make([]int64, len(levels))
		for p, level := range levels {
			backlogs[p] = scaling.Backlog(level)
		}
		if weights, bare, ok := routing.PollWeights(int32(len(levels)), backlogs, 1); ok {
			if w.wasEmpty && r.policy.short {
				weights = bare
			}
			p := weights.Choose(r.random.Next())
			r.polls[p]++
			if !r.policy.short {
				return p, w.left
			}
			turn := &w.empty
			if w.wasEmpty = backlogs[p] == 0; !w.wasEmpty {
				turn = &w.nonEmpty
			}
			*turn++
			return p, routing.PollTurn(backlogs[p], *turn-1, w.left)
		}
	}
	p := routing.Fewest(r.polls, routing.Uniform(int32(len(r.polls)), r.random.Next()))
	r.polls[p]++
	if r.policy.short {
		return p, min(w.left, routing.ChooseAgain)
	}
	return p, w.left
}

func (r *reader) end(p int32) { r.polls[p]-- }

// known are the names that are policies, of all when there are none.
func known(of []string) (names []string) {
	var all []string
	for _, p := range Policies() {
		all = append(all, p.Name)
	}
	if len(of) == 0 {
		return all
	}
	for _, n := range of {
		if slices.Contains(all, n) {
			names = append(names, n)
		}
	}
	return names
}
