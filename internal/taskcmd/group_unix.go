//go:build unix

package taskcmd

import (
	"os"
	"os/exec"
	"syscall"
)

// newGroup gives the command a process group of its own, so that it can be
// ended with all its children and does not get the terminal's interrupt.
func newGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func endGroup(p *os.Process) { syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { syscall.Kill(-p.Pid, syscall.SIGKILL) }
