// Package reason holds the machine-readable reasons of Switchyard's errors and
// the error type that carries them.
//
// Every error that reaches a user is a gRPC status with a google.rpc.ErrorInfo
// detail: Domain is [Domain], Reason is one of this package's constants, and
// Metadata holds the particulars (the queue, the field, the limit). The message
// is a sentence that a person can act on. Items of a batch carry the same as a
// switchyard.v1.ItemError.
//
// [Error] keeps its parts apart and becomes a status only when it crosses the
// wire, so that making one is cheap enough for the hot path: one allocation for
// a constant text.
package reason
