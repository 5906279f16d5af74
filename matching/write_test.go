package matching

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// writes makes batches of one partition by hand.
type writes struct {
	testing.TB
	r  *router.Router
	id PartitionID
	m  meta
}

func (w *writes) call(fn string, args []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	q := &Queues{router: w.r}
	return w.r.Call(ctx, q.bucketOf(w.id), router.CallRW, fn, args)
}

func (w *writes) take() {
	row, err := w.call(fnTake, takeArgs(w.id.Hash(), 7, w.id.Key()))
	require.NoError(w, err)
	require.NoError(w, w.m.decode(row))
}

func (w *writes) write(number uint64) error {
	m := w.m
	m.batch = number
	var b batch
	b.begin(w.id.Hash(), m.uid, m.rangeID, w.id.Key())
	b.putBody(location{level: 3, pass: number}, m.uid, number, []byte("body"))
	b.seal(&m)
	_, err := w.call(fnWrite, b.args)
	return err
}

func TestWrite_that_does_not_follow_the_last_one_is_refused(t *testing.T) {
	w := &writes{TB: t, r: newStore(t, ""), id: root("n", "q")}
	w.take()
	require.NoError(t, w.write(1))
	require.Equal(t, reason.PartitionMoved, reason.Of(w.write(3)), "a gap")
	require.NoError(t, w.write(2))
	require.Equal(t, reason.PartitionMoved, reason.Of(w.write(2)), "for the second time")
	require.NoError(t, w.write(3))
	w.take()
	require.Equal(t, reason.PartitionMoved, reason.Of(w.write(4)), "a new owner counts from 1")
	require.NoError(t, w.write(1))
	w.m.rangeID--
	require.Equal(t, reason.PartitionMoved, reason.Of(w.write(2)), "of the old owner")
}

// A move finds a body that the same write has put.
func TestMove_of_a_body_sees_the_writes_before_it(t *testing.T) {
	w := &writes{TB: t, r: newStore(t, ""), id: root("n", "q")}
	w.take()
	at := location{level: 3, pass: 5}
	var b batch
	b.begin(w.id.Hash(), w.m.uid, w.m.rangeID, w.id.Key())
	b.putBody(at, w.m.uid, 1, []byte("one"))
	b.parkBody(at, w.m.uid, 1)
	w.m.batch = 1
	b.seal(&w.m)
	_, err := w.call(fnWrite, b.args)
	require.NoError(t, err)
	q := &Queues{router: w.r}
	require.NoError(t, w.r.View(t.Context(), q.bucketOf(w.id), router.CallRO, func(v *storage.View) error {
		loc := at
		body, ok, err := getBody(v, w.m.uid, &loc, 1)
		require.NoError(t, err)
		require.True(t, ok && loc.parked)
		require.Equal(t, "one", string(body))
		return nil
	}))
}

func TestPartition_of_the_first_format_is_read(t *testing.T) {
	w := &writes{TB: t, r: newStore(t, ""), id: root("default", "q")}
	f := newFixture(t, w.r, nil)
	f.makeQueue("q", 1)
	w.take()
	// A partition with three tasks, as the first format had it: one in a worker's
	// hands, two fresh.
	var old []byte
	old = append(old, metaVersion1)
	for _, n := range []uint64{w.m.uid, w.m.rangeID, 4, 2, 2, 0, 1, 0, 0} {
		old = append(old, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	require.Len(t, old, metaSize1)
	var b batch
	b.begin(w.id.Hash(), w.m.uid, w.m.rangeID, w.id.Key())
	now := time.Now().UnixNano()
	var ids []string
	for seq := uint64(1); seq <= 3; seq++ {
		id, err := parseUUID(spec("").GetId())
		require.NoError(t, err)
		ids = append(ids, id.String())
		body := body{id: id, addedAt: now, kind: "k", payload: []byte{byte(seq)}}
		b.putBody(location{level: 3}, w.m.uid, seq, body.append(nil))
		b.putID(w.m.uid, id, &idRow{seq: seq, addedAt: now, loc: location{level: 3}})
		if seq == 1 {
			b.putRow(spaceLeases, w.m.uid, seq, &lease{attempt: 1, deadline: now, duration: 1e9, readyAt: now, nonce: 1, id: id, addedAt: now, loc: location{level: 3}})
		}
	}
	// In the form of the first version: no batch number, the meta row first.
	ops := b.args[b.opsAt:]
	args := append([]byte{writeVersion}, b.args[1:batchAt]...)
	args = append(args, b.args[opsLenAt+4:b.opsAt]...)
	args = append(args, old...)
	args = append(args, ops...)
	_, err := w.call(fnWrite, args)
	require.NoError(t, err)

	f.add("q", spec("new"))
	require.EqualValues(t, 3, f.describe("q").GetCounts().GetReady())
	got := f.poll("q", 10, 0, 0)
	require.Len(t, got, 3)
	require.Equal(t, []byte{2}, got[0].GetPayload())
	require.Equal(t, []byte{3}, got[1].GetPayload())
	require.Equal(t, "new", string(got[2].GetPayload()))
	f.complete("q", got...)
	var again string
	require.Eventually(t, func() bool { // the lease of the first runs out
		for _, task := range f.poll("q", 10, time.Second, 0) {
			again = task.GetId()
			f.complete("q", task)
		}
		return again != ""
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, ids[0], again)
	require.Zero(t, f.describe("q").GetCounts().GetReady())
}
