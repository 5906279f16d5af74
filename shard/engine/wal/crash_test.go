package wal

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// model is what a log should hold.
type model struct {
	first, last uint64 // first > last, or 0, 0, for an empty one
	entries     map[uint64]raft.Log
}

func (m *model) empty() bool { return len(m.entries) == 0 }

func (m *model) clone() *model {
	return &model{m.first, m.last, maps.Clone(m.entries)}
}

func (m *model) store(logs []*raft.Log) {
	if m.empty() {
		m.first = logs[0].Index
	}
	for _, e := range logs {
		m.entries[e.Index] = *e
		m.last = e.Index
	}
}

func (m *model) delete(from, to uint64) {
	for i := from; i <= to; i++ {
		delete(m.entries, i)
	}
	if m.empty() {
		m.first = m.last + 1
		return
	}
	keys := slices.Sorted(maps.Keys(m.entries))
	m.first, m.last = keys[0], keys[len(keys)-1]
}

// diff tells how l differs from m.
func (m *model) diff(l *Log) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if m.empty() {
		if first != 0 || last != 0 {
			return fmt.Errorf("log has %d to %d, want it empty", first, last)
		}
		// Two empty logs differ in where they ended.
		if l.bounds.last != m.last {
			return fmt.Errorf("log is empty after %d, want after %d", l.bounds.last, m.last)
		}
		return nil
	}
	if first != m.first || last != m.last {
		return fmt.Errorf("log has %d to %d, want %d to %d", first, last, m.first, m.last)
	}
	for i := first; i <= last; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return err
		}
		want := m.entries[i]
		if e.Index != i || e.Term != want.Term || e.Type != want.Type || string(e.Data) != string(want.Data) ||
			string(e.Extensions) != string(want.Extensions) || !e.AppendedAt.Equal(want.AppendedAt) {
			return fmt.Errorf("entry %d is %v, want %v", i, e, want)
		}
	}
	for _, i := range []uint64{first - 1, last + 1} {
		var e raft.Log
		if err := l.GetLog(i, &e); !errors.Is(err, raft.ErrLogNotFound) {
			return fmt.Errorf("entry %d should not be there: %v", i, err)
		}
	}
	return nil
}

func randomEntry(rng *rand.Rand, index, term uint64) *raft.Log {
	e := &raft.Log{Index: index, Term: term, Type: raft.LogType(rng.IntN(6))}
	n := rng.IntN(200)
	switch rng.IntN(20) {
	case 0:
		n = rng.IntN(9000) // more than a segment
	case 1:
		n = 0
	}
	if n > 0 {
		e.Data = make([]byte, n)
		for i := range e.Data {
			e.Data[i] = byte(rng.Uint32())
		}
	}
	if rng.IntN(4) == 0 {
		e.Extensions = []byte(fmt.Sprintf("extension of %d", index))
	}
	if rng.IntN(2) == 0 {
		e.AppendedAt = time.Unix(0, rng.Int64())
	}
	return e
}

// life is one run of a log from Open until the power goes, or the process is killed, or a clean Close.
type life struct {
	t     *testing.T
	rng   *rand.Rand
	fs    *powerFS
	opt   Options
	l     *Log
	state *model
	// past holds every state that a power cut may bring back, oldest first. The last one is the present.
	past []*model
	term uint64
}

// open opens the log and finds it in one of the states that it may be in.
func (f *life) open() {
	opt := f.opt
	opt.FS = f.fs
	opt.MustHave = f.past[0].last
	for _, m := range f.past {
		opt.MustHave = min(opt.MustHave, m.last)
	}
	l, rec, err := Open("/wal", opt)
	require.NoError(f.t, err)
	require.GreaterOrEqual(f.t, rec.TornBytes, int64(0))
	var diffs []error
	for i := len(f.past) - 1; i >= 0; i-- {
		err := f.past[i].diff(l)
		if err == nil {
			f.l, f.state = l, f.past[i]
			f.past = []*model{f.state}
			return
		}
		diffs = append(diffs, err)
	}
	require.Fail(f.t, "the log is in no state that it was ever in", "%v\nrecovery %+v", errors.Join(diffs...), rec)
}

// act does one random thing and tells whether the log goes on.
func (f *life) act() bool {
	next := f.state.clone()
	var err error
	durable := f.opt.Durability == DurabilityFsync
	switch k := f.rng.IntN(20); {
	case k < 15 || f.state.empty():
		index := f.state.last + 1
		if f.state.empty() && f.rng.IntN(3) == 0 {
			index += f.rng.Uint64N(10)
		}
		var logs []*raft.Log
		for range 1 + f.rng.IntN(1+f.rng.IntN(12)) {
			logs = append(logs, randomEntry(f.rng, index, f.term))
			index++
		}
		next.store(logs)
		err = f.l.StoreLogs(logs)
	case k < 17:
		to := f.state.first + f.rng.Uint64N(f.state.last-f.state.first+1)
		next.delete(f.state.first, to)
		err, durable = f.l.DeleteRange(0, to), true
	case k < 19:
		from := f.state.first + f.rng.Uint64N(f.state.last-f.state.first+1)
		f.term++
		next.delete(from, f.state.last)
		err, durable = f.l.DeleteRange(from, f.state.last+5), true
	default:
		err, durable = f.l.Sync(), true
	}
	// Whatever the outcome, the new state may be found later.
	f.past = append(f.past, next)
	if err != nil {
		require.ErrorIs(f.t, err, errPower)
		require.ErrorIs(f.t, err, ErrFailed)
		require.ErrorIs(f.t, f.l.StoreLog(&raft.Log{Index: 1}), ErrFailed)
		return false
	}
	f.state = next
	if durable {
		f.past = []*model{next}
	}
	if f.rng.IntN(8) == 0 {
		if err := f.state.diff(f.l); !errors.Is(err, errPower) && !errors.Is(err, ErrFailed) {
			require.NoError(f.t, err)
		}
	}
	return true
}

// crashRuns can be raised for a long search: go test -run PowerCuts -args -crash-runs 100000.
var crashRuns = flag.Int("crash-runs", 400, "histories with power cuts to play through for each durability")

func TestLog_keepsWhatWasAcknowledgedThroughPowerCuts(t *testing.T) {
	for _, d := range []Durability{DurabilityFsync, DurabilityInterval} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*crashRuns) {
				crashRun(t, d, seed)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func crashRun(t *testing.T, d Durability, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(d)))
	f := &life{
		t: t, rng: rng, fs: newPowerFS(seed), term: 1,
		opt:  Options{SegmentBytes: 4096 << rng.IntN(2), Durability: d, SyncInterval: time.Millisecond, MaxUnsyncedBytes: 20000},
		past: []*model{{entries: map[uint64]raft.Log{}}},
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	killed := false
	for range 5 {
		if rng.IntN(4) == 0 {
			// The power may go while the log is being opened, too.
			f.fs.set(func(p *powerFS) { p.cutAt = 1 + rng.IntN(6) })
			opt := f.opt
			opt.FS = f.fs
			if l, _, err := Open("/wal", opt); err == nil {
				f.fs.set(func(p *powerFS) { p.off = true })
				_ = l.Close()
			} else {
				require.ErrorIs(t, err, errPower)
			}
			f.fs, killed = f.fs.cut(), false
		}
		if killed {
			f.past = []*model{f.state} // nothing may be missing
		}
		f.open()
		killed = false
		f.fs.set(func(p *powerFS) { p.cutAt = p.ops + 1 + rng.IntN(1+rng.IntN(150)) })
		for range 1 + rng.IntN(60) {
			if !f.act() {
				break
			}
		}
		switch rng.IntN(4) {
		case 0: // a clean end, if the power lasts
			if err := f.l.Close(); err == nil {
				f.past = []*model{f.state}
			}
			f.fs = f.fs.cut()
		case 1: // the process is killed
			f.fs.mu.Lock()
			off := f.fs.off
			f.fs.mu.Unlock()
			if off {
				f.fs = f.fs.cut()
			} else {
				f.fs, killed = f.fs.kill(), true
			}
		default:
			f.fs = f.fs.cut()
		}
		_ = f.l.Close()
	}
	if killed {
		f.past = []*model{f.state}
	}
	f.open()
	require.NoError(t, f.l.Close())
}
