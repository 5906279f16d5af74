package matching

import (
	"bytes"
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRows_come_back_as_they_were_written(t *testing.T) {
	b := body{
		id: taskID{1, 2}, addedAt: 5, runAt: 6, expiresAt: 7, maxAttempts: 8, leaseTime: 9,
		retry: &retryPolicy{time.Second, time.Minute, 1.5, 0.1}, kind: "kind",
		headers: []header{{"a", "b"}, {"", ""}}, payload: []byte("payload"),
	}
	for _, change := range []func(*body){
		func(*body) {}, func(b *body) { b.runAt = 0 }, func(b *body) { b.expiresAt = 0 }, func(b *body) { b.headers = nil },
		func(b *body) { b.retry, b.maxAttempts, b.leaseTime = nil, 0, 0 }, func(b *body) { b.payload = []byte{} },
		func(b *body) { b.level, b.weight, b.fairKey = 5, 0.5, "tenant" }, func(b *body) { b.fairKey, b.runAt = "x", 0 },
	} {
		want, got := b, body{}
		change(&want)
		row := want.append(nil)
		require.NoError(t, got.decode(row))
		require.Equal(t, want, got)
		require.Equal(t, want.expiresAt, bodyExpiresAt(row))
		require.Equal(t, want.addedAt, bodyAddedAt(row))
		id, err := bodyID(row)
		require.NoError(t, err)
		require.Equal(t, want.id, id)
		level, key, weight := bodyShare(row)
		require.Equal(t, cmp.Or(want.level, defaultLevel), level)
		require.Equal(t, want.fairKey, string(key))
		require.Equal(t, cmp.Or(want.weight, 1), weight)
	}

	l := lease{attempt: 3, deadline: 4, duration: 5, readyAt: 6, nonce: 7, id: taskID{9}, addedAt: 8, loc: location{level: 3, pass: 12},
		identity: "w", lastError: "e", policy: attemptPolicy{2, &retryPolicy{1, 2, 3, 4}}}
	var l2 lease
	require.NoError(t, l2.decode(l.append(nil)))
	require.Equal(t, l, l2)

	s := scheduled{attempt: 2, loc: location{parked: true}, lastError: "x"}
	var s2 scheduled
	require.NoError(t, s2.decode(s.append(nil)))
	require.Equal(t, s, s2)

	d := deadRow{attempt: 2, loc: location{level: 5}, deadAt: 77, lastError: "x"}
	var d2 deadRow
	require.NoError(t, d2.decode(d.append(nil)))
	require.Equal(t, d, d2)

	i := idRow{seq: 4, addedAt: 5, loc: location{level: 3, pass: 99}, ending: endingExpired}
	var i2 idRow
	require.NoError(t, i2.decode(i.append(nil)))
	require.Equal(t, i, i2)

	m := meta{uid: 1, rangeID: 2, batch: 3, nextSeq: 4, lastAdded: -5, counts: counts{11, 6, 7, 8}, legacyFrom: 9}
	m.used = 1<<1 | 1<<5
	m.levels[1] = levelMeta{10, 11, 12, 13}
	m.levels[5] = levelMeta{1, 0, 0, 0}
	var m2 meta
	require.NoError(t, m2.decode(m.append(nil)))
	require.Equal(t, m, m2)

	tok := token{0, 1, 2, 3, taskID{4}, "w"}
	tok2, ok := parseToken(tok.append(nil))
	require.True(t, ok)
	require.Equal(t, tok, tok2)
}

func TestRow_of_a_newer_version_is_refused(t *testing.T) {
	var m meta
	row := m.append(nil)
	row[0] = metaVersion + 1
	require.ErrorContains(t, m.decode(row), "upgrade")
}

// FuzzRows decodes anything without a panic, and what decodes is written back the
// same way.
func FuzzRows(f *testing.F) {
	b := body{id: taskID{1}, kind: "k", headers: []header{{"a", "b"}}, retry: &retryPolicy{1, 2, 3, 4}, payload: []byte("p")}
	f.Add(b.append(nil))
	l := lease{identity: "w", policy: attemptPolicy{2, &retryPolicy{1, 2, 3, 4}}}
	f.Add(l.append(nil))
	s := scheduled{lastError: "x"}
	f.Add(s.append(nil))
	var w batch
	w.begin(1, 2, 3, "key")
	w.putBody(location{level: 3}, 1, 2, []byte("b"))
	f.Add(w.args)
	f.Fuzz(func(t *testing.T, row []byte) {
		var b body
		if b.decode(row) == nil {
			var again body
			if err := again.decode(b.append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		var l lease
		if l.decode(row) == nil {
			var again lease
			if err := again.decode(l.append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		var s scheduled
		_ = s.decode(row)
		var d deadRow
		_ = d.decode(row)
		var i idRow
		_ = i.decode(row)
		var m meta
		_ = m.decode(row)
		_, _ = parseToken(row)
		_ = bodyExpiresAtSafe(row)
		var w writeArgs
		if w.decode(row) == nil {
			for len(w.ops) > 0 {
				if _, _, _, _, err := w.next(); err != nil {
					break
				}
			}
		}
	})
}

func bodyExpiresAtSafe(row []byte) int64 {
	if _, err := bodyID(row); err != nil {
		return 0
	}
	return bodyExpiresAt(row)
}

func TestKeys_sort_as_numbers(t *testing.T) {
	require.Negative(t, bytes.Compare(appendSeqKey(nil, 1, 255), appendSeqKey(nil, 1, 256)))
	require.Negative(t, bytes.Compare(appendScheduleKey(nil, 1, 5, 9), appendScheduleKey(nil, 1, 6, 1)))
	require.Negative(t, bytes.Compare(appendSeqKey(nil, 1, 1<<63), uidEnd(1)))
}
