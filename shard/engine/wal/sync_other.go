//go:build !linux

package wal

import "os"

// syncData makes a file's bytes and length durable.
func syncData(f *os.File) error { return f.Sync() }
