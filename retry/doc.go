// Package retry decides whether, when and where a failed request is sent again.
//
//   - [Schedule] and its constructors, [Backoff]: how long to wait before the next attempt.
//   - [Class]: what an attempt's outcome means for sending the request again.
//   - [Budget]: how many requests may be sent again, shared by all that draw on it.
//   - [Policy], [Retrier] and [Call]: one logical request with all its attempts.
//   - [Hedger] and [Digest]: when a backup request is worth its load.
//   - [Admission]: when a client should stop sending to servers that refuse.
//   - [Attempt]: what an attempt tells the balancer below it, and hears from it.
//
// It is pure: it reads no clock, starts no timer and rolls no dice. The caller
// hands in the time and random numbers, and does the waiting. The adapters are
// package retry/grpcretry for gRPC and package httpclient for net/http.
//
// docs/client.md explains the whole, with where it differs from the design that
// it is measured against, Twitter's Finagle.
package retry
