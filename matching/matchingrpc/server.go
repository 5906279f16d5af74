package matchingrpc

import (
	"context"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Register serves an engine's partitions on a node's internal port. Requests that
// have no request inside are refused; a panic becomes an error and is logged.
func Register(server grpc.ServiceRegistrar, engine v1.MatchingServiceServer, logger *slog.Logger) {
	desc := v1.MatchingService_ServiceDesc
	desc.Methods = make([]grpc.MethodDesc, len(v1.MatchingService_ServiceDesc.Methods))
	for i, m := range v1.MatchingService_ServiceDesc.Methods {
		desc.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: guard(m, logger)}
	}
	server.RegisterService(&desc, engine)
}

// guard wraps a method so that it panics on nothing and its errors have a reason.
func guard(m grpc.MethodDesc, logger *slog.Logger) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				logger.Error("call between nodes panicked", "method", m.MethodName, "panic", p, "stack", string(debug.Stack()))
				err = reason.New(codes.Internal, reason.Internal, nil, "the node met a fault in %s; its log has more", m.MethodName)
			}
		}()
		resp, err = m.Handler(srv, ctx, func(req any) error {
			if err := dec(req); err != nil {
				return err
			}
			return checkRequest(m.MethodName, req)
		}, interceptor)
		if err != nil {
			return nil, reason.From(err)
		}
		return resp, nil
	}
}

// checkRequest refuses a request without the request that it should carry, which
// frontends have checked.
func checkRequest(method string, req any) error {
	var missing bool
	switch r := req.(type) {
	case *v1.PartitionAddTasksRequest:
		missing = r.GetRequest() == nil
		for _, t := range r.GetRequest().GetTasks() {
			missing = missing || t == nil
		}
	case *v1.PartitionPollTasksRequest:
		missing = r.GetRequest().GetMaxTasks() <= 0
	case *v1.PartitionFailTasksRequest:
		for _, f := range r.GetRequest().GetFailures() {
			missing = missing || f == nil
		}
	case *v1.PartitionExtendLeasesRequest:
		for _, x := range r.GetRequest().GetExtensions() {
			missing = missing || x == nil
		}
	case *v1.PartitionAnswerCallsRequest:
		for _, a := range r.GetRequest().GetAnswers() {
			missing = missing || a == nil
		}
	}
	if missing {
		return reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "%s lacks its request, or a part of it", method)
	}
	return nil
}
