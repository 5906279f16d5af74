// Package examples holds small complete programs, one per folder, that use the
// Go client. Its test builds and runs them against a real server.
package examples
