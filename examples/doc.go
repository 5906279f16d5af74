// Package examples holds small complete programs, one per folder: hello and typed
// use the task queue, grpcclient and httpclient the client stack, with servers of
// their own, and bands the sharded store, with nodes of its own that have functions for its
// table. Its tests build and run them, the first two against a real server.
package examples
