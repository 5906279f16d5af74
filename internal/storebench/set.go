package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// patience bounds every wait for a process or a replica set.
const patience = 60 * time.Second

// process is a member in a process of its own.
type process struct {
	id, dir, address string
	cmd              *exec.Cmd
	in               io.WriteCloser
	lines            chan string
}

// start starts the process and waits until it serves, at the same address as before.
func (p *process) start(extra ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{memberCommand, "-id", p.id, "-dir", p.dir}, extra...)
	if p.address != "" {
		args = append(args, "-listen", p.address)
	}
	p.cmd = exec.Command(self, args...)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	lines := make(chan string, 16)
	p.lines = lines
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	line, err := p.read()
	if err != nil {
		return err
	}
	p.address = strings.TrimPrefix(line, "at ")
	return nil
}

func (p *process) read() (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", fmt.Errorf("member %s ended", p.id)
		}
		return line, nil
	case <-time.After(patience):
		return "", fmt.Errorf("member %s says nothing", p.id)
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	for range p.lines {
	}
	_ = p.cmd.Wait()
	p.cmd = nil
}

// stop ends the process in order.
func (p *process) stop() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.in.Close()
	guard := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer guard.Stop()
	for range p.lines {
	}
	_ = p.cmd.Wait()
	p.cmd = nil
}

// set is a replica set of processes, and a router to it.
type set struct {
	members []*process
	router  *router.Router
}

// startSet makes a replica set in a new folder below dir.
func startSet(dir string, size int, profile string) (_ *set, err error) {
	s := &set{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	topology := router.Set{Name: setName}
	var group []engine.Member
	for i := range size {
		p := &process{id: fmt.Sprintf("%s%d", setName, i+1), dir: filepath.Join(dir, fmt.Sprintf("%d-of-%d", i+1, size))}
		s.members = append(s.members, p)
		var extra []string
		if profile != "" {
			extra = []string{"-profile", filepath.Join(profile, fmt.Sprintf("%s-of-%d.cpu", p.id, size))}
		}
		if err := p.start(extra...); err != nil {
			return nil, err
		}
		topology.Members = append(topology.Members, router.Member{ID: p.id, Address: p.address})
		group = append(group, engine.Member{ID: p.id, Address: p.address, Voter: true})
	}
	text, err := json.Marshal(group)
	if err != nil {
		return nil, err
	}
	if _, err := s.members[0].in.Write(append(text, '\n')); err != nil {
		return nil, err
	}
	if _, err := s.members[0].read(); err != nil {
		return nil, err
	}
	if s.router, err = router.New(router.Options{Topology: router.Static(topology), ClusterID: clusterID, BucketCount: buckets}); err != nil {
		return nil, err
	}
	return s, s.wait()
}

// wait waits until all members are there and have everything.
func (s *set) wait() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		info := s.router.Info(ctx)
		if info.Level == router.Green {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the replica set is not well: %+v", info.Alerts), ctx.Err())
		}
	}
}

// master returns the member that is master.
func (s *set) master() (*process, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		for _, r := range s.router.Info(ctx).ReplicaSets {
			for _, p := range s.members {
				if p.id == r.Master {
					return p, nil
				}
			}
		}
	}
	return nil, errors.New("there is no master")
}

func (s *set) close() {
	if s.router != nil {
		s.router.Close()
	}
	for _, p := range s.members {
		p.stop()
		_ = os.RemoveAll(p.dir)
	}
}
