package direct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/peers"
)

// Node is a matching node: its name in the cluster and host:port of its internal port.
type Node = peers.Node

// Options configure a Conn.
type Options struct {
	// Nodes are all matching nodes of the cluster, and BatchSize that of its spread
	// routing, 0 for basic routing. Required without Peers.
	Nodes     []Node
	BatchSize int
	// DialOptions are for connections to the nodes. Required without Peers: they say at
	// least which credentials are used.
	DialOptions []grpc.DialOption
	// Peers finds the owners of partitions instead, for a process that is a member of the
	// cluster. They are closed by whoever made them.
	Peers matching.Peers
	// Limits; the zero value means frontend.DefaultLimits.
	Limits frontend.Limits
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Registerer gets the metrics of the frontend; nil for none.
	Registerer prometheus.Registerer
}

// Conn makes the calls of TaskService and CallService at the matching nodes. It implements
// grpc.ClientConnInterface, for generated clients and switchyard.WithDirect. All methods
// may be called from any goroutine.
type Conn struct {
	nodes *peers.Static // nil with Options.Peers
	front *frontend.Frontend
	calls map[string]func(context.Context, any, any) error
}

// New makes a Conn. Connections are made when they are first used.
func New(o Options) (*Conn, error) {
	c := &Conn{}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Peers == nil {
		var err error
		c.nodes, err = peers.NewStatic(peers.StaticOptions{Nodes: o.Nodes, DialOptions: o.DialOptions, BatchSize: o.BatchSize, Logger: o.Logger})
		if err != nil {
			return nil, fmt.Errorf("direct: %w", err)
		}
		o.Peers = c.nodes
	}
	queues, err := matching.NewQueues(matching.QueuesOptions{Peers: o.Peers, Logger: o.Logger})
	if err == nil {
		c.front, err = frontend.New(frontend.Options{Backend: queues, Limits: o.Limits, Logger: o.Logger, Registerer: o.Registerer})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("direct: %w", err), c.Close())
	}
	c.calls = map[string]func(context.Context, any, any) error{
		v1.TaskService_AddTasks_FullMethodName:      invoke(c.front.AddTasks),
		v1.TaskService_PollTasks_FullMethodName:     invoke(c.front.PollTasks),
		v1.TaskService_CompleteTasks_FullMethodName: invoke(c.front.CompleteTasks),
		v1.TaskService_FailTasks_FullMethodName:     invoke(c.front.FailTasks),
		v1.TaskService_ExtendLeases_FullMethodName:  invoke(c.front.ExtendLeases),
		v1.TaskService_ReleaseTasks_FullMethodName:  invoke(c.front.ReleaseTasks),
		v1.TaskService_GetTask_FullMethodName:       invoke(c.front.GetTask),
		v1.TaskService_CancelTask_FullMethodName:    invoke(c.front.CancelTask),
		v1.CallService_Call_FullMethodName:          invoke(c.front.Call),
		v1.CallService_PollCalls_FullMethodName:     invoke(c.front.PollCalls),
		v1.CallService_AnswerCalls_FullMethodName:   invoke(c.front.AnswerCalls),
	}
	return c, nil
}

// SetNodes replaces the list of nodes. Connections to those that are gone are closed a
// while later. With an error nothing changes.
func (c *Conn) SetNodes(nodes []Node) error {
	if c.nodes == nil {
		return errors.New("direct: the nodes are those of Options.Peers")
	}
	return c.nodes.SetNodes(nodes)
}

// Close ends the connections to the nodes; calls under way fail. Close clients before.
func (c *Conn) Close() error {
	if c.nodes == nil {
		return nil
	}
	return c.nodes.Close()
}

// callTimeout bounds a call whose context has no deadline.
const callTimeout = 5 * time.Minute

// invoke makes a call of generated messages; the frontend may change the request.
func invoke[Req, Resp any](fn func(context.Context, *Req) (*Resp, error)) func(context.Context, any, any) error {
	return func(ctx context.Context, args, reply any) error {
		req, ok := args.(*Req)
		into, isMessage := reply.(proto.Message)
		if _, same := reply.(*Resp); !ok || !same || !isMessage {
			return reason.New(codes.Internal, reason.Internal, nil, "direct: a call with %T for %T", args, reply)
		}
		resp, err := fn(ctx, req)
		if err != nil {
			return err
		}
		proto.Reset(into)
		proto.Merge(into, any(resp).(proto.Message))
		return nil
	}
}

// Invoke implements grpc.ClientConnInterface. Call options have no meaning here.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	call, ok := c.calls[method]
	if !ok {
		return reason.New(codes.Unimplemented, reason.InvalidRequest, map[string]string{"method": method},
			"%s cannot be called at matching nodes: call a frontend", method)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return call(ctx, args, reply)
}

// NewStream implements grpc.ClientConnInterface: no call has streams.
func (c *Conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, reason.New(codes.Unimplemented, reason.InvalidRequest, nil, "there are no streams to matching nodes")
}
