// Package grpctest runs small gRPC servers for tests of clients: they speak the
// health protocol, and the test says how each call ends.
package grpctest
