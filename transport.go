package switchyard

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/api/link"
)

// linkFits says whether the hot calls can go over package link: the server is one
// plain TCP address, and nothing was asked of gRPC that link does not do.
func (o *dialOptions) linkFits(target string) bool {
	if o.grpcOnly || o.tls != nil || len(o.grpc) > 0 || strings.Contains(target, "/") {
		return false
	}
	_, _, err := net.SplitHostPort(target)
	return err == nil
}

func newLink(target string, maxMessage int) *link.Client {
	return link.NewClient(link.ClientOptions{
		Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", target)
		},
		Codec:      newCodec(),
		MaxMessage: maxMessage,
	})
}

// linkOrGRPC makes calls over link, and over gRPC while whoever answers at the
// server's address does not speak link: an older server, or a proxy.
type linkOrGRPC struct {
	link *link.Client
	grpc *grpc.ClientConn
	// grpcUntil is when to try link again, in unix nanoseconds.
	grpcUntil atomic.Int64
}

// linkRetry is how long gRPC is used before link is tried again.
const linkRetry = 30 * time.Second

// Invoke implements grpc.ClientConnInterface.
func (l *linkOrGRPC) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if until := l.grpcUntil.Load(); until == 0 || time.Now().UnixNano() >= until {
		err := l.link.Invoke(ctx, method, args, reply, opts...)
		switch {
		case errors.Is(err, link.ErrNotSpoken):
			l.grpcUntil.Store(time.Now().Add(linkRetry).UnixNano())
		case errors.Is(err, link.ErrCannotConnect):
			// gRPC waits for the server until the call's deadline.
		default:
			return err
		}
	}
	return l.grpc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (l *linkOrGRPC) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.grpc.NewStream(ctx, desc, method, opts...)
}
