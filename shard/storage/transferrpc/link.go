package transferrpc

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Link reaches the masters of other replica sets through a router. The zero value is
// ready; all methods may be called from any goroutine.
type Link struct{ router atomic.Pointer[router.Router] }

var _ storage.Link = (*Link)(nil)

// Attach gives the link its router. Until then it reaches nobody, which passes.
func (l *Link) Attach(r *router.Router) { l.router.Store(r) }

// Transfer implements storage.Link.
func (l *Link) Transfer(ctx context.Context, req *v1.TransferRequest) (resp *v1.TransferResponse, err error) {
	r := l.router.Load()
	if r == nil {
		return nil, &shard.Error{Code: shard.UnreachableReplicaSet, ReplicaSet: req.GetTo(), Reason: "this node is starting and does not know the others yet"}
	}
	err = r.MasterConn(ctx, req.GetTo(), func(ctx context.Context, conn grpc.ClientConnInterface) error {
		resp, err = v1.NewTransferServiceClient(conn).Transfer(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// ReplicaSets implements storage.Link: those of the router's topology. None are known
// before Attach.
func (l *Link) ReplicaSets() []string {
	r := l.router.Load()
	if r == nil {
		return nil
	}
	return r.RouteAll()
}
