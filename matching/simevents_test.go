package matching

import (
	"encoding/binary"
	"sort"
	"time"
)

func (s *sim) newID() taskID {
	var id taskID
	s.seq++
	ms := uint64(s.now/1e6) - uint64(s.rng.IntN(3000)) // clients' clocks differ
	binary.BigEndian.PutUint64(id[:], ms<<16|0x7000)
	binary.BigEndian.PutUint32(id[12:], s.seq)
	if s.rng.IntN(5) == 0 { // ids need not be ordered by time
		binary.BigEndian.PutUint64(id[:], s.rng.Uint64())
	}
	return id
}

func (s *sim) add() {
	a := &addCall{}
	a.init()
	var mine []*simTask
	for range 1 + s.rng.IntN(4) {
		var st *simTask
		if len(s.order) > 0 && s.rng.IntN(6) == 0 { // a repeated add
			st = s.tasks[s.order[max(0, len(s.order)-1-s.rng.IntN(30))]]
		}
		if st == nil || s.now-st.born > dedupWindow*9/10 { // later, it is a new task

			st = &simTask{id: s.newID(), born: s.now, leases: map[uint64]int64{}}
			s.tasks[st.id] = st
			s.order = append(s.order, st.id)
		}
		it := addItem{id: st.id, addedAt: s.now}
		b := body{id: st.id, addedAt: s.now, kind: "k", payload: make([]byte, s.rng.IntN(100))}
		if s.rng.IntN(2) == 0 {
			b.level, b.weight = uint8(s.rng.IntN(maxLevel+1)), float32(s.rng.IntN(4))
			b.fairKey = []string{"", "a", "b", "c", string(rune('d' + s.rng.IntN(20)))}[s.rng.IntN(5)]
		}
		switch s.rng.IntN(8) {
		case 0:
			b.runAt = s.now + int64(s.rng.IntN(30))*int64(time.Second)
			it.runAt = b.runAt
		case 1:
			b.expiresAt = s.now + int64(s.rng.IntN(30))*int64(time.Second)
			st.mayBeGone = true
		case 2:
			b.maxAttempts = 2
			b.retry = &retryPolicy{initial: time.Millisecond, jitter: -1}
		}
		it.body = b.append(nil)
		a.items = append(a.items, it)
		mine = append(mine, st)
	}
	s.logf("%d add %d", s.now/1e9, len(a.items))
	s.core.advance(s.now, s.wall())
	s.core.add(a)
	counted := make([]bool, len(a.items))
	s.calls = append(s.calls, func() bool {
		if !answered(&a.call) {
			return false
		}
		<-a.done
		if a.err != nil {
			return true
		}
		undecided := false
		for i := range a.items {
			switch it := &a.items[i]; it.result {
			case addLookUp:
				undecided = true
				v, ok, _ := s.store.Get(spaceIDs, appendIDKey(nil, 7, it.id))
				it.looked, it.known = true, false
				if ok {
					var row idRow
					if err := row.decode(v); err != nil {
						s.fatalf("id row: %v", err)
					}
					it.known, _ = idKnown(s.store, 7, row, s.now)
				}
			case added:
				if counted[i] {
					continue
				}
				counted[i] = true
				if st := mine[i]; st.addedOnce && s.now-st.born < dedupWindow*9/10 {
					s.fatalf("task %v was added twice", st.id)
				}
				mine[i].acked, mine[i].addedOnce = true, true
			case alreadyAdded:
				mine[i].acked = true
			}
		}
		if undecided {
			s.core.add(a)
			return false
		}
		return true
	})
	s.step()
}

func (s *sim) poll() {
	p := &pollCall{max: 1 + s.rng.IntN(3), identity: "w", noWait: s.rng.IntN(2) == 0}
	p.init()
	s.core.advance(s.now, s.wall())
	s.core.poll(p)
	s.calls = append(s.calls, func() bool {
		if !answered(&p.call) {
			return false
		}
		<-p.done
		if p.err != nil {
			return true
		}
		for _, g := range p.granted {
			id, err := bodyID(g.body)
			if err != nil {
				s.fatalf("body: %v", err)
			}
			st := s.tasks[id]
			if st == nil {
				s.fatalf("task %v was never added", id)
			}
			s.logf("%d deliver %v seq %d nonce %x until %d", s.now/1e9, id, g.seq, g.nonce, g.deadline/1e9)
			if st.completed {
				s.fatalf("task %v came back after its completion was acknowledged", id)
			}
			if st.cancelled {
				s.fatalf("task %v came back after it was cancelled", id)
			}
			for nonce, until := range st.leases {
				if until > s.now && nonce != g.nonce {
					s.fatalf("task %v was delivered under the live lease %x, until %d, now %d", id, nonce, until, s.now)
				}
			}
			st.leases[g.nonce] = g.deadline
			s.bySeq[g.seq] = id
		}
		return true
	})
	s.step()
}

// end ends some lease that was given out, in some way, even if it is old.
func (s *sim) end() {
	var held []endItem
	var who []*simTask
	for _, id := range s.order[max(0, len(s.order)-60):] {
		st := s.tasks[id]
		for nonce := range st.leases {
			for seq, of := range s.bySeq {
				if of == id {
					held = append(held, endItem{seq: seq, nonce: nonce})
					who = append(who, st)
				}
			}
		}
	}
	if len(held) == 0 {
		return
	}
	sort.Sort(bySeqNonce{held, who})
	i := s.rng.IntN(len(held))
	it, st := held[i], who[i]
	kind := endKind(s.rng.IntN(4))
	if s.rng.IntN(3) == 0 {
		kind = endComplete
	}
	it.notRetryable = s.rng.IntN(10) == 0
	e := &endCall{kind: kind, items: []endItem{it}}
	e.init()
	if kind == endComplete {
		st.mayBeGone = true
	}
	s.core.advance(s.now, s.wall())
	s.core.end(e)
	s.calls = append(s.calls, func() bool {
		if !answered(&e.call) {
			return false
		}
		<-e.done
		it := &e.items[0]
		if e.err != nil {
			// What happened to the lease is unknown: it may have ended.
			delete(st.leases, it.nonce)
			return true
		}
		s.logf("%d end kind %d %v nonce %x lost %v", s.now/1e9, kind, st.id, it.nonce, it.lost)
		switch {
		case it.lost:
			delete(st.leases, it.nonce)
		case kind == endComplete:
			st.completed = true
			delete(st.leases, it.nonce)
		case kind == endExtend:
			st.leases[it.nonce] = it.at
		default:
			delete(st.leases, it.nonce)
			st.dead = it.dead
		}
		return true
	})
	// From here on another delivery may overtake this answer.
	if kind != endExtend {
		delete(st.leases, it.nonce)
	}
	s.step()
}

type bySeqNonce struct {
	items []endItem
	who   []*simTask
}

func (b bySeqNonce) Len() int { return len(b.items) }
func (b bySeqNonce) Less(i, j int) bool {
	if b.items[i].seq != b.items[j].seq {
		return b.items[i].seq < b.items[j].seq
	}
	return b.items[i].nonce < b.items[j].nonce
}
func (b bySeqNonce) Swap(i, j int) {
	b.items[i], b.items[j] = b.items[j], b.items[i]
	b.who[i], b.who[j] = b.who[j], b.who[i]
}

// lookAndRemove cancels a task, purges, or redrives.
func (s *sim) lookAndRemove() {
	l := &lookupCall{}
	l.init()
	core := s.core
	core.advance(s.now, s.wall())
	core.beginLookup(l)
	what := s.rng.IntN(10)
	var r *removeCall
	var v *reviveCall
	s.calls = append(s.calls, func() bool {
		switch {
		case r == nil && v == nil:
			if !answered(&l.call) {
				return false
			}
			<-l.done
			if l.err != nil {
				return true
			}
			var tasks []storedTask
			switch {
			case what < 6 && len(s.order) > 0: // cancel one
				id := s.order[max(0, len(s.order)-1-s.rng.IntN(40))]
				f, ok, err := findTask(s.store, 7, id)
				if err != nil {
					s.fatalf("find: %v", err)
				}
				if ok && !f.gone {
					tasks = []storedTask{f.storedTask}
				}
			case what < 7: // purge a chunk
				var err error
				if tasks, err = waitingTasks(s.store, ptr(s.storedMeta()), 1<<60, 5); err != nil {
					s.fatalf("waiting: %v", err)
				}
			default: // redrive
				dead, _, err := deadTasks(s.store, 7, 0, 5)
				if err != nil {
					s.fatalf("dead: %v", err)
				}
				v = &reviveCall{}
				v.init()
				for _, d := range dead {
					v.tasks = append(v.tasks, d.storedTask)
					s.tasks[d.id].dead = false
				}
				core.revive(v)
				return false
			}
			r = &removeCall{tasks: tasks}
			r.init()
			for _, t := range tasks {
				s.tasks[t.id].mayBeGone = true
			}
			core.remove(r)
			return false
		case r != nil:
			if !answered(&r.call) {
				return false
			}
			<-r.done
			if r.err == nil {
				for _, t := range r.tasks {
					if !t.changed {
						s.logf("%d cancelled %v", s.now/1e9, t.id)
						s.tasks[t.id].cancelled = true
					}
				}
			}
			return true
		default:
			if answered(&v.call) {
				<-v.done
				return true
			}
			return false
		}
	})
	s.step()
}

func ptr[T any](v T) *T { return &v }
