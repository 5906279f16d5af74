// Package loadgen puts load on a Switchyard server through the SDK, as programs
// that use it would, and measures what comes back. `switchyard bench` prints
// what it reports.
package loadgen
