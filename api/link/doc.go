// Package link carries unary calls over a connection with as little between caller
// and handler as can be. It is the Go client's way to a server that is one
// connection away; everybody else, and everything else, uses gRPC on the same port.
//
// Why it exists: a call over grpc-go passes five goroutines and makes three HTTP/2
// frames each way. Where a sync of the disk takes 0.1 ms, that more than doubles
// the time of an add. Here the caller writes its request itself, the goroutine that
// reads a request runs its handler, and the handler's goroutine writes the answer.
// docs/benchmarks.md has the numbers.
//
// # The protocol
//
// The client opens with [Preface]; the server answers with the same bytes. Then both
// send frames. All numbers are big endian.
//
//	length 4 | kind 1 | call 8 | rest          length counts everything behind itself
//
//	1 request   rest: timeout 4 (ms, 0 for none) | method length 1 | method | message
//	2 response  rest: message
//	3 error     rest: google.rpc.Status
//	4 cancel    the client gives the call up
//	5 ping      answered by
//	6 pong      with the same call number
//	7 goaway    the server takes no more calls on this connection
//
// Messages are protobuf, methods are named as in gRPC ("/package.Service/Method"),
// and errors are gRPC statuses, so generated clients and servers work unchanged: a
// [Client] is a grpc.ClientConnInterface and a [Server] a grpc.ServiceRegistrar.
// Streaming calls are not carried.
//
// A client pings when it has sent or received nothing for [pingAfter]; either side gives a
// connection up on which nothing came for [deadAfter].
package link
