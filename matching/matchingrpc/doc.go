// Package matchingrpc carries MatchingService over gRPC: a server for an engine's
// partitions and a client that looks like an engine.
//
// Errors keep their reason on the way: what a [Client] returns is what the engine on
// the other node returned. An error of the connection itself has the reason
// NOT_READY; whether the call took effect is then unknown.
package matchingrpc
