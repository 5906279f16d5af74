//go:build !unix

package taskcmd

import (
	"os"
	"os/exec"
)

// There are no process groups here: only the command itself is ended.

func newGroup(*exec.Cmd) {}

func endGroup(p *os.Process) { p.Kill() }

func killGroup(p *os.Process) { p.Kill() }
