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

// begin chooses the partition of a poll and how long it is to wait there, given the
// backlog of each and how long it may wait.
func (r *reader) begin(levels []byte, wait time.Duration) (int32, time.Duration) {
	backlog := func(p int32) int64 { return scaling.Backlog(levels[p]) }
	p, byBacklog := int32(0), false
	if r.policy.weighted {
		p, byBacklog = routing.ByBacklog(int32(len(levels)), backlog, len(levels), 1, r.random.Next())
	}
	if !byBacklog {
		p = routing.Fewest(r.polls, routing.Uniform(int32(len(r.polls)), r.random.Next()))
	} else if r.policy.short {
		wait = routing.PollWait(backlog(p), wait)
	}
	r.polls[p]++
	return p, wait
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
