package matching

import (
	"encoding/binary"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
)

func appendUUID(b []byte, id taskID) []byte {
	const hex = "0123456789abcdef"
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, hex[c>>4], hex[c&15])
	}
	return b
}

func parseUUID(s string) (taskID, error) {
	u, err := uuid.Parse(s)
	if err != nil {
		return taskID{}, reason.New(codes.InvalidArgument, reason.InvalidTaskID, nil, "task id %q is not a UUID", s)
	}
	return taskID(u), nil
}

func (id taskID) String() string { return string(appendUUID(nil, id)) }

// token is a lease token: which lease of which task of which partition. One of a
// sticky queue, version 2, has the worker's name behind the rest.
type token struct {
	partition  int32
	uid        uint64
	seq, nonce uint64
	id         taskID
	sticky     string
}

const (
	tokenVersion       = 1
	tokenVersionSticky = 2
	tokenSize          = 1 + 4 + 8 + 8 + 8 + 16
)

func (t token) append(b []byte) []byte {
	version := byte(tokenVersion)
	if t.sticky != "" {
		version = tokenVersionSticky
	}
	b = append(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(t.partition))
	b = binary.BigEndian.AppendUint64(b, t.uid)
	b = binary.BigEndian.AppendUint64(b, t.seq)
	b = binary.BigEndian.AppendUint64(b, t.nonce)
	b = append(b, t.id[:]...)
	return append(b, t.sticky...)
}

func parseToken(b []byte) (t token, ok bool) {
	switch {
	case len(b) == tokenSize && b[0] == tokenVersion:
	case len(b) > tokenSize && b[0] == tokenVersionSticky:
		t.sticky = string(b[tokenSize:])
	default:
		return t, false
	}
	t.partition = int32(binary.BigEndian.Uint32(b[1:]))
	t.uid = binary.BigEndian.Uint64(b[5:])
	t.seq = binary.BigEndian.Uint64(b[13:])
	t.nonce = binary.BigEndian.Uint64(b[21:])
	copy(t.id[:], b[29:])
	return t, true
}

var errInvalidToken = reason.New(codes.InvalidArgument, reason.InvalidLeaseToken, nil,
	"the lease token is not one of this queue's: use the token as PollTasks returned it")
