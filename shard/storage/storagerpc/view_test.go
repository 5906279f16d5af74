package storagerpc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// newRows serves a storage with n rows in bucket 3.
func newRows(t testing.TB, n int, opts ServerOptions) (*storage.Storage, *Client) {
	t.Helper()
	s := newStorage(t, "", storage.NewRegistry())
	ctx := testContext(t)
	done := make(chan error, n)
	for i := range n {
		key := fmt.Appendf(nil, "%06d", i)
		s.WriteAsync(3, storage.KVPut, storage.KVPutArgs(uint32(i), key, bytes.Repeat(key, 20)), func(_ []byte, err error) { done <- err })
	}
	for range n {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	opts.Storage = s
	_, address := serve(t, opts)
	return s, dial(t, address, ClientOptions{})
}

// scan returns all that a scan gives, as text.
func scan(v *storage.View, from, to []byte, reverse bool, limit int, get bool) (out []string, err error) {
	err = v.Scan(storage.SpaceKV, from, to, reverse, func(key, value []byte) bool {
		out = append(out, string(key)+"="+string(value))
		if get {
			got, ok, gerr := v.Get(storage.SpaceKV, bytes.Clone(key))
			out = append(out, fmt.Sprint(len(got), ok, gerr))
		}
		return len(out) != limit
	})
	return out, err
}

func TestView_isLikeALocalOne(t *testing.T) {
	s, c := newRows(t, 3000, ServerOptions{})
	ctx := testContext(t)
	for _, sc := range []struct {
		from, to []byte
		reverse  bool
		limit    int
		get      bool
	}{
		{},
		{reverse: true},
		{from: []byte("001000"), to: []byte("001100")},
		{from: []byte("001000"), to: []byte("001100"), reverse: true},
		{from: []byte("002990")},
		{to: []byte("000010"), reverse: true},
		{from: []byte("5"), to: []byte("6")},
		{limit: 1},
		{limit: 200, reverse: true},
		{limit: 400, get: true},
	} {
		var local, remote []string
		if err := s.View(ctx, 3, func(v *storage.View) (err error) {
			local, err = scan(v, sc.from, sc.to, sc.reverse, sc.limit, sc.get)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := c.View(ctx, reads, 3, func(v *storage.View) (err error) {
			remote, err = scan(v, sc.from, sc.to, sc.reverse, sc.limit, sc.get)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(local, remote) {
			t.Errorf("%+v: %d rows locally, %d remotely", sc, len(local), len(remote))
		}
	}
	err := c.View(ctx, reads, 3, func(v *storage.View) error {
		if v.Bucket() != 3 {
			t.Errorf("bucket %d", v.Bucket())
		}
		if _, ok, err := v.Get(storage.SpaceKV, []byte("nothing")); ok || err != nil {
			t.Errorf("no row: %v %v", ok, err)
		}
		var keys [][]byte
		for i := range 6000 {
			keys = append(keys, fmt.Appendf(nil, "%06d", i))
		}
		n := 0
		err := v.GetMany(storage.SpaceKV, keys, func(i int, value []byte, ok bool) bool {
			if n != i || ok != (i < 3000) || ok && !bytes.Equal(value, bytes.Repeat(keys[i], 20)) {
				t.Errorf("row %d of GetMany, after %d: %v %q", i, n, ok, value)
			}
			n++
			return !t.Failed()
		})
		if n != 6000 {
			t.Errorf("GetMany gave %d rows", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	mine := errors.New("mine")
	if err := c.View(ctx, reads, 3, func(*storage.View) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("the function's error became %v", err)
	}
}

func TestView_isOfOneMoment(t *testing.T) {
	s, c := newRows(t, 10, ServerOptions{})
	ctx := testContext(t)
	err := c.View(ctx, reads, 3, func(v *storage.View) error {
		before, _, err := v.Get(storage.SpaceKV, []byte("000001"))
		if err != nil {
			return err
		}
		if _, err := s.Write(ctx, 3, storage.KVPut, storage.KVPutArgs(1, []byte("000001"), []byte("new"))); err != nil {
			return err
		}
		after, _, err := v.Get(storage.SpaceKV, []byte("000001"))
		if !bytes.Equal(before, after) {
			t.Errorf("%q became %q", before, after)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestView_ofABucketThatCannotBeRead(t *testing.T) {
	s, c := newRows(t, 1, ServerOptions{})
	ctx := testContext(t)
	for _, state := range []shard.State{shard.Sending, shard.Sent} {
		if err := s.SetBucketState(ctx, 4, state, "b"); err != nil {
			t.Fatal(err)
		}
	}
	for name, fn := range map[string]func(*storage.View) error{
		"reads":   func(v *storage.View) error { _, _, err := v.Get(storage.SpaceKV, nil); return err },
		"nothing": func(*storage.View) error { return nil },
	} {
		err := c.View(ctx, reads, 4, fn)
		var e *shard.Error
		if !errors.As(err, &e) || e.Code != shard.WrongBucket || e.Destination != "b" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestView_hasLimits(t *testing.T) {
	_, c := newRows(t, 10, ServerOptions{MaxViews: 1})
	ctx := testContext(t)
	get := func(v *storage.View) error { _, _, err := v.Get(storage.SpaceKV, []byte("000001")); return err }
	err := c.View(ctx, reads, 3, func(v *storage.View) error {
		if err := get(v); err != nil {
			return err
		}
		if err := c.View(ctx, reads, 3, get); !errors.Is(err, shard.Overloaded) {
			t.Errorf("a view too many: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("the view's outcome: %v", err)
	}
	eventually(t, "there is room again", func() bool { return c.View(ctx, reads, 3, get) == nil })
}

func TestView_thatNobodyUsesEnds(t *testing.T) {
	_, c := newRows(t, 10, ServerOptions{MaxViews: 1, ViewIdle: 50 * time.Millisecond})
	ctx := testContext(t)
	get := func(v *storage.View) error { _, _, err := v.Get(storage.SpaceKV, []byte("000001")); return err }
	err := c.View(ctx, reads, 3, func(v *storage.View) error {
		_ = get(v)
		eventually(t, "the view ends, and there is room for another", func() bool { return c.View(ctx, reads, 3, get) == nil })
		return get(v)
	})
	if !errors.Is(err, shard.StorageRefUse) {
		t.Errorf("a view that was not used: %v", err)
	}
}

func TestView_seesNothingOfOtherBuckets(t *testing.T) {
	_, c := newRows(t, 10, ServerOptions{})
	for name, req := range map[string]*v1.ViewRequest{
		"another bucket's row": {Get: [][]byte{{0, 0, 0, 4, 8, 'k'}}},
		"the system's row":     {Get: [][]byte{{0, 0, 0, 0, 1, 0}}},
		"a short key":          {Get: [][]byte{{0}}},
		"a scan from another":  {Scan: &v1.ViewRequest_Scan{From: []byte{0, 0, 0, 2}, To: []byte{0, 0, 0, 4}}},
		"a scan into another":  {Scan: &v1.ViewRequest_Scan{From: []byte{0, 0, 0, 3}, To: []byte{0, 0, 0, 4, 8}}},
		"a scan of nothing":    {Scan: &v1.ViewRequest_Scan{}},
		"too many rows":        {Get: slices.Repeat([][]byte{{0, 0, 0, 3, 8}}, maxGets+1)},
	} {
		stream, err := c.service().View(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		req.Open = &v1.ViewRequest_Open{Bucket: 3, Kind: reads}
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(name, err)
		}
		if err := DecodeError(resp.GetError()); !errors.Is(err, shard.InvalidArguments) {
			t.Errorf("%s: %v", name, err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
	}
}

func TestWatch_tellsEveryChange(t *testing.T) {
	s := newStorage(t, "", storage.NewRegistry())
	_, address := serve(t, ServerOptions{Storage: s, Heartbeat: 20 * time.Millisecond})
	c := dial(t, address, ClientOptions{})
	ctx := testContext(t)
	enough := errors.New("enough")
	var got [buckets + 1]shard.State
	beats, full := 0, 0
	err := c.Watch(ctx, func(resp *v1.DiscoverResponse) error {
		if resp.GetMember() != "a1" || resp.GetMaster() != "a1" || resp.GetReplicaSet() != "a" || resp.GetBucketCount() != buckets {
			t.Errorf("it says %v", resp)
		}
		if resp.GetFull() {
			full++
		}
		if len(resp.GetRanges()) == 0 {
			beats++
		}
		for _, g := range resp.GetRanges() {
			for b := g.GetFirst(); b <= g.GetLast(); b++ {
				got[b] = shard.State(g.GetState())
			}
		}
		switch {
		case got[1] == 0:
			t.Error("the first message has not all buckets")
		case beats == 3 && got[5] == shard.Active:
			return s.SetBucketState(ctx, 5, shard.Sending, "")
		case got[5] == shard.Sending && got[6] == shard.Active:
			return s.SetBucketState(ctx, 6, shard.Pinned, "")
		case got[6] == shard.Pinned:
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || full != 1 {
		t.Errorf("%v, with %d full messages", err, full)
	}
}
