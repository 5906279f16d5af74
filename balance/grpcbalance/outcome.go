package grpcbalance

import (
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// outcomeOf says what the end of a request tells about the endpoint. Errors that
// the request itself is to blame for, such as InvalidArgument, show a server that
// works.
func outcomeOf(info balancer.DoneInfo) balance.Outcome {
	if info.Err == nil {
		if !info.BytesSent {
			// Picked, but the connection was gone before the request began.
			return balance.Ignored
		}
		return balance.Success
	}
	if retry.ParseSignal(info.Trailer[retry.SignalKey]) == retry.Nack {
		return balance.Refused
	}
	switch status.Code(info.Err) {
	case codes.Canceled:
		return balance.Ignored
	case codes.ResourceExhausted:
		return balance.Refused
	case codes.Unavailable, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.DataLoss:
		return balance.Failure
	default:
		return balance.Success
	}
}
