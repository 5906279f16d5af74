// Package localsets runs whole replica sets in this process, for tests and measurements:
// every member with an engine of its own, a folder of its own and a gRPC server on loopback
// that serves what nodes serve each other; a member can be killed and started again.
package localsets
