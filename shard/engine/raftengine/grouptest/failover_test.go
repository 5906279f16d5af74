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
	m := g.master()
	for _, r := range g.members {
		if r == m {
			continue
		}
		eventually(t, "the replica knows its master", func() bool { return r.engine.Status().Master == m.id })
		var e *shard.Error
		if err := r.propose("x"); !errors.As(err, &e) || e.Code != shard.NonMaster || e.Master != m.id {
			t.Errorf("member %s: %v, want NON_MASTER that names %s", r.id, err, m.id)
		}
		if err := r.engine.ReadBarrier(testContext(t)); !errors.Is(err, shard.NonMaster) {
			t.Errorf("member %s: a read barrier gives %v", r.id, err)
		}
		if st := r.engine.Status(); st.State != engine.Replica || len(st.Members) != 3 {
			t.Errorf("member %s: status %+v", r.id, st)
		}
	}
	if err := m.engine.ReadBarrier(testContext(t)); err != nil {
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
	for range 3 {
		m := g.master()
		to := g.members[0]
		if to == m {
			to = g.members[1]
		}
		// Members that were added a moment ago take no part in elections yet.
		eventually(t, "the mastership is handed over", func() bool { return m.engine.HandOver(testContext(t), to.id) == nil })
		eventually(t, "the other member is the master", func() bool { return to.engine.Status().State == engine.Master })
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

func TestMembers_comeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	stop, done := make(chan struct{}), make(chan []string, 1)
	first := g.members[0]
	go func() {
		var added []string
		for _, name := range rows("a", 1000) {
			if err := first.propose(name); err != nil {
				t.Errorf("add %s: %v", name, err)
				break
			}
			added = append(added, name)
			select {
			case <-stop:
				done <- added
				return
			default:
			}
		}
		<-stop
		done <- added
	}()
	for _, id := range []string{"b", "c"} {
		m := newMember(t, id)
		if err := first.engine.AddMember(testContext(t), engine.Member{ID: id, Address: m.address, Voter: true}); err != nil {
			t.Fatal(err)
		}
		g.members = append(g.members, m)
	}
	if err := first.engine.RemoveMember(testContext(t), "b"); err != nil {
		t.Fatal(err)
	}
	close(stop)
	want := <-done
	g.members[1].kill()
	g.wantEverywhere(want)
	if st := first.engine.Status(); len(st.Members) != 2 {
		t.Errorf("members %+v, want a and c", st.Members)
	}
}
