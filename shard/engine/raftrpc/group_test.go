package raftrpc

import (
	"context"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func TestGroup_entriesOfAllSizesReachEveryMember(t *testing.T) {
	a, b, c := start(t, "a", "c1", nil), start(t, "b", "", nil), start(t, "c", "", nil)
	a.lead(t)
	a.add(t, b)
	a.add(t, c)
	var total uint64
	sizes := []int{0, 1, 300, messageBytes, messageBytes + 1, 3*messageBytes + 5, requestBytes + 100}
	for _, size := range sizes {
		a.apply(t, make([]byte, size))
		total += uint64(size)
	}
	// Many at once make requests that are cut short.
	var waiting []raft.ApplyFuture
	for range 40 {
		waiting = append(waiting, a.raft.Load().Apply(make([]byte, messageBytes), 0))
		total += messageBytes
	}
	for _, f := range waiting {
		if err := f.Error(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*node{a, b, c} {
		eventually(t, "member "+n.id+" has everything", func() bool {
			count, bytes := n.fsm.read()
			return count == uint64(len(sizes)+40) && bytes == total
		})
		if id := n.ClusterID(); id != "c1" {
			t.Errorf("member %s believes to be in cluster %q", n.id, id)
		}
	}
	eventually(t, "the master knows what the others have", func() bool {
		last, term := a.raft.Load().LastIndex(), a.raft.Load().CurrentTerm()
		mb, _ := a.t.Progress("b", term)
		mc, seen := a.t.Progress("c", term)
		return mb == last && mc == last && !seen.IsZero()
	})
}

func TestGroup_anotherMasterIsElected(t *testing.T) {
	a, b, c := start(t, "a", "c1", nil), start(t, "b", "", nil), start(t, "c", "", nil)
	a.lead(t)
	a.add(t, b)
	a.add(t, c)
	a.apply(t, []byte("one"))
	for _, n := range []*node{b, c} {
		eventually(t, "member "+n.id+" has the command", func() bool { count, _ := n.fsm.read(); return count == 1 })
	}
	_ = a.t.Close() // cuts it off
	var next *node
	eventually(t, "another member is the master", func() bool {
		for _, n := range []*node{b, c} {
			if n.raft.Load().State() == raft.Leader {
				next = n
				return true
			}
		}
		return false
	})
	next.apply(t, []byte("two"))
	if n, _ := next.fsm.read(); n != 2 {
		t.Errorf("the new master has applied %d commands, want 2", n)
	}
}

func TestGroup_mastershipIsHandedOver(t *testing.T) {
	a, b := start(t, "a", "c1", nil), start(t, "b", "", nil)
	a.lead(t)
	a.add(t, b)
	eventually(t, "the mastership goes over", func() bool {
		if a.raft.Load().State() == raft.Leader {
			_ = a.raft.Load().LeadershipTransferToServer("b", b.t.LocalAddr()).Error() // tried again when it fails
		}
		return b.raft.Load().State() == raft.Leader
	})
}

func TestGroup_aMemberWithoutTheLogGetsASnapshot(t *testing.T) {
	a, b := start(t, "a", "c1", nil), start(t, "b", "", nil)
	a.lead(t)
	for range 20 {
		a.apply(t, []byte("x"))
	}
	if err := a.raft.Load().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	a.apply(t, []byte("x"))
	a.add(t, b)
	eventually(t, "the new member has everything", func() bool { n, _ := b.fsm.read(); return n == 21 })
	sent, _ := a.t.Snapshots()
	_, received := b.t.Snapshots()
	if sent != 1 || received != 1 || b.installed.Load() != 1 {
		t.Errorf("%d snapshots sent, %d received, %d installed; want one each", sent, received, b.installed.Load())
	}
}

func TestGroup_aMemberWithoutAVoiceIsNoHelpInAnElection(t *testing.T) {
	a, b := start(t, "a", "c1", nil), start(t, "b", "", nil)
	b.mute.Store(true)
	a.lead(t)
	a.add(t, b)
	term := a.raft.Load().CurrentTerm()
	if err := a.t.Heartbeat("b", string(b.t.LocalAddr()), term); err != nil {
		t.Fatal(err)
	}
	if got := a.t.Confirmed("b", term); got != 0 {
		t.Errorf("a heartbeat to a member without a voice confirmed stamp %d", got)
	}
	var resp raft.RequestVoteResponse
	err := a.t.RequestVote("b", b.t.LocalAddr(), &raft.RequestVoteRequest{Term: term + 1}, &resp)
	if status.Code(err) != codes.FailedPrecondition || resp.Granted {
		t.Errorf("a member without a voice was asked for its vote: %v, granted %t", err, resp.Granted)
	}
	if err := b.t.RequestVote("a", a.t.LocalAddr(), &raft.RequestVoteRequest{Term: term + 1}, &resp); err == nil {
		t.Error("a member without a voice asked for votes")
	}
	b.mute.Store(false)
	stamp := a.t.Stamp()
	if err := a.t.Heartbeat("b", string(b.t.LocalAddr()), term); err != nil {
		t.Fatal(err)
	}
	if got := a.t.Confirmed("b", term); got <= stamp {
		t.Errorf("confirmed stamp %d, want one after %d", got, stamp)
	}
}

// call sends a heartbeat as anybody could.
func heartbeat(t *testing.T, n *node, sender *v1.RaftSender) error {
	t.Helper()
	c, err := grpc.NewClient(n.t.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = v1.NewRaftServiceClient(c).Heartbeat(context.Background(), &v1.HeartbeatRequest{Sender: sender, Term: 0})
	return err
}

func TestServer_refusesWhatIsNotForIt(t *testing.T) {
	n := start(t, "b", "c1", nil)
	good := func() *v1.RaftSender {
		return &v1.RaftSender{ClusterId: "c1", ReplicaSet: "set-1", From: "a", To: "b"}
	}
	if err := heartbeat(t, n, good()); err != nil {
		t.Fatalf("a good message is refused: %v", err)
	}
	for name, spoil := range map[string]func(*v1.RaftSender){
		"another cluster":     func(s *v1.RaftSender) { s.ClusterId = "c2" },
		"another replica set": func(s *v1.RaftSender) { s.ReplicaSet = "set-2" },
		"another member":      func(s *v1.RaftSender) { s.To = "x" },
		"the same name":       func(s *v1.RaftSender) { s.From = "b" },
		"nobody":              func(s *v1.RaftSender) { s.From = "" },
	} {
		s := good()
		spoil(s)
		if err := heartbeat(t, n, s); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a message of %s: %v", name, err)
		}
	}
	if err := heartbeat(t, n, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a message without a sender: %v", err)
	}
}

func TestTransport_afterCloseNothingGoes(t *testing.T) {
	a, b := bare(t, "a", "c1", nil), bare(t, "b", "c1", nil)
	if err := a.t.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.t.Heartbeat("b", b.t.Address(), 1); err == nil {
		t.Error("a closed transport sent a heartbeat")
	}
	if err := b.t.Heartbeat("a", a.t.Address(), 1); status.Code(err) != codes.Unavailable {
		t.Errorf("a closed transport answered: %v", err)
	}
}
