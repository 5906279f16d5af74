// Command switchyard is the server and the command line of Switchyard, a
// durable task queue.
//
// It holds flags and printing and nothing else: the server is package server,
// the client is the root package. docs/cli.md describes every command, the
// shape of the JSON output and the exit codes.
package main
