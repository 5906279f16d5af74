package wal

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes a file's bytes and length durable, without its times.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		// Interrupted before it began; not a failed sync.
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
