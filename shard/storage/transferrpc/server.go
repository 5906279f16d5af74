package transferrpc

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// Receiver takes messages of transfers; *storage.Storage is one.
type Receiver interface {
	Receive(context.Context, *v1.TransferRequest) (*v1.TransferResponse, error)
	ReplicaSet() string
}

var _ Receiver = (*storage.Storage)(nil)

// service is TransferService over a storage.
type service struct {
	v1.UnimplementedTransferServiceServer
	to  Receiver
	log *slog.Logger
}

// Register makes r serve the transfers to a storage. The gRPC server must take messages of
// storagerpc.MaxMessage bytes, and be stopped before the storage is closed. A nil logger
// says nothing.
func Register(r grpc.ServiceRegistrar, to Receiver, log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	v1.RegisterTransferServiceServer(r, &service{to: to, log: log})
}

// Transfer implements TransferService.
func (s *service) Transfer(ctx context.Context, req *v1.TransferRequest) (resp *v1.TransferResponse, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a message of a transfer made the storage panic", "replica_set", s.to.ReplicaSet(), "from", req.GetFrom(), "kind", req.GetKind().String(), "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, storagerpc.Status(&shard.Error{Code: shard.StoreFailed, ReplicaSet: s.to.ReplicaSet(), Reason: fmt.Sprintf("the message made the storage panic: %v", p)})
		}
	}()
	if n := size(req); n > storagerpc.MaxMessage {
		return nil, storagerpc.Status(&shard.Error{Code: shard.ArgumentsTooLarge, ReplicaSet: s.to.ReplicaSet(),
			Reason: fmt.Sprintf("the message has %d bytes of rows, at most %d are taken at once", n, storagerpc.MaxMessage)})
	}
	if resp, err = s.to.Receive(ctx, req); err != nil {
		return nil, storagerpc.Status(err)
	}
	return resp, nil
}

// size is how many bytes of rows a message has.
func size(req *v1.TransferRequest) (n int) {
	for _, it := range req.GetItems() {
		n += len(it.GetRows())
	}
	return n
}
