// Package scenario runs the work that is measured, the same for every system, and
// checks that none of it was lost.
package scenario
