package matching

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// fill lays a backlog into a partition's store as adds over a time have left it.
func (n *treeNode) fill(tasks int, from, to int64) {
	key := storeKey(spaceMeta, []byte(n.id.Key()))
	var m meta
	if err := m.decode(n.store.rows[key]); err != nil {
		n.fatalf("meta: %v", err)
	}
	b := &batch{}
	b.begin(n.id.Hash(), n.uid, m.rangeID, n.id.Key())
	for i := range tasks {
		at := from + (to-from)*int64(i)/int64(tasks)
		id := taskID{0: 1, 4: byte(n.id.Number), 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
		body := body{id: id, addedAt: at, kind: "k"}
		loc := location{level: defaultLevel, pass: uint64(i+1) * unitPass}
		b.putBody(loc, n.uid, m.nextSeq, body.append(nil))
		b.putID(n.uid, id, &idRow{seq: m.nextSeq, addedAt: at, loc: loc})
		m.nextSeq++
		m.lastAdded = at
	}
	m.count(defaultLevel, int64(tasks))
	m.levels[defaultLevel].last = uint64(tasks) * unitPass
	m.batch++
	b.seal(&m)
	n.apply(b)
	n.load()
}

// TestEvenDraining works a backlog of 200,000 tasks in 8 partitions off with 40 slow
// workers, whose polls are spread as clients spread them, in virtual time, and looks at
// the age of the oldest task in each partition all the time.
func TestEvenDraining_a_backlog_over_eight_partitions_keeps_the_same_age_in_all(t *testing.T) {
	const (
		partitions = 8
		workers    = 40
		perPoll    = 5
		work       = 100 * time.Millisecond // for what one poll brings
		addedOver  = 400 * time.Second
	)
	total := 200_000
	if raceDetector {
		total = 50_000
	}
	s := newTreeSim(t, 1, 0, 1, 2, 3, 4, 5, 6, 7)
	limits := Limits{Leases: 100_000, WindowTasks: 4000, RecentIDs: 1000}
	for _, k := range s.order {
		n := s.nodes[k]
		n.limits, n.store = &limits, &memStore{rows: map[string][]byte{}}
		n.load()
		n.fill(total/partitions, s.now-int64(addedOver), s.now)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var free [workers]int64 // when each worker polls next
	var clients [3]pollCounts
	var widest time.Duration
	done := 0
	for steps := 0; done < total; steps++ {
		require.Less(t, steps, 20_000, "%d of %d tasks are done", done, total)
		for w := range free {
			if free[w] > s.now {
				continue
			}
			number := clients[w%len(clients)].begin(partitions)
			n := s.nodes[number]
			p := n.askFor(perPoll, 10*time.Second)
			got := n.got(p)
			for i := 0; got == nil && i < 100; i++ { // it went elsewhere
				s.deliverAll()
				got = n.got(p)
			}
			if got == nil {
				n.core.cancelPoll(p)
				n.step()
				s.deliverAll()
				got = n.got(p)
			}
			clients[w%len(clients)].end(number)
			done += s.finish(got)
			free[w] = s.now + int64(work)/2 + rng.Int64N(int64(work))
		}
		s.pass(20 * time.Millisecond)
		s.deliverAll()
		var low, high int64
		for _, k := range s.order {
			n := s.nodes[k]
			n.quiet()
			if oldest := n.core.ready.oldest(); oldest != 0 {
				age := s.now - oldest
				if low == 0 || age < low {
					low = age
				}
				high = max(high, age)
			}
		}
		widest = max(widest, time.Duration(high-low))
	}
	t.Logf("the ages of the oldest tasks differed by %v at most", widest)
	require.Less(t, widest, 10*time.Second)
}

// finish completes what a poll brought, all from one partition.
func (s *treeSim) finish(resp *v1.PollTasksResponse) int {
	if len(resp.GetTasks()) == 0 {
		return 0
	}
	e := &endCall{kind: endComplete}
	e.init()
	var n *treeNode
	for _, task := range resp.GetTasks() {
		tok, ok := parseToken(task.GetLeaseToken())
		if !ok {
			s.fatalf("a token cannot be read")
		}
		n = s.nodes[tok.partition]
		e.items = append(e.items, endItem{seq: tok.seq, nonce: tok.nonce})
	}
	n.core.advance(s.now, s.now)
	n.core.end(e)
	n.step()
	n.quiet()
	for _, it := range e.items {
		if it.lost {
			s.fatalf("a lease is lost")
		}
	}
	return len(resp.GetTasks())
}
