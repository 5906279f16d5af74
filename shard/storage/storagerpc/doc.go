// Package storagerpc carries a storage over gRPC: the server of StorageService for
// one member of a replica set, and the client that routers use to reach one.
//
// # Calls
//
// A client has one stream to a member, on which the calls of all its callers travel in
// batches: whatever came while the last batch was written is the next one. Each side has
// one goroutine that sends and one that receives. The server gives writes to the engine
// in the order in which they came; reads run beside them, a bounded number at once.
//
// Memory is bounded on both sides. A client refuses calls beyond its limits with
// OVERLOADED. A server that has as many calls, or as many bytes of arguments and results,
// in flight on a stream as it may stops reading the stream, so a client that does not
// read its results is not read any more either.
//
// # What a broken stream means
//
// A call that the client had not sent, or that the server said it did not take, was not
// done. A write that was sent and has no result may have been done: its error is
// OUTCOME_UNKNOWN. A server that stops in peace answers what it took and says that it
// took no more. [ConnError] tells which of the two it was.
//
// # Views
//
// A view is a stream of its own that holds one moment of a bucket on the server. The
// client wraps it into a *storage.View, so readers cannot tell the difference. Scans
// fetch rows in chunks that grow.
package storagerpc
