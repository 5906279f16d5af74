package storagerpc

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Read runs a read function as a call of that kind would, in this process.
func (s *Server) Read(ctx context.Context, kind v1.StorageCallKind, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	return read(ctx, s.storage, kind, bucket, fn, args)
}

// ViewRows calls fn with a view as a stream of that kind would have it, in this process.
func (s *Server) ViewRows(ctx context.Context, kind v1.StorageCallKind, bucket shard.BucketID, fn func(*storage.View) error) error {
	return view(ctx, s.storage, kind, bucket, fn)
}

// Do is Client.Do in this process.
func (s *Server) Do(ctx context.Context, call func(context.Context, v1.StorageServiceClient) error) error {
	l := loop{s: s, running: new(sync.WaitGroup)}
	ctx, cancel := context.WithCancel(ctx)
	defer l.running.Wait()
	defer cancel()
	return fromStatus(call(ctx, v1.NewStorageServiceClient(l)))
}

// loop is a connection from a process to itself: it carries unary calls, and streams of the
// server.
type loop struct {
	s       *Server
	running *sync.WaitGroup // handlers of streams
}

// Invoke implements grpc.ClientConnInterface.
func (l loop) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	for _, m := range v1.StorageService_ServiceDesc.Methods {
		if method != "/"+v1.StorageService_ServiceDesc.ServiceName+"/"+m.MethodName {
			continue
		}
		out, err := m.Handler(l.s, ctx, func(in any) error { return move(in, args) }, nil)
		if err != nil {
			return statusOf(err)
		}
		return move(reply, out)
	}
	return fmt.Errorf("storagerpc: no unary method %s", method)
}

func move(to, from any) error {
	dst, ok1 := to.(proto.Message)
	src, ok2 := from.(proto.Message)
	if !ok1 || !ok2 {
		return fmt.Errorf("storagerpc: %T and %T are not messages", to, from)
	}
	proto.Reset(dst)
	proto.Merge(dst, src)
	return nil
}
