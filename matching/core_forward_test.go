package matching

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// newTree is a simulation without losses, in which tests deliver every message.
func newTree(t *testing.T, numbers ...int32) *treeSim { return newTreeSim(t, 1, numbers...) }

// put adds one task to a partition and makes it durable.
func (n *treeNode) put() taskID {
	id, a := n.add1()
	n.quiet()
	require.True(n.t, answered(&a.call))
	return id
}

// add1 adds one task to a partition.
func (n *treeNode) add1() (taskID, *addCall) {
	n.seq++
	id := taskID{15: byte(n.seq), 14: byte(n.seq >> 8), 13: 1}
	n.tasks[id] = &simTask{id: id, born: n.now, leases: map[uint64]int64{}}
	b := body{id: id, addedAt: n.now, kind: "k"}
	a := &addCall{items: []addItem{{id: id, addedAt: n.now, body: b.append(nil)}}}
	a.init()
	n.core.advance(n.now, n.now)
	n.core.add(a)
	n.step()
	return id, a
}

// ask is a poll for one task that a test watches.
func (n *treeNode) ask(wait time.Duration) *pollCall { return n.askFor(1, wait) }

func (n *treeNode) askFor(most int, wait time.Duration) *pollCall {
	p := &pollCall{max: most, identity: "w", noWait: wait == 0}
	p.until = n.now + int64(wait)
	p.init()
	n.core.advance(n.now, n.now)
	n.core.fwd.polled(p, n.now)
	n.core.poll(p)
	n.step()
	return p
}

// quiet carries out the partition's writes and reads.
func (n *treeNode) quiet() {
	for len(n.flying)+len(n.reads) > 0 || n.core.held() {
		n.land()
		n.read()
		if n.core.held() { // nobody comes in time
			n.pass(time.Duration(holdTime))
		}
	}
}

// got is what a poll was answered with; nil while it waits.
func (n *treeNode) got(p *pollCall) *v1.PollTasksResponse {
	n.quiet()
	if !answered(&p.call) {
		return nil
	}
	return n.response(p)
}

func taskIDs(r *v1.PollTasksResponse) (ids []string) {
	for _, t := range r.GetTasks() {
		ids = append(ids, t.GetId())
	}
	return ids
}

// deliverAll delivers messages until none is left.
func (s *treeSim) deliverAll() {
	for i := 0; len(s.messages) > 0; i++ {
		require.Less(s.t, i, 1000, "messages without end")
		m := s.messages[0]
		s.messages = s.messages[1:]
		m()
		for _, k := range s.order {
			s.nodes[k].quiet()
		}
	}
}

func TestForward_a_child_without_poller_offers_its_task_and_the_parents_poller_gets_it(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[0].ask(time.Minute)
	id := s.nodes[1].put()
	s.deliverAll()
	got := s.nodes[0].got(p)
	require.Equal(t, []string{id.String()}, taskIDs(got))
	tok, _ := parseToken(got.GetTasks()[0].GetLeaseToken())
	require.EqualValues(t, 1, tok.partition, "the lease is the child's, in whose log the task is")
	require.EqualValues(t, 1, s.nodes[1].core.m.counts.leased)
	require.Zero(t, s.nodes[0].core.m.counts)
}

func TestForward_a_child_with_a_poller_and_no_task_lends_the_poll(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	id := s.nodes[0].put()
	s.deliverAll()
	got := s.nodes[1].got(p)
	require.Equal(t, []string{id.String()}, taskIDs(got))
	tok, _ := parseToken(got.GetTasks()[0].GetLeaseToken())
	require.EqualValues(t, 0, tok.partition)
}

func TestForward_an_offer_climbs_to_the_root_and_a_poll_comes_down_along_it(t *testing.T) {
	s := newTree(t, 0, 1, 21, 22)
	p := s.nodes[22].ask(time.Minute)
	s.deliverAll()
	id := s.nodes[21].put()
	s.deliverAll()
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[22].got(p)))
}

func TestForward_one_poll_is_lent_and_one_offer_stands_at_a_time(t *testing.T) {
	s := newTree(t, 0, 1)
	polls := []*pollCall{s.nodes[1].ask(time.Minute), s.nodes[1].ask(time.Minute), s.nodes[1].ask(time.Minute)}
	s.deliverAll()
	require.Equal(t, 1, s.nodes[0].core.pollers.n)
	require.Equal(t, 2, s.nodes[1].core.pollers.n)
	for _, p := range polls {
		s.nodes[1].core.cancelPoll(p)
	}
	s.nodes[1].step()
	s.deliverAll()
	for range 5 {
		s.nodes[1].put()
	}
	s.deliverAll()
	require.Len(t, s.nodes[0].core.fwd.offers, 1)
}

func TestForward_a_task_that_a_local_poll_can_take_is_not_forwarded(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[0].ask(time.Minute)
	first, second := s.nodes[1].ask(time.Minute), s.nodes[1].ask(time.Minute) // the first is lent
	s.deliverAll()
	id := s.nodes[1].put()
	require.Empty(t, s.messages)
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[1].got(second)))
	require.False(t, answered(&first.call))
}

func TestForward_a_lent_poll_comes_back_for_a_task_here(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	require.Equal(t, 1, s.nodes[0].core.pollers.n)
	id := s.nodes[1].put()
	require.False(t, s.nodes[1].core.fwd.offering, "no offer while the poll can be called back")
	s.deliverAll()
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[1].got(p)))
	require.Zero(t, s.nodes[0].core.pollers.n)
}

func TestForward_a_lent_poll_returns_when_its_caller_goes_away(t *testing.T) {
	s := newTree(t, 0, 1, 21)
	p := s.nodes[21].ask(time.Minute)
	s.deliverAll()
	require.Equal(t, 1, s.nodes[0].core.pollers.n, "it went up two steps")
	s.nodes[21].core.cancelPoll(p)
	s.nodes[21].step()
	s.deliverAll()
	require.True(t, answered(&p.call))
	for _, n := range s.nodes {
		require.Zero(t, n.core.pollers.n)
		require.Zero(t, n.core.fwd.away)
	}
}

func TestForward_a_task_that_meets_a_lent_poll_whose_caller_leaves_is_not_lost(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	id := s.nodes[0].put() // leased for the lent poll; the answer is under way
	s.nodes[1].core.cancelPoll(p)
	s.nodes[1].step()
	s.deliverAll()
	require.True(t, answered(&p.call))
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[1].got(p)), "the shell gets it and gives it back")
}

func TestForward_an_old_backlog_stays_where_it_is_while_polls_come(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[1].put()
	s.nodes[1].put()
	s.messages = nil // the offer is lost on the way, without an error yet
	s.pass(6 * time.Second)
	s.nodes[1].core.fwd.offering = false
	s.nodes[1].ask(0) // takes one
	s.nodes[1].quiet()
	require.Zero(t, len(s.messages), "a partition whose backlog is older than 5 s does not offer")
	s.pass(199 * time.Millisecond)
	require.Empty(t, s.messages)
	s.pass(time.Millisecond)
	require.Len(t, s.messages, 1, "unless no poll came for 200 ms")
	require.True(t, s.nodes[1].core.fwd.offering)
}

func TestForward_a_poll_that_came_down_is_no_sign_of_pollers(t *testing.T) {
	s := newTree(t, 0, 1)
	for range 3 {
		s.nodes[1].put()
	}
	s.messages, s.nodes[1].core.fwd.offering = nil, false
	s.pass(10 * time.Second)
	for range 3 { // one after the other comes at once
		p := s.nodes[0].ask(time.Minute)
		s.pass(60 * time.Millisecond)
		s.deliverAll()
		s.pass(60 * time.Millisecond)
		s.deliverAll()
		require.Len(t, taskIDs(s.nodes[0].got(p)), 1)
	}
}

func TestForward_a_far_parent_is_offered_at_most_ten_times_a_second_what_nobody_takes(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[1].put()
	n := 0
	for range 1000 { // 2 s
		if c := s.nodes[1].core; c.fwd.offering {
			n++
			s.messages = nil
			c.offerEnded(offered{taken: n%2 == 0}) // if a poll came, it could not take what is here
		}
		s.pass(2 * time.Millisecond)
	}
	require.InDelta(t, 20, n, 1)
}

func TestForward_a_far_parent_is_offered_a_hundred_times_a_second_what_polls_take(t *testing.T) {
	s := newTree(t, 0, 1)
	c := s.nodes[1].core
	s.nodes[1].put()
	n := 0
	offers := func(d time.Duration) int {
		before := n
		for range d / time.Millisecond {
			if c.fwd.offering {
				n++
				s.messages = nil
				c.fwd.pulled = true
				c.offerEnded(offered{taken: true})
			}
			s.pass(time.Millisecond)
		}
		return n - before
	}
	require.InDelta(t, 50, offers(50*time.Millisecond), 1, "at once, if there were few before")
	require.InDelta(t, 1055, offers(10*time.Second), 2)
	require.InDelta(t, 1000, offers(10*time.Second), 1)
}

func TestForward_a_parent_in_the_same_process_is_not_rationed(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[1].put()
	for range 50 {
		require.True(t, s.nodes[1].core.fwd.offering)
		s.messages = nil
		s.nodes[1].core.fwd.pulled = true
		s.nodes[1].core.offerEnded(offered{taken: true, local: true})
		s.nodes[1].step()
	}
}

func TestForward_a_task_and_its_lease_share_a_write_when_the_poll_is_in_the_same_process(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	n := s.nodes[1]
	n.core.fwd.near = true
	n.add1()
	require.Empty(t, n.flying, "the write waits for the poll that was called back")
	s.deliverAll()
	require.True(t, answered(&p.call))
	require.EqualValues(t, 2, n.core.batches, "one write, and the next one is open")

	n.core.fwd.near = true
	n.add1()
	require.Empty(t, n.flying)
	s.messages = nil
	s.pass(time.Duration(holdTime))
	require.Len(t, n.flying, 1, "but not for long")
}

func TestForward_an_offer_whose_task_was_taken_here_meanwhile_costs_the_next_one_nothing(t *testing.T) {
	s := newTree(t, 0, 1)
	c := s.nodes[1].core
	s.nodes[1].put()
	s.messages = nil
	s.nodes[1].ask(0)
	s.nodes[1].quiet()
	c.offerEnded(offered{taken: true, local: true}) // a poll came and found nothing
	s.nodes[1].put()
	require.True(t, c.fwd.offering)
	s.messages = nil
	c.offerEnded(offered{taken: true, local: true}) // a poll came and could not take what is here
	s.nodes[1].step()
	require.False(t, c.fwd.offering, "no storm of polls that find nothing they can take")
	s.pass(time.Duration(lendPause))
	require.True(t, c.fwd.offering)
}

func TestForward_a_poll_that_could_not_be_lent_waits_here_and_tries_again_later(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Hour)
	var tries []time.Duration
	start := s.now
	for range 3000 { // 30 s
		if c := s.nodes[1].core; c.fwd.lent != nil {
			tries = append(tries, time.Duration(s.now-start))
			s.messages = nil
			delete(s.nodes[1].lent, p)
			c.back(polledAway{p: p, err: errors.New("unreachable")})
			require.Equal(t, p, c.pollers.first)
		}
		s.pass(10 * time.Millisecond)
	}
	require.Greater(t, len(tries), 5)
	require.LessOrEqual(t, len(tries), 13, "with pauses that grow to 5 s")
	id := s.nodes[1].put()
	if s.nodes[1].core.fwd.lent != nil {
		s.deliverAll()
	}
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[1].got(p)), "it is still served here")
}

func TestForward_a_paused_queue_forwards_nothing(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[1].core.queue.paused = true
	s.nodes[1].ask(time.Minute)
	s.nodes[1].put()
	require.Empty(t, s.messages)
	s.nodes[1].core.queue.paused = false
	s.nodes[0].core.queue.paused = true
	s.nodes[0].core.offer(newOffer(1, s.now))
	s.nodes[0].ask(time.Minute)
	require.Empty(t, s.messages, "nor does a paused parent poll its children")
}

func newOffer(source int32, oldest int64) *offerCall {
	o := &offerCall{source: source, oldest: oldest}
	o.init()
	return o
}

func TestForward_own_polls_come_before_lent_ones(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	own := s.nodes[0].ask(time.Minute)
	id := s.nodes[0].put()
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[0].got(own)))
	require.False(t, answered(&p.call))
}

func TestForward_a_poll_goes_to_the_older_of_the_tasks_here_and_those_offered(t *testing.T) {
	s := newTree(t, 0, 1, 2)
	s.nodes[1].put()
	s.deliverAll()
	s.pass(500 * time.Millisecond)
	s.deliverAll()
	here := s.nodes[0].put()
	s.deliverAll()
	p := s.nodes[0].ask(time.Minute)
	require.Equal(t, []string{here.String()}, taskIDs(s.nodes[0].got(p)), "within a second, the nearer one")
	s.pass(2 * time.Second)
	here = s.nodes[0].put()
	p = s.nodes[0].ask(time.Minute)
	s.deliverAll()
	require.NotEqual(t, []string{here.String()}, taskIDs(s.nodes[0].got(p)), "else the older one")
}

func TestForward_a_poll_whose_child_has_nothing_any_more_waits_again_first_in_line(t *testing.T) {
	s := newTree(t, 0, 1)
	s.nodes[0].core.offer(newOffer(1, s.now)) // of tasks that are gone
	first, second := s.nodes[0].ask(time.Minute), s.nodes[0].ask(time.Minute)
	s.deliverAll()
	id := s.nodes[0].put()
	require.Equal(t, []string{id.String()}, taskIDs(s.nodes[0].got(first)))
	require.False(t, answered(&second.call))
}

func TestForward_what_came_up_does_not_go_down_and_what_came_down_not_up(t *testing.T) {
	s := newTree(t, 0, 1)
	p := s.nodes[1].ask(time.Minute)
	s.deliverAll()
	s.nodes[0].core.offer(newOffer(1, s.now))
	s.nodes[0].step()
	require.Empty(t, s.messages, "a lent poll is not sent to where it came from")
	require.False(t, answered(&p.call))

	s = newTree(t, 0, 1, 21)
	s.nodes[1].core.offer(newOffer(21, s.now)) // stale
	s.messages = nil
	pulled := &pollCall{max: 1, noWait: true}
	pulled.hop = v1.Hop_HOP_PULLED
	pulled.init()
	s.nodes[1].core.poll(pulled)
	s.nodes[1].step()
	require.Nil(t, s.nodes[1].core.fwd.lent)
	s.deliverAll()
	require.True(t, answered(&pulled.call), "it goes on down along an offer, and ends")
}

func TestForward_an_add_never_overtakes_an_old_backlog(t *testing.T) {
	s := newTree(t, 0)
	first := s.nodes[0].put()
	s.pass(10 * time.Second)
	s.nodes[0].put()
	require.Equal(t, []string{first.String()}, taskIDs(s.nodes[0].got(s.nodes[0].ask(0))))
}
