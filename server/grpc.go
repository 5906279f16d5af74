package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"

	"github.com/switchyard-dev/switchyard/api/link"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

const (
	streamWindow  = 4 << 20  // bytes of one call that may be under way unread
	connWindow    = 32 << 20 // the same of all calls of a connection
	writeBuffer   = 64 << 10
	readBuffer    = 64 << 10
	maxStreams    = 1 << 16 // calls in progress on one connection; most of them polls
	pingAfter     = 30 * time.Second
	pingTimeout   = 10 * time.Second
	pingEvery     = 5 * time.Second // how often a client may ping
	helloTimeout  = 10 * time.Second
	maxHeaderList = 64 << 10
)

// newGRPCServer makes the gRPC server with the services of the API, health and
// reflection, and the operators' service if there is one.
func newGRPCServer(f *frontend.Frontend, cluster v1.ClusterServiceServer, checker *health.Server, logger *slog.Logger) *grpc.Server {
	s := grpc.NewServer(
		// Windows of a fixed size spare the pings that estimate them.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ReadBufferSize(readBuffer),
		grpc.MaxRecvMsgSize(receiveBytes(f.Limits())),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ConnectionTimeout(helloTimeout),
		// A worker's machine that vanished is found out, and its polls end.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.StreamInterceptor(recoverStream(logger)),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.WaitForHandlers(true),
	)
	r := registerAPI(s, f, logger)
	healthpb.RegisterHealthServer(r, checker)
	if cluster != nil {
		v1.RegisterClusterServiceServer(r, cluster)
	}
	reflection.Register(s)
	return s
}

// newLinkServer makes the server of the Go client's own transport, with the services
// of the API.
func newLinkServer(f *frontend.Frontend, logger *slog.Logger) *link.Server {
	s := link.NewServer(link.ServerOptions{
		Codec: newCodec(), MaxMessage: receiveBytes(f.Limits()), Unknown: unknownMethodError, Logger: logger,
	})
	registerAPI(s, f, logger)
	return s
}

// receiveBytes is the largest message that is read at all: what is over our own
// limit but not over this one gets an error with a reason.
func receiveBytes(l frontend.Limits) int { return 2*l.RequestBytes + 1<<20 }

// registerAPI registers the services of the API with s, guarded, and returns what
// guards further ones.
func registerAPI(s grpc.ServiceRegistrar, f *frontend.Frontend, logger *slog.Logger) registrar {
	r := registrar{ServiceRegistrar: s, logger: logger, limits: f.Limits()}
	v1.RegisterTaskServiceServer(r, f)
	v1.RegisterQueueServiceServer(r, f)
	v1.RegisterCallServiceServer(r, f)
	return r
}

// registrar registers services with their unary methods guarded.
type registrar struct {
	grpc.ServiceRegistrar
	logger *slog.Logger
	limits frontend.Limits
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		guarded.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: r.guard(desc.ServiceName+"/"+m.MethodName, m.Handler)}
	}
	r.ServiceRegistrar.RegisterService(&guarded, impl)
}

// guard gives a reason to the errors of requests that cannot be decoded, and
// turns a panic into an INTERNAL error. It does what an interceptor does, and
// reaches the decoding, which an interceptor does not.
func (r registrar) guard(name string, handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				resp, err = nil, panicked(r.logger, name, p)
			}
		}()
		return handler(srv, ctx, func(m any) error {
			in := received{message: m, limit: r.limits.RequestBytes}
			if err := dec(&in); err != nil {
				return err
			}
			return in.err
		}, interceptor)
	}
}

// received is a request to be decoded. gRPC answers by itself when a codec
// fails; so ours does not fail, but keeps the error for guard.
type received struct {
	message any
	limit   int // bytes
	err     error
}

// codec is gRPC's protobuf codec, and fills in received.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > in.limit {
		in.err = requestTooLarge(in.limit)
		return nil
	}
	if err := c.CodecV2.Unmarshal(data, in.message); err != nil {
		if text := err.Error(); strings.Contains(text, "UTF-8") {
			in.err = reason.New(codes.InvalidArgument, reason.InvalidRequest, nil,
				"the request has a text that is not valid UTF-8; only payloads and lease tokens may hold arbitrary bytes")
		} else {
			in.err = reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "the request cannot be read: %s", text)
		}
	}
	return nil
}

func panicked(logger *slog.Logger, name string, p any) error {
	logger.Error("call panicked", "method", name, "panic", p, "stack", string(debug.Stack()))
	return reason.New(codes.Internal, reason.Internal, nil, "the server met a fault in %s; its log has more", name)
}

// recoverStream turns a panic in a streaming method into an INTERNAL error.
func recoverStream(logger *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = panicked(logger, info.FullMethod, p)
			}
		}()
		return handler(srv, stream)
	}
}

// unknownMethod answers calls that no service has.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	name, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return errors.New("a stream without a method")
	}
	return unknownMethodError(name)
}

func unknownMethodError(name string) error {
	return reason.New(codes.Unimplemented, reason.UnknownMethod, map[string]string{"method": name},
		"the server has no method %s; it may be older than the client", name)
}
