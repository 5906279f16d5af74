package raftrpc

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const (
	// messageBytes is about how large one message with entries gets. It must stay well
	// below the 4 MiB that a gRPC server takes by default.
	messageBytes = 512 << 10
	// requestBytes is where a request with several entries ends: what follows goes with the
	// next one.
	requestBytes = 8 << 20
	// entryOverhead is what an entry costs beside its data, roughly.
	entryOverhead = 48
)

func entryBytes(l *raft.Log) int64 { return int64(len(l.Data)+len(l.Extensions)) + entryOverhead }

// limit shortens a request to what is sent at once. Raft looks at the request afterwards
// to see what it has sent.
func limit(req *raft.AppendEntriesRequest) (size int64) {
	for i, l := range req.Entries {
		n := entryBytes(l)
		if i > 0 && size+n > requestBytes {
			req.Entries = req.Entries[:i]
			break
		}
		size += n
	}
	return size
}

// split calls send with the messages that make up req.
func split(req *raft.AppendEntriesRequest, send func(*v1.AppendEntriesRequest) error) error {
	msg := &v1.AppendEntriesRequest{
		Term: req.Term, PreviousIndex: req.PrevLogEntry, PreviousTerm: req.PrevLogTerm, CommitIndex: req.LeaderCommitIndex,
	}
	var slab []v1.RaftEntry // one allocation for all
	if n := len(req.Entries); n > 0 {
		msg.Entries = make([]*v1.RaftEntry, 0, n)
		slab = make([]v1.RaftEntry, n)
	}
	size := 0
	flush := func() error {
		msg.More = true
		err := send(msg)
		msg, size = &v1.AppendEntriesRequest{}, 0
		return err
	}
	for i, l := range req.Entries {
		if size > 0 && size+int(entryBytes(l)) > messageBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		e := &slab[i]
		e.Index, e.Term, e.Type, e.Extensions = l.Index, l.Term, uint32(l.Type), l.Extensions
		if !l.AppendedAt.IsZero() {
			e.AppendedAt = l.AppendedAt.UnixNano()
		}
		data := l.Data
		for len(data) > messageBytes {
			e.Data, e.Partial = data[:messageBytes], true
			data = data[messageBytes:]
			msg.Entries = append(msg.Entries, e)
			if err := flush(); err != nil {
				return err
			}
			e = &v1.RaftEntry{}
		}
		e.Data = data
		msg.Entries = append(msg.Entries, e)
		size += len(data) + len(l.Extensions) + entryOverhead
	}
	return send(msg)
}

// joiner puts requests together again from their messages.
type joiner struct {
	max     int64
	size    int64
	req     *raft.AppendEntriesRequest
	partial bool
}

// add takes the next message and returns the request that it completes, or nil.
func (j *joiner) add(from string, msg *v1.AppendEntriesRequest) (*raft.AppendEntriesRequest, error) {
	if j.req == nil {
		j.req = &raft.AppendEntriesRequest{
			RPCHeader: header(from), Term: msg.GetTerm(),
			PrevLogEntry: msg.GetPreviousIndex(), PrevLogTerm: msg.GetPreviousTerm(), LeaderCommitIndex: msg.GetCommitIndex(),
		}
		j.size = 0
	}
	logs := make([]raft.Log, len(msg.GetEntries()))
	for i, e := range msg.GetEntries() {
		j.size += int64(len(e.GetData())+len(e.GetExtensions())) + entryOverhead
		if j.size > j.max {
			return nil, fmt.Errorf("a request with entries has more than %d bytes", j.max)
		}
		if j.partial {
			if i > 0 || len(j.req.Entries) == 0 {
				return nil, fmt.Errorf("an entry of the log does not go on where it should")
			}
			last := j.req.Entries[len(j.req.Entries)-1]
			last.Data = append(last.Data, e.GetData()...)
			j.partial = e.GetPartial()
			continue
		}
		if e.GetType() > uint32(raft.LogConfiguration) {
			return nil, fmt.Errorf("an entry of the log has type %d, which this version does not know", e.GetType())
		}
		if n := len(j.req.Entries); n > 0 && e.GetIndex() != j.req.Entries[n-1].Index+1 || e.GetIndex() == 0 {
			return nil, fmt.Errorf("entry %d of the log comes where another one should", e.GetIndex())
		}
		logs[i] = raft.Log{Index: e.GetIndex(), Term: e.GetTerm(), Type: raft.LogType(e.GetType()), Data: e.GetData(), Extensions: e.GetExtensions()}
		if at := e.GetAppendedAt(); at != 0 {
			logs[i].AppendedAt = time.Unix(0, at)
		}
		j.req.Entries = append(j.req.Entries, &logs[i])
		j.partial = e.GetPartial()
		if j.partial && i != len(logs)-1 {
			return nil, fmt.Errorf("entry %d of the log is cut in the middle of a message", e.GetIndex())
		}
	}
	if msg.GetMore() {
		return nil, nil
	}
	if j.partial {
		return nil, fmt.Errorf("the last entry of a request is not whole")
	}
	for _, l := range j.req.Entries {
		if l.Type == raft.LogConfiguration {
			if err := checkConfiguration(l.Data); err != nil {
				return nil, fmt.Errorf("entry %d of the log: %w", l.Index, err)
			}
		}
	}
	req := j.req
	j.req = nil
	return req, nil
}
