// Package grpcretry gives gRPC clients retries with a budget, timeouts per attempt
// and in all, and hedging, and lets gRPC servers say what is safe to send again.
//
//	client, err := grpcretry.New(grpcretry.Config{
//		Methods: map[string]grpcretry.Method{"/shop.Catalog/": {Idempotent: true}},
//	})
//	conn, err := grpc.NewClient(target, append(client.DialOptions(), …)...)
//
// What is sent again:
//
//   - requests that the server refused (a NACK) or that were never written, for
//     every method. That nothing was written is known with a policy of package
//     balance/grpcbalance, which also sends them to another server;
//   - requests that failed with UNAVAILABLE or RESOURCE_EXHAUSTED, or whose attempt
//     took too long, for methods that are Idempotent;
//   - never what the server or the caller marked as not retryable.
//
// Streams are opened again as long as the caller has received nothing and what it
// has sent fits into a buffer. Hedging is for unary calls.
//
// Servers use [ServerOptions] and return retry.WithSignal(err, retry.Nack) for a
// request that they did not begin, retry.WithSignal(err, retry.Never) for one that
// no attempt can help.
package grpcretry
