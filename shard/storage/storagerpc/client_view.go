package storagerpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// The first chunk of a scan is small, because many readers want a few rows; each further
// one is twice as large.
const firstChunkRows = 64

// View calls fn with a view of a bucket on the member. When the member is lost meanwhile,
// the view's reads fail, and the error is a *ConnError whatever fn returned.
func (c *Client) View(ctx context.Context, kind v1.StorageCallKind, bucket shard.BucketID, fn func(*storage.View) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	stream, err := c.service().View(c.with(ctx))
	if err != nil {
		return c.viewFailure(parent, err)
	}
	r := &remoteReader{c: c, ctx: parent, stream: stream, open: &v1.ViewRequest_Open{Bucket: uint32(bucket), Kind: kind}}
	err = fn(storage.NewView(bucket, r))
	if r.open != nil && r.failed == nil && err == nil {
		_, _ = r.ask(&v1.ViewRequest{}) // fn has read nothing, but may the bucket be read?
	}
	_ = stream.CloseSend()
	if r.failed != nil {
		return r.failed
	}
	return err
}

func (c *Client) viewFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if c.ctx.Err() != nil {
		return &ConnError{Address: c.address, Err: errClientClosed}
	}
	if errors.Is(err, io.EOF) {
		return &ConnError{Address: c.address, Sent: true, Err: errors.New("the member has ended the view")}
	}
	return c.failure(err)
}

// remoteReader reads rows of a bucket on another member.
type remoteReader struct {
	c      *Client
	ctx    context.Context
	stream grpc.BidiStreamingClient[v1.ViewRequest, v1.ViewResponse]
	open   *v1.ViewRequest_Open // of the first request
	failed error                // of the stream: there are no more answers
}

// ask sends a request and waits for its answer.
func (r *remoteReader) ask(req *v1.ViewRequest) (*v1.ViewResponse, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	req.Open, r.open = r.open, nil
	// An error of Send says only that the stream is over; Recv says why.
	_ = r.stream.Send(req)
	resp, err := r.stream.Recv()
	if err != nil {
		r.failed = r.c.viewFailure(r.ctx, err)
		return nil, r.failed
	}
	if resp.GetError() != nil {
		return nil, DecodeError(resp.GetError())
	}
	return resp, nil
}

func (r *remoteReader) strange(what string) error {
	r.failed = &ConnError{Address: r.c.address, Sent: true, Err: errors.New("the member answers " + what)}
	return r.failed
}

// Get implements engine.Reader.
func (r *remoteReader) Get(key []byte) (value []byte, ok bool, err error) {
	resp, err := r.ask(&v1.ViewRequest{Get: [][]byte{key}})
	if err != nil {
		return nil, false, err
	}
	if len(resp.GetValues()) != 1 {
		return nil, false, r.strange("another number of rows than was asked for")
	}
	v := resp.GetValues()[0]
	return v.GetValue(), v.GetFound(), nil
}

// GetMany implements storage.ManyReader.
func (r *remoteReader) GetMany(keys [][]byte, fn func(i int, value []byte, ok bool) bool) error {
	i := 0
	for chunk := range slices.Chunk(keys, maxGets) {
		resp, err := r.ask(&v1.ViewRequest{Get: chunk})
		if err != nil {
			return err
		}
		if len(resp.GetValues()) != len(chunk) {
			return r.strange("another number of rows than was asked for")
		}
		for _, v := range resp.GetValues() {
			if !fn(i, v.GetValue(), v.GetFound()) {
				return nil
			}
			i++
		}
	}
	return nil
}

// Scan implements engine.Reader.
func (r *remoteReader) Scan(from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	// They belong to the caller, who may use them again during fn.
	from, to = bytes.Clone(from), bytes.Clone(to)
	for rows := uint32(firstChunkRows); ; rows = min(2*rows, maxChunkRows) {
		resp, err := r.ask(&v1.ViewRequest{Scan: &v1.ViewRequest_Scan{From: from, To: to, Reverse: reverse, MaxRows: rows}})
		if err != nil {
			return err
		}
		for _, row := range resp.GetRows() {
			if !fn(row.GetKey(), row.GetValue()) {
				return nil
			}
		}
		if !resp.GetMore() {
			return nil
		}
		n := len(resp.GetRows())
		if n == 0 {
			return r.strange("that there are more rows, and gives none")
		}
		if last := resp.GetRows()[n-1].GetKey(); reverse {
			to = last
		} else {
			from = append(bytes.Clone(last), 0)
		}
	}
}
