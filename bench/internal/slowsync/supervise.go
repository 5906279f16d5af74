//go:build linux

package slowsync

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// State is shared, through a mapped file, by the supervisor and whoever watches
// it. All fields are read and written atomically.
type State struct {
	delay atomic.Int64 // nanoseconds
	syncs atomic.Int64
	opens atomic.Int64
}

// SetDelay makes each sync from now on slower by d.
func (s *State) SetDelay(d time.Duration) { s.delay.Store(int64(d)) }

// Syncs returns how many syncs there were, DsyncOpens included.
func (s *State) Syncs() int64 { return s.syncs.Load() }

// DsyncOpens returns how many files were opened with O_DSYNC or O_SYNC.
func (s *State) DsyncOpens() int64 { return s.opens.Load() }

// OpenState maps the state file, which is made if it is not there. The mapping
// lasts as long as the process.
func OpenState(path string) (*State, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return (*State)(unsafe.Pointer(&mem[0])), nil
}

const childArg = "slowsync-child"

// Main runs the process as supervisor or as the child that becomes the command,
// when its arguments say so: SUPERVISE STATEFILE COMMAND ARGS... It returns false
// when they do not; else it does not return.
func Main(args []string) bool {
	switch {
	case len(args) >= 4 && args[1] == SuperviseArg:
		code, err := supervise(args[2], args[3:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "slow sync:", err)
			code = 1
		}
		os.Exit(code)
	case len(args) >= 3 && args[1] == childArg:
		fmt.Fprintln(os.Stderr, "slow sync:", become(args[2:]))
		os.Exit(1)
	}
	return false
}

// SuperviseArg is the first argument that makes Main a supervisor.
const SuperviseArg = "slowsync-supervise"

// become installs the filter, sends its descriptor to the supervisor over
// descriptor 3 and turns into the command.
func become(command []string) error {
	runtime.LockOSThread()
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	listener, err := install()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(3, []byte{1}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	unix.Close(3)
	unix.Close(listener)
	return syscall.Exec(path, command, os.Environ())
}

func supervise(statePath string, command []string) (int, error) {
	runtime.LockOSThread() // the child dies with the thread that started it
	runtime.GOMAXPROCS(64) // threads wait, they do not compute
	state, err := OpenState(statePath)
	if err != nil {
		return 1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 1, fmt.Errorf("socketpair: %w", err)
	}
	childEnd := os.NewFile(uintptr(pair[1]), "child")
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, append([]string{childArg}, command...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{childEnd}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	childEnd.Close()
	listener, err := receiveListener(pair[0])
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return 1, err
	}
	go serve(listener, state)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 1, err
			}
			return cmd.ProcessState.ExitCode(), nil
		}
	}
}

func receiveListener(fd int) (int, error) {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("receive the listener: %w", err)
	}
	if n == 0 {
		return -1, errors.New("the command could not be prepared")
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) == 0 {
		return -1, fmt.Errorf("receive the listener: no descriptor (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return -1, fmt.Errorf("receive the listener: no descriptor (%v)", err)
	}
	return fds[0], nil
}

// The kernel's struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	data  struct {
		nr   int32
		arch uint32
		ip   uint64
		args [6]uint64
	}
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// Waiters serve the listener at the same time, one per sync that waits. More
// syncs at once than this queue up; no server here comes near.
const waiters = 48

func serve(listener int, state *State) {
	for range waiters {
		go func() {
			runtime.LockOSThread()
			// Without this a wait would be up to 50 µs longer than asked for.
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
			for answerOne(listener, state) {
			}
		}()
	}
}

func answerOne(listener int, state *State) bool {
	var n notification
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
	if errno == unix.EINTR || errno == unix.ENOENT { // a signal; or the caller was killed
		return true
	}
	if errno != 0 {
		return false
	}
	state.syncs.Add(1)
	if nr := int(n.data.nr); nr == unix.SYS_OPENAT || nr == openCall {
		state.opens.Add(1)
	}
	if d := state.delay.Load(); d > 0 {
		end := time.Now().Add(time.Duration(d))
		for left := time.Until(end); left > 0; left = time.Until(end) {
			ts := unix.NsecToTimespec(int64(left))
			_ = unix.Nanosleep(&ts, nil)
		}
	}
	r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	return errno == 0 || errno == unix.ENOENT || errno == unix.EINTR
}
