package raftrpc

import (
	"slices"
	"testing"

	"github.com/hashicorp/raft"
)

// floored is a host whose log begins at an entry.
type floored struct {
	Host
	index, term uint64
}

func (f floored) Floor(previous uint64) (uint64, uint64) {
	if previous >= f.index {
		return 0, 0
	}
	return f.index, f.term
}

func TestTrim_leavesOutWhatCannotBeLookedUpAnyMore(t *testing.T) {
	for name, c := range map[string]struct {
		previous     uint64
		entries      []uint64
		wantPrevious uint64
		want         []uint64
	}{
		"all of it is behind the floor":      {10, []uint64{11, 12}, 10, []uint64{11, 12}},
		"it begins behind the floor":         {12, []uint64{13}, 12, []uint64{13}},
		"some of it is known":                {7, []uint64{8, 9, 10, 11, 12}, 10, []uint64{11, 12}},
		"all of it is known":                 {3, []uint64{4, 5, 6}, 10, nil},
		"it has no entries":                  {3, nil, 10, nil},
		"from the very beginning":            {0, []uint64{1, 2}, 10, nil},
		"it has a gap, which Raft refuses":   {3, []uint64{12, 13}, 3, []uint64{12, 13}},
		"the last one known is on the floor": {9, []uint64{10}, 10, nil},
	} {
		req := &raft.AppendEntriesRequest{PrevLogEntry: c.previous, PrevLogTerm: 2}
		for _, i := range c.entries {
			req.Entries = append(req.Entries, &raft.Log{Index: i, Term: 3})
		}
		trim(floored{index: 10, term: 3}, req)
		var got []uint64
		for _, l := range req.Entries {
			got = append(got, l.Index)
		}
		wantTerm := uint64(2)
		if c.wantPrevious == 10 && c.previous != 10 {
			wantTerm = 3
		}
		if req.PrevLogEntry != c.wantPrevious || req.PrevLogTerm != wantTerm || !slices.Equal(got, c.want) {
			t.Errorf("%s: after entry %d of term %d come %v, want %v after %d", name, req.PrevLogEntry, req.PrevLogTerm, got, c.want, c.wantPrevious)
		}
	}
}

func TestTransport_isSilentWhileTheDiskHangs(t *testing.T) {
	a, b := start(t, "a", "c1", nil), start(t, "b", "", nil)
	a.lead(t)
	a.add(t, b)
	term := a.raft.Load().CurrentTerm()
	a.hangs.Store(true)
	if err := a.t.Heartbeat("b", b.t.Address(), term); err == nil {
		t.Error("a heartbeat was sent")
	}
	var vote raft.RequestVoteResponse
	if err := a.t.RequestVote("b", b.t.LocalAddr(), &raft.RequestVoteRequest{Term: term + 1}, &vote); err == nil {
		t.Error("a vote was asked for")
	}
	var appended raft.AppendEntriesResponse
	if err := a.t.AppendEntries("b", b.t.LocalAddr(), &raft.AppendEntriesRequest{Term: term, LeaderCommitIndex: 1}, &appended); err == nil {
		t.Error("entries were sent")
	}
	a.hangs.Store(false)
	eventually(t, "it is heard again", func() bool { return a.t.Heartbeat("b", b.t.Address(), term) == nil })
}
