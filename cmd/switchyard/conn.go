package main

import (
	"context"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// dial makes a client. It does not connect yet.
func (a *app) dial(opts ...switchyard.DialOption) (*switchyard.Client, error) {
	opts = append([]switchyard.DialOption{switchyard.WithNamespace(a.namespace), switchyard.WithTimeout(a.timeout), switchyard.WithLogger(nil)}, opts...)
	client, err := switchyard.Dial(a.address, opts...)
	if err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	return client, nil
}

// reach returns an error at once when no server answers at the address. The
// client itself would wait for one.
func (a *app) reach(parent context.Context, client *switchyard.Client) error {
	ctx, cancel := context.WithTimeout(parent, a.timeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(client.Conn()).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(false))
	return err
}

// conn has the generated clients: the commands that look after queues and tasks
// show exactly what the wire says, and do not wait for a server that is not
// there.
type conn struct {
	queues v1.QueueServiceClient
	tasks  v1.TaskServiceClient
}

func (a *app) withConn(fn func(*conn) error) error {
	client, err := a.dial(switchyard.WithGRPC(grpc.WithDefaultCallOptions(grpc.WaitForReady(false))))
	if err != nil {
		return err
	}
	defer client.Close()
	return fn(&conn{queues: client.QueueService(), tasks: client.TaskService()})
}

// call opens a connection for one call, with the deadline that calls have.
func (a *app) call(parent context.Context, fn func(context.Context, *conn) error) error {
	ctx, cancel := context.WithTimeout(parent, a.timeout)
	defer cancel()
	return a.withConn(func(c *conn) error { return fn(ctx, c) })
}
