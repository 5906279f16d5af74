package wal

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// journal is a state machine that remembers commands in order.
type journal struct {
	mu       sync.Mutex
	commands []string
}

func (j *journal) Apply(l *raft.Log) any {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.commands = append(j.commands, string(l.Data))
	return nil
}
func (j *journal) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("no snapshots here") }
func (j *journal) Restore(io.ReadCloser) error         { return fmt.Errorf("no snapshots here") }

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.commands...)
}

type member struct {
	raft   *raft.Raft
	log    *Log
	fsm    *journal
	trans  *raft.InmemTransport
	closed bool
}

func start(t *testing.T, fs FS, id raft.ServerID, servers []raft.Server, fresh bool) *member {
	t.Helper()
	l, _, err := Open("/"+string(id)+"/log", Options{FS: fs, SegmentBytes: MinSegmentBytes})
	require.NoError(t, err)
	last, err := l.LastIndex()
	require.NoError(t, err)
	s, err := OpenStable("/"+string(id), StableOptions{FS: fs, MustExist: last > 0})
	require.NoError(t, err)
	conf := raft.DefaultConfig()
	conf.LocalID = id
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout, conf.CommitTimeout = 100*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond, 5*time.Millisecond
	conf.Logger = hclog.NewNullLogger()
	_, trans := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 200*time.Millisecond)
	snaps := raft.NewInmemSnapshotStore()
	if fresh {
		require.NoError(t, raft.BootstrapCluster(conf, l, s, snaps, trans, raft.Configuration{Servers: servers}))
	}
	m := &member{log: l, fsm: &journal{}, trans: trans}
	m.raft, err = raft.NewRaft(conf, m.fsm, l, s, snaps, trans)
	require.NoError(t, err)
	t.Cleanup(m.stop)
	return m
}

func (m *member) stop() {
	if m.closed {
		return
	}
	m.closed = true
	_ = m.raft.Shutdown().Error()
	_ = m.log.Close()
}

func TestRaft_commandsSurvivePowerCuts(t *testing.T) {
	fs := newPowerFS(5)
	var acked []string
	servers := []raft.Server{{ID: "a", Address: "a"}}
	for round := range 5 {
		m := start(t, fs, "a", servers, round == 0)
		require.Eventually(t, func() bool { return m.raft.State() == raft.Leader }, 10*time.Second, time.Millisecond)
		require.NoError(t, m.raft.Barrier(10*time.Second).Error())
		require.Equal(t, acked, m.fsm.all()[:len(acked)])
		acked = m.fsm.all()
		for i := range 100 {
			cmd := fmt.Sprintf("command %d of round %d", i, round)
			if m.raft.Apply([]byte(cmd), 10*time.Second).Error() != nil {
				break
			}
			acked = append(acked, cmd)
			if i == 80 {
				// From here on nothing is acknowledged; the log fails in the middle of a command.
				fs.set(func(p *powerFS) { p.cutAt = p.ops + 2 })
			}
		}
		cut := fs.cut()
		m.stop()
		fs = cut
	}
	require.Greater(t, len(acked), 400)
}

func TestRaft_aFollowerDropsWhatWasNeverCommitted(t *testing.T) {
	servers := []raft.Server{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}, {ID: "c", Address: "c"}}
	var ms []*member
	connect := func(on bool, one *member) {
		for _, m := range ms {
			if m == one {
				continue
			}
			if on {
				m.trans.Connect(one.trans.LocalAddr(), one.trans)
				one.trans.Connect(m.trans.LocalAddr(), m.trans)
			} else {
				m.trans.Disconnect(one.trans.LocalAddr())
				one.trans.Disconnect(m.trans.LocalAddr())
			}
		}
	}
	for _, s := range servers {
		ms = append(ms, start(t, newPowerFS(1), s.ID, servers, true))
	}
	for _, m := range ms {
		connect(true, m)
	}
	leader := func(not *member) (found *member) {
		require.Eventually(t, func() bool {
			for _, m := range ms {
				if m != not && m.raft.State() == raft.Leader && m.raft.VerifyLeader().Error() == nil {
					found = m
					return true
				}
			}
			return false
		}, 20*time.Second, 5*time.Millisecond)
		return found
	}
	old := leader(nil)
	for i := range 30 {
		require.NoError(t, old.raft.Apply([]byte(fmt.Sprint("shared ", i)), 5*time.Second).Error())
	}
	connect(false, old)
	for i := range 5 {
		old.raft.Apply([]byte(fmt.Sprint("lost ", i)), time.Second)
	}
	fresh := leader(old)
	for i := range 30 {
		require.NoError(t, fresh.raft.Apply([]byte(fmt.Sprint("kept ", i)), 5*time.Second).Error())
	}
	connect(true, old)
	want := fresh.fsm.all()
	require.Len(t, want, 60)
	require.Eventually(t, func() bool { return len(old.fsm.all()) == 60 }, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, want, old.fsm.all())
}
