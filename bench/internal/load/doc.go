// Package load makes the tasks of the benchmark and checks that none is lost.
//
// A Ledger belongs to one run of one scenario. Every payload carries the ledger's
// mark, a serial number, the moment it was made and a check sum, so that what a
// worker gets can be told from work of another run, from a damaged payload and
// from a task that it has had before.
package load
