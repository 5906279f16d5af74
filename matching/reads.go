package matching

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// view reads the rows of a bucket at one moment; it is a *storage.View.
type view interface {
	Get(space storage.Space, key []byte) (value []byte, ok bool, err error)
	Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error
}

// look shows fn the rows of an owner's partition. They may be those of another owner
// that took the partition meanwhile: what is in memory would not fit to them, so then
// fn is not called, the error says that the partition has moved, and the owner drops it.
func (e *Engine) look(ctx context.Context, o *owner, fn func(*storage.View) error) error {
	return e.router.View(ctx, o.bucket, router.CallMR, func(v *storage.View) error {
		row, ok, err := v.Get(spaceMeta, []byte(o.key))
		if err != nil {
			return err
		}
		if uid, rangeID, _, known := metaIdentity(row); !ok || !known || uid != o.uid || rangeID != o.rangeID {
			o.internal(lostRange{})
			return errMoved
		}
		return fn(v)
	})
}

// read carries out a read that a core asked for.
func (e *Engine) read(ctx context.Context, o *owner, request any) (answer any, err error) {
	err = e.look(ctx, o, func(v *storage.View) error {
		answer, err = answerRead(v, o.uid, request)
		return err
	})
	return answer, err
}

// answerRead carries out one of the requests that a core makes.
func answerRead(v view, uid uint64, request any) (any, error) {
	switch r := request.(type) {
	case readFresh:
		return viewFresh(v, uid, r)
	case readHoles:
		return viewHoles(v, uid, r)
	case readSchedule:
		return viewSchedule(v, uid, r)
	case fetchBodies:
		return viewBodies(v, uid, r)
	case sweepIDs:
		return viewSweep(v, uid, r)
	}
	panic(fmt.Sprintf("matching: unknown read %T", request))
}

// arena hands out copies from large pieces of memory.
type arena struct{ free []byte }

func (a *arena) copy(b []byte) []byte {
	if len(b) > len(a.free) {
		a.free = make([]byte, max(64<<10, len(b)))
	}
	c := a.free[:len(b):len(b)]
	copy(c, b)
	a.free = a.free[len(b):]
	return c
}

// scanBacklog calls fn with the rows of the backlog from one place on, level by level,
// each from its low mark on, until fn returns false. Rows from before there were places
// come first in their level.
func scanBacklog(v view, uid uint64, from place, lows *[maxLevel + 1]uint64, legacyFrom uint64, fn func(p place, body []byte) bool) error {
	done := false
	var bad error
	scan := func(from, to []byte) error {
		err := v.Scan(spaceBacklog, from, to, false, func(key, value []byte) bool {
			p, ok := backlogPlace(key)
			if !ok {
				bad = corrupt("key in the backlog")
				return false
			}
			if _, bad = bodyID(value); bad != nil {
				return false
			}
			done = !fn(p, value)
			return !done
		})
		if err == nil {
			err = bad
		}
		return err
	}
	for level := max(from.level, 1); level <= maxLevel && !done; level++ {
		begin := place{level: level, pass: max(lows[level], 1)}
		legacy := level == defaultLevel && legacyFrom > 0
		seq := legacyFrom
		if level == from.level {
			if from.pass > 0 {
				legacy = false
			} else {
				seq = max(seq, from.seq)
			}
			if begin.before(from) {
				begin = from
			}
		}
		if legacy {
			err := scan(appendBacklogKey(nil, uid, level, 0, seq), append(binary.BigEndian.AppendUint64(nil, uid), level+1))
			if err != nil || done {
				return err
			}
		}
		err := scan(appendBacklogKey(nil, uid, level, begin.pass, begin.seq), append(binary.BigEndian.AppendUint64(nil, uid), (level|placedFlag)+1))
		if err != nil {
			return err
		}
	}
	return nil
}

func viewFresh(v view, uid uint64, r readFresh) (freshTasks, error) {
	out := freshTasks{from: r.from, to: endPlace, epoch: r.epoch}
	var mem arena
	bytes := 0
	err := scanBacklog(v, uid, r.from, &r.lows, r.legacyFrom, func(p place, body []byte) bool {
		if len(out.tasks) >= r.tasks || len(out.tasks) > 0 && bytes+len(body) > r.bytes {
			out.to = p
			return false
		}
		bytes += len(body) + taskOverhead
		out.tasks = append(out.tasks, &task{seq: p.seq, loc: location{level: p.level, pass: p.pass}, body: mem.copy(body)})
		return true
	})
	return out, err
}

func viewHoles(v view, uid uint64, r readHoles) (freshTasks, error) {
	out := freshTasks{from: r.from, to: endPlace, epoch: r.epoch, keys: r.keys, next: map[string]place{}}
	var mem arena
	bytes, rows, open := 0, 0, len(r.keys)
	found := make(map[string]int, len(r.keys))
	var lows [maxLevel + 1]uint64
	err := scanBacklog(v, uid, r.from, &lows, 1, func(p place, body []byte) bool {
		switch {
		case !p.before(r.to):
			return false
		case rows >= r.rows || bytes >= r.bytes || open == 0:
			out.to = p
			return false
		}
		rows++
		_, key, _ := bodyShare(body)
		want, ok := r.keys[string(key)]
		if !ok || p.before(want.from) {
			return true
		}
		if found[string(key)] >= want.n {
			if _, more := out.next[string(key)]; !more {
				out.next[string(key)] = p
				open--
			}
			return true
		}
		found[string(key)]++
		bytes += len(body) + taskOverhead
		out.tasks = append(out.tasks, &task{seq: p.seq, loc: location{level: p.level, pass: p.pass}, body: mem.copy(body)})
		return true
	})
	return out, err
}

func viewSchedule(v view, uid uint64, r readSchedule) (scheduleRows, error) {
	from := append(appendScheduleKey(nil, uid, r.afterAt, r.afterSeq), 0)
	out := scheduleRows{whole: true}
	var bad error
	err := v.Scan(spaceSchedule, from, uidEnd(uid), false, func(key, value []byte) bool {
		if len(out.rows) >= r.limit {
			out.whole = false
			return false
		}
		u := &upcomingTask{at: int64(binary.BigEndian.Uint64(key[8:])), seq: lastSeq(key)}
		if bad = u.decode(value); bad != nil {
			return false
		}
		out.rows = append(out.rows, u)
		return true
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// maxCountDue is the most rows that countDue looks at: more than that are as good as
// all.
const maxCountDue = 10_000

// countDue counts the tasks that have come due by now, up to maxCountDue.
func countDue(v view, uid uint64, now int64) (n int64, err error) {
	from := binary.BigEndian.AppendUint64(nil, uid)
	err = v.Scan(spaceSchedule, from, appendScheduleKey(nil, uid, now+1, 0), false, func(_, _ []byte) bool {
		n++
		return n < maxCountDue
	})
	return n, err
}

func viewBodies(v view, uid uint64, r fetchBodies) (fetchedBodies, error) {
	out := fetchedBodies{tasks: r.tasks, bodies: make([][]byte, len(r.tasks))}
	var mem arena
	var key []byte
	for i, u := range r.tasks {
		key = u.loc.appendBodyKey(key[:0], uid, u.seq)
		value, ok, err := v.Get(u.loc.space(), key)
		if err != nil {
			return out, err
		}
		if !ok {
			continue
		}
		if _, err := bodyID(value); err != nil {
			return out, err
		}
		out.bodies[i] = mem.copy(value)
	}
	return out, nil
}

func viewSweep(v view, uid uint64, r sweepIDs) (out sweptIDs, err error) {
	var lists []byte
	from := binary.BigEndian.AppendUint64(nil, uid)
	to := binary.BigEndian.AppendUint64(from[:8:8], uint64(max(r.before, 0)))
	err = v.Scan(spaceEnded, from, to, false, func(key, value []byte) bool {
		if len(lists) >= r.limit*endedSize {
			out.more = true
			return false
		}
		lists = append(lists, value...)
		out.end = append(append(out.end[:0], key...), 0)
		return true
	})
	if err != nil {
		return out, err
	}
	if len(lists)%endedSize != 0 {
		return out, corrupt("list of ended tasks")
	}
	var key []byte
	for ; len(lists) > 0; lists = lists[endedSize:] {
		id := taskID(lists[:16])
		key = appendIDKey(key[:0], uid, id)
		value, ok, err := v.Get(spaceIDs, key)
		if err != nil {
			return out, err
		}
		if !ok {
			continue
		}
		var row idRow
		if err := row.decode(value); err != nil {
			return out, err
		}
		if row.seq == binary.BigEndian.Uint64(lists[16:]) { // else it was added anew
			out.ids = append(out.ids, id)
		}
	}
	return out, nil
}

// found is what the store knows of a task.
type found struct {
	storedTask
	ended     ending // for a task that is gone
	gone      bool
	body      body
	attempt   int32
	lastError string
	deadline  int64
	identity  string
	deadAt    int64
}

// findTask looks a task up by id; ok is false if nothing is known of it.
func findTask(v view, uid uint64, id taskID) (f found, ok bool, err error) {
	value, ok, err := v.Get(spaceIDs, appendIDKey(nil, uid, id))
	if err != nil || !ok {
		return f, false, err
	}
	var row idRow
	if err := row.decode(value); err != nil {
		return f, false, err
	}
	f.storedTask = storedTask{seq: row.seq, id: id, addedAt: row.addedAt, loc: row.loc}
	if row.ending != endingNone {
		f.gone, f.ended = true, row.ending
		return f, true, nil
	}
	value, ok, err = getBody(v, uid, &f.loc, row.seq)
	if err != nil {
		return f, false, err
	}
	if !ok {
		f.gone = true
		return f, true, nil
	}
	if err := f.body.decode(bytes.Clone(value)); err != nil {
		return f, false, err
	}
	f.key = f.body.fairKey
	return f, true, f.findState(v, uid)
}

// getBody reads a task's body from where it was put, or else from where it is moved
// to, and then says so in loc.
func getBody(v view, uid uint64, loc *location, seq uint64) (body []byte, ok bool, err error) {
	body, ok, err = v.Get(loc.space(), loc.appendBodyKey(nil, uid, seq))
	if err != nil || ok || loc.parked {
		return body, ok, err
	}
	moved := location{parked: true}
	if body, ok, err = v.Get(moved.space(), moved.appendBodyKey(nil, uid, seq)); ok && err == nil {
		*loc = moved
	}
	return body, ok, err
}

// idKnown says whether a repeated add of the task of an id row is to be taken as one.
func idKnown(v view, uid uint64, row idRow, now int64) (bool, error) {
	if now-row.addedAt < dedupWindow {
		return true, nil
	}
	if row.ending != endingNone {
		return false, nil
	}
	_, ok, err := getBody(v, uid, &row.loc, row.seq)
	return ok, err
}

// findState looks at the row beside a task's body.
func (f *found) findState(v view, uid uint64) error {
	key := appendSeqKey(nil, uid, f.seq)
	if value, ok, err := v.Get(spaceLeases, key); err != nil {
		return err
	} else if ok {
		var l lease
		if err := l.decode(value); err != nil {
			return err
		}
		f.state, f.attempt, f.deadline, f.identity, f.lastError = storedLeased, l.attempt, l.deadline, l.identity, l.lastError
		return nil
	}
	if value, ok, err := v.Get(spaceWhen, key); err != nil {
		return err
	} else if ok {
		f.state, f.at = storedScheduled, int64(binary.BigEndian.Uint64(value))
		value, ok, err := v.Get(spaceSchedule, appendScheduleKey(nil, uid, f.at, f.seq))
		if err != nil {
			return err
		}
		if !ok {
			return corrupt("schedule without its row")
		}
		var s scheduled
		if err := s.decode(value); err != nil {
			return err
		}
		f.attempt, f.lastError = s.attempt, s.lastError
		return nil
	}
	if value, ok, err := v.Get(spaceDead, key); err != nil {
		return err
	} else if ok {
		var d deadRow
		if err := d.decode(value); err != nil {
			return err
		}
		f.state, f.attempt, f.lastError, f.deadAt = storedDead, d.attempt, d.lastError, d.deadAt
		return nil
	}
	f.state = storedFresh
	return nil
}

// deadTasks reads a page of dead tasks from a sequence number on.
func deadTasks(v view, uid, from uint64, limit int) (out []found, next uint64, err error) {
	type row struct {
		seq uint64
		deadRow
	}
	var rows []row
	var bad error
	err = v.Scan(spaceDead, appendSeqKey(nil, uid, from), uidEnd(uid), false, func(key, value []byte) bool {
		r := row{seq: lastSeq(key)}
		if len(rows) >= limit {
			next = r.seq
			return false
		}
		if bad = r.decode(value); bad != nil {
			return false
		}
		rows = append(rows, r)
		return true
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, 0, err
	}
	for _, r := range rows {
		f := found{storedTask: storedTask{seq: r.seq, loc: r.loc, state: storedDead}, attempt: r.attempt, lastError: r.lastError, deadAt: r.deadAt}
		if ok, err := f.fillBody(v, uid); err != nil {
			return nil, 0, err
		} else if !ok {
			return nil, 0, corrupt("dead task without a body")
		}
		out = append(out, f)
	}
	return out, next, nil
}

func (f *found) fillBody(v view, uid uint64) (bool, error) {
	value, ok, err := v.Get(f.loc.space(), f.loc.appendBodyKey(nil, uid, f.seq))
	if err != nil || !ok {
		return false, err
	}
	if err := f.body.decode(bytes.Clone(value)); err != nil {
		return false, err
	}
	f.id, f.addedAt = f.body.id, f.body.addedAt
	return true, nil
}

// waitingTasks reads tasks that wait: fresh ones, then scheduled ones, with sequence
// numbers below before. It returns at most limit.
func waitingTasks(v view, m *meta, before uint64, limit int) ([]storedTask, error) {
	uid := m.uid
	var out []storedTask
	var bad error
	var lows [maxLevel + 1]uint64
	for i := range lows {
		lows[i] = m.levels[i].low
	}
	err := scanBacklog(v, uid, place{}, &lows, m.legacyFrom, func(p place, body []byte) bool {
		if p.seq >= before {
			return true
		}
		var leased bool
		if _, leased, bad = v.Get(spaceLeases, appendSeqKey(nil, uid, p.seq)); bad != nil || leased {
			return bad == nil
		}
		t := storedTask{seq: p.seq, loc: location{level: p.level, pass: p.pass}, state: storedFresh, addedAt: bodyAddedAt(body)}
		t.id, bad = bodyID(body)
		_, key, _ := bodyShare(body)
		t.key = string(key)
		out = append(out, t)
		return bad == nil && len(out) < limit
	})
	if err == nil {
		err = bad
	}
	if err != nil || len(out) >= limit {
		return out, err
	}
	start := len(out)
	err = v.Scan(spaceSchedule, binary.BigEndian.AppendUint64(nil, uid), uidEnd(uid), false, func(key, value []byte) bool {
		var s scheduled
		if bad = s.decode(value); bad != nil {
			return false
		}
		if lastSeq(key) >= before {
			return true
		}
		out = append(out, storedTask{seq: lastSeq(key), loc: s.loc, state: storedScheduled, at: int64(binary.BigEndian.Uint64(key[8:]))})
		return len(out) < limit
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, err
	}
	for i := start; i < len(out); i++ {
		t := &out[i]
		value, ok, err := v.Get(t.loc.space(), t.loc.appendBodyKey(nil, uid, t.seq))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, corrupt("scheduled task without a body")
		}
		if t.id, err = bodyID(value); err != nil {
			return nil, err
		}
		t.addedAt = bodyAddedAt(value)
	}
	return out, nil
}
