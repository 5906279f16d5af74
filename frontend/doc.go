// Package frontend is the public API as clients see it: it checks every request
// against the limits, fills in defaults, counts and times it, and hands it on to
// a [Backend].
//
// A fault of one item of a batch fails that item alone; the backend sees only
// the items that are right, and the results are put together in the order of
// the request. A fault of the request as a whole fails the call. Every error
// that leaves this package carries a reason of package api/reason.
//
// The frontend does not know how a request came in: the servers of gRPC
// and link and the HTTP gateway call the same methods, so all have the same checks,
// limits and metrics.
package frontend
