//go:build linux

package slowsync

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets within struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// openCall is the number of open(2) where the machine has it beside openat.
var auditArch, openCall = func() (uint32, int) {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64, 2
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64, -1
	}
	return 0, -1
}()

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(code uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no}
}

const (
	load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	ifEq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ifBits = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret    = unix.BPF_RET | unix.BPF_K
)

// program asks the supervisor about calls that sync and allows all others.
func program() []unix.SockFilter {
	p := []unix.SockFilter{
		stmt(load, offArch),
		jump(ifEq, auditArch, 1, 0),
		stmt(ret, unix.SECCOMP_RET_ALLOW),
		stmt(load, offNumber),
	}
	for _, call := range []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS} {
		p = append(p, jump(ifEq, call, 0, 1), stmt(ret, unix.SECCOMP_RET_USER_NOTIF))
	}
	flagged := func(call uint32, arg uint32, bits uint32) {
		p = append(p,
			jump(ifEq, call, 0, 4),
			stmt(load, offArgs+8*arg), // low word: both machines are little endian
			jump(ifBits, bits, 0, 1),
			stmt(ret, unix.SECCOMP_RET_USER_NOTIF),
			stmt(ret, unix.SECCOMP_RET_ALLOW))
	}
	flagged(unix.SYS_MSYNC, 2, unix.MS_SYNC)
	flagged(unix.SYS_PWRITEV2, 5, unix.RWF_DSYNC|unix.RWF_SYNC)
	flagged(unix.SYS_OPENAT, 2, unix.O_DSYNC)
	if openCall >= 0 {
		flagged(uint32(openCall), 1, unix.O_DSYNC)
	}
	return append(p, stmt(ret, unix.SECCOMP_RET_ALLOW))
}

// install puts the filter on the calling thread, for ever and for all that it
// executes, and returns the descriptor that a supervisor listens on.
func install() (int, error) {
	if auditArch == 0 {
		return -1, fmt.Errorf("slow sync is not supported on %s", runtime.GOARCH)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("no_new_privs: %w", err)
	}
	code := program()
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	// Once the supervisor has a call in hand only a deadly signal may interrupt
	// it, else a signal would restart the call and its delay.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return -1, fmt.Errorf("seccomp filter: %w", errno)
	}
	return int(fd), nil
}
