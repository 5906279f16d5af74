package grouptest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

// newFaultyGroup is newGroup on disks with faults, by member.
func newFaultyGroup(t *testing.T, n int, change func(raftengine.Options) raftengine.Options) (*group, map[*member]*faults) {
	t.Helper()
	disks := make(map[*member]*faults)
	g := newGroupOf(t, n, func(m *member) {
		f := &faults{}
		disks[m] = f
		m.options = func(o raftengine.Options) raftengine.Options {
			if change != nil {
				o = change(o)
			}
			return f.options(o)
		}
	})
	return g, disks
}

// replica returns a member that is not the master.
func (g *group) replica() *member {
	m := g.master()
	for _, r := range g.members {
		if r != m && r.engine != nil {
			return r
		}
	}
	g.t.Fatal("there is no replica")
	return nil
}

func TestFullDisk_ofAnyMemberDoesNotStopTheSet(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"master", "replica"} {
		for _, where := range []string{"log", "rows"} {
			t.Run("the "+where+" of the "+who, func(t *testing.T) {
				t.Parallel()
				g, disks := newFaultyGroup(t, 3, smallLog)
				want := rows("a", 20)
				g.addMany(want)
				victim := g.master()
				if who == "replica" {
					victim = g.replica()
				}
				if where == "log" {
					disks[victim].fullLog.Store(true)
				} else {
					table := ".sst"
					disks[victim].fullRows.Store(&table)
				}
				// Each is acknowledged by a majority, whoever the master is.
				for i := 0; ; i++ {
					if i == 5000 {
						t.Fatal("the member with the full disk does not notice")
					}
					name := rows("b", i+1)[i] + strings.Repeat("y", 500)
					g.add(name)
					want = append(want, name)
					if victim.engine.Status().State == engine.Failed {
						break
					}
				}
				select {
				case err := <-victim.fatal:
					if !errors.Is(err, shard.StoreFailed) {
						t.Errorf("OnFatal: %v", err)
					}
				case <-time.After(30 * time.Second):
					t.Error("nobody was told that the member failed")
				}
				g.add("c", victim)
				// With space again, its process starts anew.
				disks[victim].free()
				victim.kill()
				victim.start()
				g.add("d")
				g.wantEverywhere(append(want, "c", "d"))
			})
		}
	}
}

func TestHangingDisk_ofTheMasterMakesAnotherOneMaster(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	g, disks := newFaultyGroup(t, 3, func(o raftengine.Options) raftengine.Options {
		o.HangTimeout = limit
		return o
	})
	g.add("a")
	old := g.master()
	release := disks[old].hangs()
	defer release()
	under := make(chan error, 1)
	old.engine.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("under way")}, func(_ []byte, err error) { under <- err })
	g.add("b", old) // by another master
	eventually(t, "it says that its disk hangs", func() bool {
		st := old.engine.Status()
		return st.State == engine.Replica && strings.Contains(st.Warning, "hangs")
	})
	if err := old.propose("c"); !errors.Is(err, shard.NonMaster) {
		t.Errorf("a command for the member whose disk hangs: %v", err)
	}
	if err := old.engine.ReadBarrier(testContext(t)); !errors.Is(err, shard.NonMaster) {
		t.Errorf("a read barrier of the member whose disk hangs: %v", err)
	}
	release()
	want := []string{"a", "b"}
	select {
	case err := <-under:
		if err == nil {
			want = append(want, "under way")
		} else if !errors.Is(err, shard.OutcomeUnknown) && !errors.Is(err, shard.NonMaster) {
			t.Errorf("the command that was under way: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the command that was under way has no answer")
	}
	g.add("d")
	g.wantEverywhere(append(want, "d"))
	eventually(t, "it does not warn any more", func() bool { return old.engine.Status().Warning == "" })
}

func TestHangingDisk_ofAReplicaDoesNotStopTheSet(t *testing.T) {
	t.Parallel()
	g, disks := newFaultyGroup(t, 3, nil)
	g.add("a")
	release := disks[g.replica()].hangs()
	defer release()
	want := rows("b", 50)
	for _, name := range want {
		g.add(name)
	}
	release()
	g.wantEverywhere(append([]string{"a"}, want...))
}

// TestHangingDisk_ofAMemberAloneIsWaitedFor: nobody can take its place.
func TestHangingDisk_ofAMemberAloneIsWaitedFor(t *testing.T) {
	t.Parallel()
	g, disks := newFaultyGroup(t, 1, func(o raftengine.Options) raftengine.Options {
		o.HangTimeout = 50 * time.Millisecond
		return o
	})
	g.add("a")
	m := g.master()
	release := disks[m].hangs()
	defer release()
	under := make(chan error, 1)
	m.engine.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("b")}, func(_ []byte, err error) { under <- err })
	eventually(t, "it warns", func() bool { return strings.Contains(m.engine.Status().Warning, "hangs") })
	if st := m.engine.Status(); st.State != engine.Master {
		t.Errorf("status %+v", st)
	}
	release()
	if err := <-under; err != nil {
		t.Error(err)
	}
	g.add("c")
	g.wantEverywhere([]string{"a", "b", "c"})
}

// TestLostDisk_hasNoVoiceUntilItsRowsAreBack: a member that lost its disk does not know what
// it has promised, so it must not help anybody to become the master.
func TestLostDisk_hasNoVoiceUntilItsRowsAreBack(t *testing.T) {
	t.Parallel()
	gate := &sendGate{}
	g := newGroupOf(t, 3, func(m *member) { m.options, m.dial = smallLog, gate.dialOptions(m) })
	want := g.outrun("a")
	victim := g.replica()
	victim.kill()
	if err := os.RemoveAll(victim.dir); err != nil {
		t.Fatal(err)
	}
	more := g.outrun("b")
	want = append(want, more...)
	// The snapshot gets stuck after its first piece.
	stuck := gate.stopAt(2)
	victim.start()
	master := stuck.wait(t)
	if victim.engine.Voice() {
		t.Fatal("a member without its rows takes part in elections")
	}
	// With two of three that may vote and one of them gone, there can be no master.
	master.kill()
	var rest *member
	for _, m := range g.members {
		if m != master && m != victim {
			rest = m
		}
	}
	term := max(rest.engine.Status().Term, victim.engine.Status().Term)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		for _, m := range []*member{rest, victim} {
			if st := m.engine.Status(); st.State == engine.Master && st.Term > term {
				t.Fatalf("member %s became the master by the voice of a member without its rows", m.id)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	stuck.release()
	master.start()
	g.add("c")
	want = append(want, "c")
	eventually(t, "the member has its voice again", victim.engine.Voice)
	g.wantEverywhere(want)
	if _, n := victim.tr.Snapshots(); n == 0 {
		t.Error("the rows did not come by a snapshot")
	}
}

// TestSnapshot_senderMayDieAtEveryStep kills the master while it sends a snapshot.
func TestSnapshot_senderMayDieAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"before the head": 1, "between two pieces": 3, "before the answer": afterLast} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := &sendGate{}
			g := newGroupOf(t, 3, func(m *member) { m.options, m.dial = smallLog, gate.dialOptions(m) })
			want := rows("a", 20)
			g.addMany(want)
			late := g.replica()
			late.kill()
			want = append(want, g.outrun("b")...)
			stuck := gate.stopAt(at)
			late.start()
			master := stuck.wait(t)
			master.kill()
			stuck.release()
			// The two that are left have a majority, and the one that is late gets its rows from the other.
			g.add("c", master)
			want = append(want, "c")
			eventually(t, "it has everything", func() bool { return slices.Equal(late.names(), want) })
			master.start()
			g.add("d")
			g.wantEverywhere(append(want, "d"))
		})
	}
}

// TestFullDisk_ofTheReceiverOfASnapshot lets a member run out of space at each stage of
// taking over a snapshot, and then have space again.
func TestFullDisk_ofTheReceiverOfASnapshot(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"while it comes": "tmp-", "while its rows are linked": "rows-", "when it is to count": "meta.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, disks := newFaultyGroup(t, 3, smallLog)
			want := rows("a", 20)
			g.addMany(want)
			late := g.replica()
			late.kill()
			want = append(want, g.outrun("b")...)
			disks[late].fullRows.Store(&path)
			late.start()
			// The others go on, and this member says nothing wrong.
			more := rows("c", 50)
			for _, name := range more {
				g.add(name)
			}
			want = append(want, more...)
			if path == "meta.json" {
				select {
				case <-late.fatal:
				case <-time.After(30 * time.Second):
					t.Fatal("a member that cannot write down where its rows are goes on")
				}
			}
			disks[late].free()
			if path == "meta.json" {
				late.kill()
				late.start()
			}
			g.wantEverywhere(want)
		})
	}
}
