package switchyard

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// WithDirect has the client's tasks and calls go over conn, which is usually a
// direct.Conn: it talks to the nodes that own the partitions, without the hop over a
// frontend. Queues are still looked after over the target of Dial. The client does not
// close conn; close it after the client.
func WithDirect(conn grpc.ClientConnInterface) DialOption {
	return func(o *dialOptions) { o.direct = conn }
}

// directConn turns this package's own messages into generated ones, for a connection
// that knows no others.
type directConn struct{ grpc.ClientConnInterface }

// Invoke implements grpc.ClientConnInterface.
func (d directConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	own, isOwn := reply.(wireResponse)
	if !isOwn {
		return d.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	var request, response proto.Message
	switch method {
	case v1.TaskService_AddTasks_FullMethodName:
		request, response = &v1.AddTasksRequest{}, &v1.AddTasksResponse{}
	case v1.TaskService_PollTasks_FullMethodName:
		request, response = &v1.PollTasksRequest{}, &v1.PollTasksResponse{}
	case v1.TaskService_CompleteTasks_FullMethodName:
		request, response = &v1.CompleteTasksRequest{}, &v1.CompleteTasksResponse{}
	case v1.TaskService_ReleaseTasks_FullMethodName:
		request, response = &v1.ReleaseTasksRequest{}, &v1.ReleaseTasksResponse{}
	default:
		return fmt.Errorf("switchyard: %s has no generated messages for %T", method, reply)
	}
	switch args := args.(type) {
	case wireRequest:
		if err := proto.Unmarshal(args.appendWire(make([]byte, 0, args.wireSize())), request); err != nil {
			return err
		}
	case proto.Message:
		request = args
	}
	if err := d.ClientConnInterface.Invoke(ctx, method, request, response, opts...); err != nil {
		return err
	}
	data, err := proto.Marshal(response)
	if err != nil {
		return err
	}
	return own.decodeWire(data)
}
