package matching

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// view reads the rows of a bucket at one moment; it is a *storage.View.
type view interface {
	Get(space storage.Space, key []byte) (value []byte, ok bool, err error)
	Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error
}

// read carries out a read that a core asked for.
func (e *Engine) read(ctx context.Context, bucket shard.BucketID, uid uint64, request any) (answer any, err error) {
	err = e.router.View(ctx, bucket, router.CallMR, func(v *storage.View) error {
		answer, err = answerRead(v, uid, request)
		return err
	})
	return answer, err
}

// answerRead carries out one of the requests that a core makes.
func answerRead(v view, uid uint64, request any) (any, error) {
	switch r := request.(type) {
	case readFresh:
		return viewFresh(v, uid, r)
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

func viewFresh(v view, uid uint64, r readFresh) (freshTasks, error) {
	from := appendBacklogKey(nil, uid, defaultLevel, r.from)
	to := appendBacklogKey(nil, uid, defaultLevel, r.to)
	out := freshTasks{to: r.to}
	var mem arena
	bytes := 0
	err := v.Scan(spaceBacklog, from, to, false, func(key, value []byte) bool {
		seq := lastSeq(key)
		if len(out.tasks) >= r.tasks || len(out.tasks) > 0 && bytes+len(value) > r.bytes {
			out.to = seq
			return false
		}
		bytes += len(value) + taskOverhead
		out.tasks = append(out.tasks, &task{seq: seq, loc: location{level: defaultLevel}, body: mem.copy(value)})
		return true
	})
	for _, t := range out.tasks {
		if _, err := bodyID(t.body); err != nil {
			return out, err
		}
	}
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
	value, ok, err = v.Get(row.loc.space(), row.loc.appendBodyKey(nil, uid, row.seq))
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
	return f, true, f.findState(v, uid)
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

// waitingTasks reads tasks that wait: fresh ones from a sequence number on, then
// scheduled ones, with sequence numbers below before. It returns at most limit.
func waitingTasks(v view, uid, freshFrom, before uint64, limit int) ([]storedTask, error) {
	var out []storedTask
	var bad error
	from := appendBacklogKey(nil, uid, defaultLevel, freshFrom)
	to := appendBacklogKey(nil, uid, defaultLevel, before)
	err := v.Scan(spaceBacklog, from, to, false, func(key, value []byte) bool {
		t := storedTask{seq: lastSeq(key), loc: location{level: defaultLevel}, state: storedFresh}
		if t.id, bad = bodyID(value); bad != nil {
			return false
		}
		t.addedAt = bodyAddedAt(value)
		out = append(out, t)
		return len(out) < limit
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
