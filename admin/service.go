package admin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
)

const (
	// callTime bounds a call that has no deadline.
	callTime = time.Minute
	// askTime bounds the wait for the answer of one replica set or member to a question.
	askTime = 3 * time.Second
	// answerTime is what is kept of a caller's time for the answer to arrive.
	answerTime = 500 * time.Millisecond
)

// Options of New.
type Options struct {
	// Router reaches the replica sets. Required.
	Router *router.Router
	// Members says which nodes there are; nil for a node by itself.
	Members *membership.Membership
	// ClusterID is the name of the cluster; empty for a node by itself.
	ClusterID string
	// Forget, if not nil, is told the name of a replica set that was removed.
	Forget func(replicaSet string)
	// Logger takes what was changed. Default: nothing.
	Logger *slog.Logger
}

// Service implements v1.ClusterService. All methods may be called from any goroutine.
type Service struct {
	v1.UnimplementedClusterServiceServer

	router    *router.Router
	members   *membership.Membership
	clusterID string
	forget    func(string)
	log       *slog.Logger
}

// New makes the service of a node.
func New(o Options) (*Service, error) {
	if o.Router == nil {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "the service of the cluster needs a router"}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Forget == nil {
		o.Forget = func(string) {}
	}
	return &Service{router: o.Router, members: o.Members, clusterID: o.ClusterID, forget: o.Forget, log: o.Logger}, nil
}

// Register makes r serve the service.
func (s *Service) Register(r grpc.ServiceRegistrar) { v1.RegisterClusterServiceServer(r, s) }

// within returns a context that ends soon enough for the answer to reach the caller.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, callTime)
	}
	left := time.Until(at)
	return context.WithTimeout(ctx, left-min(answerTime, left/10))
}

// unary runs one call: with a deadline, and with its error in the form that users get.
func unary[Resp any](ctx context.Context, do func(context.Context) (*Resp, error)) (*Resp, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	resp, err := do(ctx)
	if err != nil {
		return nil, userError(err)
	}
	return resp, nil
}

// onMaster calls fn with a set's master, for askTime at most.
func (s *Service) onMaster(ctx context.Context, set string, fn func(context.Context, v1.StorageServiceClient) error) error {
	wait, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := s.router.OnMaster(wait, set, fn)
	if wait.Err() != nil && ctx.Err() == nil {
		err = unanswered(shard.UnreachableMaster, set, "its master", err)
	}
	return err
}

// unanswered gives the end of askTime a name, where it has none yet.
func unanswered(code shard.Code, set, who string, err error) error {
	if _, named := errors.AsType[*shard.Error](err); named || err == nil {
		return err
	}
	return &shard.Error{Code: code, ReplicaSet: set, Reason: who + " has not answered within " + askTime.String(), Err: err}
}

// now returns the nodes that are alive as this one knows them.
func (s *Service) nodes() []membership.Node {
	if s.members == nil {
		return nil
	}
	return s.members.View().Nodes()
}
