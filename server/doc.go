// Package server is a node: it reads the configuration, wires the storage
// engine, the store, the router, the task queues and the frontend together, and
// serves gRPC, link and HTTP on one port.
//
// A connection that begins with the HTTP/2 preface goes to the gRPC server, one
// with the preface of package api/link to the server of the Go client's own
// transport, and every other one to an HTTP server with the JSON API,
// /openapi.json, /healthz, /readyz, /metrics and, when switched on, /debug/pprof.
// All call the same frontend in the process.
package server
