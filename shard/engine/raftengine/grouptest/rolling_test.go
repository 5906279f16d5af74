package grouptest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// load adds rows all the time, and repeats what was refused or may not have happened.
type load struct {
	g    *group
	stop atomic.Bool
	wg   sync.WaitGroup
	done atomic.Int64
	// unknown counts commands of which nobody knew whether they took effect.
	unknown atomic.Int64

	mu    sync.Mutex
	added []string
}

// startLoad adds rows from some goroutines, through any of members.
func startLoad(g *group, members []*member) *load {
	l := &load{g: g}
	for w := range 4 {
		l.wg.Go(func() {
			for i := 0; !l.stop.Load() && l.add(members, fmt.Sprintf("load-%d-%06d", w, i)); i++ {
			}
		})
	}
	g.t.Cleanup(func() {
		l.stop.Store(true)
		l.wg.Wait()
	})
	return l
}

func (l *load) add(members []*member, name string) bool {
	deadline := time.Now().Add(30 * time.Second)
	for next := 0; ; {
		err := members[next].propose(name)
		if err == nil {
			l.done.Add(1)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.added = append(l.added, name)
			return true
		}
		if errors.Is(err, shard.OutcomeUnknown) {
			l.unknown.Add(1)
		} else if !errors.Is(err, shard.NonMaster) {
			l.g.t.Errorf("add %s: %v", name, err)
			return false
		}
		if time.Now().After(deadline) {
			l.g.t.Errorf("add %s: not done in time: %v", name, err)
			return false
		}
		// The one that is named, or the next.
		next = (next + 1) % len(members)
		var se *shard.Error
		if errors.As(err, &se) && se.Master != "" {
			if i := slices.IndexFunc(members, func(m *member) bool { return m.id == se.Master }); i >= 0 {
				next = i
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// goesOn waits until more was added.
func (l *load) goesOn(what string) {
	l.g.t.Helper()
	at := l.done.Load()
	eventually(l.g.t, "it is written "+what, func() bool { return l.done.Load() >= at+20 || l.g.t.Failed() })
}

// end stops it and returns what was acknowledged and what was there before.
func (l *load) end(before []string) []string {
	l.g.t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	if l.g.t.Failed() {
		l.g.t.FailNow()
	}
	l.g.t.Logf("%d writes, %d of them repeated because their outcome was unknown", l.done.Load(), l.unknown.Load())
	return slices.Sorted(slices.Values(append(l.added, before...)))
}

func TestAddMember_bySnapshotWhileItIsWritten(t *testing.T) {
	t.Parallel()
	g := newGroupOf(t, 1, func(m *member) { m.options = smallLog })
	want := g.outrun("a")
	for _, id := range []string{"b", "c"} {
		m := idleMember(t, id)
		m.options = smallLog
		m.start()
		g.members = append(g.members, m)
	}
	l := startLoad(g, g.members)
	for _, m := range g.members[1:] {
		err := g.onMaster(func(master *member) error {
			return master.engine.AddMember(testContext(t), engine.Member{ID: m.id, Address: m.address, Voter: true})
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, n := m.tr.Snapshots(); n == 0 {
			t.Errorf("member %s was not filled by a snapshot", m.id)
		}
		if !m.engine.Voice() {
			t.Errorf("member %s has a vote, and does not take part in elections", m.id)
		}
		l.goesOn("with member " + m.id)
	}
	want = l.end(want)
	// A hand-over to a new member works at once.
	if err := g.onMaster(func(m *member) error { return m.engine.HandOver(testContext(t), "c") }); err != nil {
		t.Errorf("the mastership is not handed over to a new member: %v", err)
	}
	g.add("zz")
	g.wantEverywhere(append(want, "zz"))
}

func TestHandOver_underLoadLosesNoCall(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	l := startLoad(g, g.members)
	for i := range 6 {
		l.goesOn("by the master of now")
		err := g.onMaster(func(m *member) error {
			to := ""
			if i%2 == 0 {
				to = g.members[(slices.Index(g.members, m)+1)%3].id
			}
			return m.engine.HandOver(testContext(t), to)
		})
		if err != nil {
			t.Errorf("hand-over: %v", err)
		}
	}
	l.goesOn("after all of it")
	g.wantEverywhere(l.end(nil))
}

func TestRemoveMember_ofTheMasterUnderLoad(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	l := startLoad(g, g.members)
	l.goesOn("by three")
	old := g.master()
	if err := g.onMaster(func(m *member) error { return m.engine.RemoveMember(testContext(t), old.id) }); err != nil {
		t.Fatalf("the master cannot be removed: %v", err)
	}
	next := g.master(old)
	l.goesOn("by the two that are left")
	if slices.ContainsFunc(next.engine.Status().Members, func(m engine.Member) bool { return m.ID == old.id }) {
		t.Errorf("the removed member is one still: %+v", next.engine.Status().Members)
	}
	if st := old.engine.Status(); st.State == engine.Master {
		t.Errorf("the removed member is still the master: %+v", st)
	}
	// It may come back.
	err := g.onMaster(func(m *member) error {
		return m.engine.AddMember(testContext(t), engine.Member{ID: old.id, Address: old.address, Voter: true})
	})
	if err != nil {
		t.Errorf("the removed member cannot come back: %v", err)
	}
	l.goesOn("by three again")
	g.wantEverywhere(l.end(nil))
}
