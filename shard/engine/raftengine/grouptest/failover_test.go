package grouptest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

func TestFailover_ofAKilledMasterLosesNothing(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	want := rows("a", 50)
	for _, name := range want {
		g.add(name)
	}
	old := g.master()
	old.kill()
	start := time.Now()
	more := rows("b", 50)
	for _, name := range more {
		g.add(name)
	}
	t.Logf("50 writes after the master was killed took %v", time.Since(start))
	want = append(want, more...)
	g.wantEverywhere(want)
	old.start()
	g.add("c")
	g.wantEverywhere(append(want, "c"))
}

func TestReplica_refusesCommandsAndNamesTheMaster(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.add("a")
	for _, r := range g.members {
		eventually(t, "member "+r.id+" as a replica refuses what only the master may do, and names it", func() bool {
			m := g.master()
			if m == r {
				_ = m.engine.HandOver(testContext(t), "") // tried again
				return false
			}
			var e *shard.Error
			st := r.engine.Status()
			return errors.As(r.propose("x"), &e) && e.Code == shard.NonMaster && e.Master == m.id &&
				errors.Is(r.engine.ReadBarrier(testContext(t)), shard.NonMaster) &&
				st.State == engine.Replica && st.Master == m.id && len(st.Members) == 3
		})
	}
	if err := g.onMaster(func(m *member) error { return m.engine.ReadBarrier(testContext(t)) }); err != nil {
		t.Errorf("a read barrier of the master gives %v", err)
	}
}

func TestCutOffMaster_refusesReadsAndDoesNotClaimWrites(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.add("a")
	old := g.master()
	old.cut.Store(true)
	answer := make(chan error, 1)
	old.engine.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("lost")}, func(_ []byte, err error) { answer <- err })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := old.engine.ReadBarrier(ctx); !errors.Is(err, shard.NonMaster) {
		t.Errorf("a read barrier of a master that is cut off gives %v", err)
	}
	select {
	case err := <-answer:
		if !errors.Is(err, shard.OutcomeUnknown) && !errors.Is(err, shard.NonMaster) {
			t.Errorf("a write at a master that is cut off gives %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a write at a master that is cut off has no answer")
	}
	g.add("b", old)
	old.cut.Store(false)
	g.add("c")
	g.wantEverywhere([]string{"a", "b", "c"})
}

func TestHandOver_goesToTheMemberThatWasNamed(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	g.add("a")
	for i := range 4 {
		to := g.members[(i+1)%3]
		if err := g.onMaster(func(m *member) error { return m.engine.HandOver(testContext(t), to.id) }); err != nil {
			t.Errorf("hand-over to member %s: %v", to.id, err)
		}
	}
	g.add("b")
	g.wantEverywhere([]string{"a", "b"})
}

func TestMember_thatLostItsDiskIsFilledAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	want := rows("a", 100)
	for _, name := range want {
		g.add(name)
	}
	m := g.master()
	victim := g.members[0]
	if victim == m {
		victim = g.members[1]
	}
	victim.kill()
	if err := os.RemoveAll(victim.dir); err != nil {
		t.Fatal(err)
	}
	victim.start()
	g.add("b")
	want = append(want, "b")
	g.wantEverywhere(want)
	// It counts again: the group goes on without one of the others.
	m = g.master()
	for _, other := range g.members {
		if other != m && other != victim {
			other.kill()
		}
	}
	g.add("c")
	g.wantEverywhere(append(want, "c"))
}
