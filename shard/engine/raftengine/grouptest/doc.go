// Package grouptest has the tests of whole replica sets: several engines in one process
// that talk over loopback, and lose each other, their processes and their disks.
package grouptest
