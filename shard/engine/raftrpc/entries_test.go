package raftrpc

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func entriesOf(sizes ...int) (logs []*raft.Log) {
	for i, size := range sizes {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(i + j)
		}
		logs = append(logs, &raft.Log{Index: uint64(7 + i), Term: 3, Data: data, Extensions: []byte{byte(i)}, AppendedAt: time.Unix(0, int64(i))})
	}
	return logs
}

func TestSplit_andJoinAreTheSameRequest(t *testing.T) {
	for _, sizes := range [][]int{{}, {0}, {1, 2, 3}, {messageBytes}, {messageBytes + 1}, {10, 2*messageBytes + 9, 10}, {messageBytes / 2, messageBytes / 2, messageBytes / 2}, {4 * messageBytes, 4 * messageBytes}} {
		req := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 6, PrevLogTerm: 2, LeaderCommitIndex: 5, Entries: entriesOf(sizes...)}
		j := joiner{max: DefaultMaxRequestBytes}
		var got *raft.AppendEntriesRequest
		err := split(req, func(m *v1.AppendEntriesRequest) (err error) {
			if got != nil {
				t.Fatalf("%v: a message follows the last one", sizes)
			}
			if n := proto.Size(m); n > 2*messageBytes {
				t.Errorf("%v: a message has %d bytes", sizes, n)
			}
			got, err = j.add("a", m)
			return err
		})
		if err != nil || got == nil {
			t.Fatalf("%v: %v, %v", sizes, got, err)
		}
		if got.Term != 3 || got.PrevLogEntry != 6 || got.PrevLogTerm != 2 || got.LeaderCommitIndex != 5 || len(got.Entries) != len(req.Entries) {
			t.Fatalf("%v: %+v", sizes, got)
		}
		for i, l := range got.Entries {
			want := req.Entries[i]
			if l.Index != want.Index || l.Term != want.Term || !bytes.Equal(l.Data, want.Data) || !bytes.Equal(l.Extensions, want.Extensions) || i > 0 && !l.AppendedAt.Equal(want.AppendedAt) {
				t.Errorf("%v: entry %d is not what was sent", sizes, i)
			}
		}
	}
}

func TestLimit_cutsARequestButNotItsFirstEntry(t *testing.T) {
	req := &raft.AppendEntriesRequest{Entries: entriesOf(requestBytes+1, 1, 1)}
	if limit(req); len(req.Entries) != 1 {
		t.Errorf("%d entries are left, want the large one alone", len(req.Entries))
	}
	req = &raft.AppendEntriesRequest{Entries: entriesOf(requestBytes/2, requestBytes/4, requestBytes)}
	if limit(req); len(req.Entries) != 2 {
		t.Errorf("%d entries are left, want 2", len(req.Entries))
	}
}

func TestJoiner_refusesWhatCannotBe(t *testing.T) {
	e := func(index uint64, partial bool) *v1.RaftEntry {
		return &v1.RaftEntry{Index: index, Term: 1, Data: []byte("0123456789"), Partial: partial}
	}
	msg := func(more bool, entries ...*v1.RaftEntry) *v1.AppendEntriesRequest {
		return &v1.AppendEntriesRequest{Entries: entries, More: more}
	}
	for name, msgs := range map[string][]*v1.AppendEntriesRequest{
		"a gap":                 {msg(false, e(1, false), e(3, false))},
		"index 0":               {msg(false, e(0, false))},
		"an unknown type":       {msg(false, &v1.RaftEntry{Index: 1, Type: 99})},
		"an end in the middle":  {msg(false, e(1, true))},
		"a cut in the middle":   {msg(true, e(1, true), e(2, false))},
		"too much":              {msg(true, e(1, false)), msg(true, e(2, false)), msg(false, e(3, false))},
		"too much of one entry": {msg(true, e(1, true)), msg(true, &v1.RaftEntry{Data: make([]byte, 200), Partial: true})},
	} {
		j := joiner{max: 150}
		var err error
		for _, m := range msgs {
			var req *raft.AppendEntriesRequest
			if req, err = j.add("a", m); req != nil {
				t.Errorf("%s: taken", name)
			}
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzJoiner_neverPanics(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint64(1), true, true)
	f.Fuzz(func(t *testing.T, data []byte, index uint64, partial, more bool) {
		j := joiner{max: 1 << 10}
		for i := range uint64(4) {
			m := &v1.AppendEntriesRequest{More: more, Entries: []*v1.RaftEntry{{Index: index + i, Data: data, Partial: partial}, {Index: index + 2*i, Type: uint32(i)}}}
			if _, err := j.add("a", m); err != nil {
				return
			}
			_ = checkConfiguration(data)
		}
	})
}
