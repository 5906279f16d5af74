package grouptest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
)

// processEnv makes the test binary a member: its folder, id and address.
const processEnv = "SWITCHYARD_TEST_MEMBER"

// A member in a process of its own answers one line with one line, in JSON.
type (
	question struct {
		// Do is bootstrap, add, names or status.
		Do      string
		Name    string
		Members []engine.Member
	}
	answer struct {
		Code   shard.Code // of an error
		Err    string
		Names  []string
		Master bool
	}
)

// serveMember runs a member until its standard input ends.
func serveMember(spec string) error {
	f := strings.Split(spec, "\n")
	l, err := net.Listen("tcp", f[2])
	if err != nil {
		return err
	}
	address := l.Addr().String()
	tr, err := raftrpc.New(raftrpc.Options{ID: f[1], ReplicaSet: "set-1", Address: address})
	if err != nil {
		return err
	}
	e, err := raftengine.Open(context.Background(), smallLog(raftengine.Options{
		Dir: f[0], Machine: list{}, BucketCount: 16, Transport: tr,
		HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond,
		OnFatal: func(err error) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		},
	}))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	tr.Register(server)
	go func() { _ = server.Serve(l) }()
	fmt.Println(address)
	out := json.NewEncoder(os.Stdout)
	for in := json.NewDecoder(os.Stdin); ; {
		var q question
		if err := in.Decode(&q); err != nil {
			return nil // the test has ended
		}
		if err := out.Encode(reply(e, &q)); err != nil {
			return err
		}
	}
}

func reply(e *raftengine.Engine, q *question) (a answer) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var err error
	switch q.Do {
	case "bootstrap":
		err = e.Bootstrap(ctx, q.Members)
	case "add":
		done := make(chan error, 1)
		e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte(q.Name)}, func(_ []byte, err error) { done <- err })
		select {
		case err = <-done:
		case <-ctx.Done():
			err = ctx.Err()
		}
	case "names":
		err = e.View(ctx, func(r engine.Reader) error {
			return r.Scan(firstKey, lastKey, false, func(k, _ []byte) bool {
				a.Names = append(a.Names, string(k[len(firstKey):]))
				return true
			})
		})
	case "status":
		a.Master = e.Status().State == engine.Master
	}
	if err != nil {
		a.Err = err.Error()
		var se *shard.Error
		if errors.As(err, &se) {
			a.Code = se.Code
		}
	}
	return a
}

// process is a member in a process of its own.
type process struct {
	t                *testing.T
	id, dir, address string
	cmd              *exec.Cmd
	in               io.WriteCloser
	out              *bufio.Reader
}

func (p *process) start() {
	p.t.Helper()
	at := p.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), processEnv+"="+strings.Join([]string{p.dir, p.id, at}, "\n"))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("member %s does not start: %v", p.id, err)
	}
	p.address = strings.TrimSpace(line)
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	_ = p.cmd.Wait()
	p.cmd = nil
}

// ask returns an answer with Err when the process is gone or hangs.
func (p *process) ask(q question) (a answer) {
	if p.cmd == nil {
		return answer{Err: "it is dead"}
	}
	guard := time.AfterFunc(30*time.Second, func() { _ = p.in.Close() })
	defer guard.Stop()
	err := json.NewEncoder(p.in).Encode(q)
	if err == nil {
		var line []byte
		if line, err = p.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &a)
		}
	}
	if err != nil {
		return answer{Err: err.Error()}
	}
	return a
}

// processes is a replica set of three.
type processes struct {
	t   *testing.T
	all []*process
}

func startProcesses(t *testing.T) *processes {
	t.Helper()
	g := &processes{t: t}
	var members []engine.Member
	for _, id := range []string{"a", "b", "c"} {
		p := &process{t: t, id: id, dir: filepath.Join(t.TempDir(), id)}
		t.Cleanup(p.kill)
		p.start()
		g.all = append(g.all, p)
		members = append(members, engine.Member{ID: id, Address: p.address, Voter: true})
	}
	if a := g.all[0].ask(question{Do: "bootstrap", Members: members}); a.Err != "" {
		t.Fatal(a.Err)
	}
	return g
}

func (g *processes) master() (m *process) {
	g.t.Helper()
	eventually(g.t, "there is a master", func() bool {
		for _, p := range g.all {
			if p.ask(question{Do: "status"}).Master {
				m = p
				return true
			}
		}
		return false
	})
	return m
}

// add adds a row through whoever is the master.
func (g *processes) add(name string) {
	g.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		a := g.master().ask(question{Do: "add", Name: name})
		if a.Err == "" {
			return
		}
		if a.Code != shard.NonMaster && a.Code != shard.OutcomeUnknown || time.Now().After(deadline) {
			g.t.Fatalf("add %s: %s", name, a.Err)
		}
	}
}

// TestProcesses_surviveTheKillingOfAnyMember kills each member in turn, the master first,
// and once one that has lost its disk before it comes back.
func TestProcesses_surviveTheKillingOfAnyMember(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	g := startProcesses(t)
	var want []string
	more := func(prefix string) {
		t.Helper()
		for _, name := range rows(prefix, 30) {
			g.add(name)
			want = append(want, name)
		}
	}
	more("a")
	for round, pick := range []string{"the master", "a replica", "the master", "a replica with its disk"} {
		victim := g.master()
		if pick != "the master" {
			i := slices.Index(g.all, victim)
			victim = g.all[(i+1)%3]
		}
		victim.kill()
		more(fmt.Sprintf("b%d", round))
		if pick == "a replica with its disk" {
			if err := os.RemoveAll(victim.dir); err != nil {
				t.Fatal(err)
			}
		}
		victim.start()
		more(fmt.Sprintf("c%d", round))
		sorted := slices.Sorted(slices.Values(want))
		for _, p := range g.all {
			eventually(t, "member "+p.id+" has all rows after "+pick+" was killed", func() bool {
				return slices.Equal(p.ask(question{Do: "names"}).Names, sorted)
			})
		}
	}
}
