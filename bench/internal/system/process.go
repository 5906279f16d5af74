package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// process is a server process with its output in a log file.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// startProcess starts a command, supervised when env says so. It gets a process
// group of its own and does not outlive this process.
func startProcess(env Env, who *user.User, environ []string, command ...string) (*process, error) {
	command = append(append([]string(nil), env.Supervise...), command...)
	logPath := filepath.Join(env.Dir, "server.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = env.Dir
	cmd.Env = append(os.Environ(), environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if who != nil {
		credential, err := credentialOf(who)
		if err != nil {
			return nil, err
		}
		cmd.SysProcAttr.Credential = credential
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	p := &process{cmd: cmd, log: logPath, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func credentialOf(who *user.User) (*syscall.Credential, error) {
	uid, err := strconv.ParseUint(who.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(who.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// waitFor calls probe until it succeeds, the process ends or the time is over.
func (p *process) waitFor(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("the server ended (%v): %s", p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("the server did not start within %v: %w: %s", timeout, err, p.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return string(bytes.TrimSpace(b))
}

// stop asks the process to end and kills its group when it takes too long.
func (p *process) stop(sig syscall.Signal, patience time.Duration) error {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("the server did not stop within %v and was killed", patience)
	}
	// What is left of its group, helpers of the server for example.
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// freePorts returns n unused loopback ports.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// probeTCP succeeds when something accepts connections there.
func probeTCP(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// output runs a command and returns its trimmed first output line.
func output(ctx context.Context, command ...string) (string, error) {
	b, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command[0], err, bytes.TrimSpace(b))
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return string(line), nil
}
