package grouptest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(processEnv); spec != "" {
		if err := serveMember(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// list is a machine whose command adds a row named by its arguments.
type list struct{}

var (
	firstKey = []byte{0, 0, 0, 1, 2}
	lastKey  = []byte{0, 0, 0, 1, 3}
)

func (list) Reset(engine.Reader) error { return nil }

func (list) Apply(tx engine.Tx, cmd *engine.Command) ([]byte, error) {
	k, v := tx.Put(len(firstKey)+len(cmd.Args), 1)
	copy(k[copy(k, firstKey):], cmd.Args)
	v[0]++
	return nil, nil
}

// member is one member: a folder and an address that outlive its engine.
type member struct {
	t       *testing.T
	id, dir string
	address string
	engine  *raftengine.Engine
	tr      *raftrpc.Transport
	server  *grpc.Server
	served  chan error
	// options changes those of the engine, when it is not nil.
	options func(raftengine.Options) raftengine.Options
	// dial is appended to the options of connections to other members.
	dial []grpc.DialOption
	// fatal gets why an engine failed, and down is closed then, where a process would end.
	fatal chan error
	down  chan struct{}
	// cut closes the network in both directions while it is set.
	cut *atomic.Bool
}

var errCut = errors.New("the network is cut")

// gated is a connection that breaks while the network of its member is cut.
type gated struct {
	net.Conn
	cut *atomic.Bool
}

func (g gated) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.cut.Load() {
		_ = g.Close()
		return 0, errCut
	}
	return n, err
}

func (g gated) Write(b []byte) (int, error) {
	if g.cut.Load() {
		_ = g.Close()
		return 0, errCut
	}
	return g.Conn.Write(b)
}

type gate struct {
	net.Listener
	cut *atomic.Bool
}

func (g gate) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return gated{c, g.cut}, nil
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// idleMember is a member that has to be started.
func idleMember(t *testing.T, id string) *member {
	m := &member{t: t, id: id, dir: filepath.Join(t.TempDir(), id), cut: new(atomic.Bool), fatal: make(chan error, 16)}
	t.Cleanup(func() { m.kill() })
	return m
}

// start starts the member's engine on what is in its folder.
func (m *member) start() {
	m.t.Helper()
	at := m.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		m.t.Fatal(err)
	}
	m.address = l.Addr().String()
	m.tr, err = raftrpc.New(raftrpc.Options{ID: m.id, ReplicaSet: "set-1", Address: m.address, DialOptions: append(m.dialOptions(), m.dial...)})
	if err != nil {
		m.t.Fatal(err)
	}
	down := make(chan struct{})
	m.down = down
	failed := func(err error) {
		select {
		case m.fatal <- err:
		default:
		}
		close(down)
	}
	o := raftengine.Options{
		Dir: m.dir, Machine: list{}, BucketCount: 16, Transport: m.tr, OnFatal: failed,
		HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond,
	}
	if m.options != nil {
		o = m.options(o)
	}
	o = o.WithCloseGrace(30 * time.Second)
	if m.engine, err = raftengine.Open(testContext(m.t), o); err != nil {
		m.t.Fatal(err)
	}
	m.server = grpc.NewServer()
	m.tr.Register(m.server)
	m.served = make(chan error, 1)
	server, served := m.server, m.served
	go func() { served <- server.Serve(gate{l, m.cut}) }()
}

// kill ends the member without a goodbye and without a flush.
func (m *member) kill() {
	m.t.Helper()
	if m.engine == nil {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	m.server.Stop()
	<-m.served
	_ = m.engine.Close(ended) // it has no time, which is an error
	m.engine = nil
}

// propose adds a row through this member.
func (m *member) propose(name string) error {
	done := make(chan error, 1)
	m.engine.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte(name)}, func(_ []byte, err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-m.down:
		return &shard.Error{Code: shard.StoreFailed}
	case <-time.After(time.Minute):
		return errors.New("no answer")
	}
}

func (m *member) names() (names []string) {
	m.t.Helper()
	err := m.engine.View(testContext(m.t), func(r engine.Reader) error {
		return r.Scan(firstKey, lastKey, false, func(k, _ []byte) bool {
			names = append(names, string(k[len(firstKey):]))
			return true
		})
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

// group is a replica set of members a, b, c, …; a begins as its master.
type group struct {
	t       *testing.T
	members []*member
}

func newGroup(t *testing.T, n int) *group {
	return newGroupOf(t, n, func(*member) {})
}

// newGroupOf is newGroup of members that are changed before they start.
func newGroupOf(t *testing.T, n int, change func(*member)) *group {
	t.Helper()
	g := &group{t: t}
	var all []engine.Member
	for i := range n {
		m := idleMember(t, string(rune('a'+i)))
		change(m)
		m.start()
		g.members = append(g.members, m)
		all = append(all, engine.Member{ID: m.id, Address: m.address, Voter: true})
	}
	if err := g.members[0].engine.Bootstrap(testContext(t), all); err != nil {
		t.Fatal(err)
	}
	return g
}

// master returns a member that takes commands, other than those that are left out.
func (g *group) master(but ...*member) (m *member) {
	g.t.Helper()
	eventually(g.t, "there is a master", func() bool {
		for _, c := range g.members {
			if c.engine != nil && !slices.Contains(but, c) && c.engine.Status().State == engine.Master {
				m = c
				return true
			}
		}
		return false
	})
	return m
}

// add adds a row through whoever is the master, however often it changes.
func (g *group) add(name string, but ...*member) {
	g.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := g.master(but...).propose(name)
		if err == nil {
			return
		}
		if !passes(err) && !errors.Is(err, shard.StoreFailed) || time.Now().After(deadline) {
			g.t.Fatalf("add %s: %v", name, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func (g *group) wantEverywhere(want []string) {
	g.t.Helper()
	for _, m := range g.members {
		if m.engine != nil {
			deadline := time.Now().Add(30 * time.Second)
			for !slices.Equal(m.names(), want) {
				if time.Now().After(deadline) {
					g.t.Fatalf("member %s has %d rows, not the %d it should; %+v", m.id, len(m.names()), len(want), m.engine.Status())
				}
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
}

func rows(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%03d", prefix, i))
	}
	return names
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// addMany adds rows through the master, many at once.
func (g *group) addMany(names []string) {
	g.t.Helper()
	type outcome struct {
		name string
		err  error
	}
	m := g.master()
	answers := make(chan outcome, len(names))
	for _, name := range names {
		m.engine.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte(name)}, func(_ []byte, err error) { answers <- outcome{name, err} })
	}
	for range names {
		select {
		case o := <-answers:
			if o.err != nil && !passes(o.err) {
				g.t.Fatal(o.err)
			}
			if o.err != nil {
				g.add(o.name)
			}
		case <-time.After(time.Minute):
			g.t.Fatal("a command has no answer")
		}
	}
}

// passes tells whether an error is what calls meet when the master changes, which it may do
// at any time on a machine that is busy with other things.
func passes(err error) bool {
	return errors.Is(err, shard.NonMaster) || errors.Is(err, shard.OutcomeUnknown)
}

// onMaster does something that may be done twice on whoever is the master.
func (g *group) onMaster(do func(m *member) error) error {
	g.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := do(g.master())
		if err == nil || !passes(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// outrun adds rows until the log of the master, which has smallLog, is cut behind what a
// member that is away has.
func (g *group) outrun(prefix string) (added []string) {
	g.t.Helper()
	const chunk, enough = 500, 2000
	// The log is cut after a snapshot and before the next one.
	at := uint64(0)
	for at == 0 || g.master().engine.Status().SnapshotAt == at {
		if now := g.master().engine.Status().SnapshotAt; now >= enough {
			at = now
		}
		if len(added) > 100*chunk {
			g.t.Fatal("no snapshot is taken")
		}
		var names []string
		for i := range chunk {
			names = append(names, fmt.Sprintf("%s%06d%s", prefix, len(added)+i, noise(len(added)+i)))
		}
		g.addMany(names)
		added = append(added, names...)
	}
	return added
}

// noise is a text that cannot be made much smaller.
func noise(seed int) string {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	b := make([]byte, 100)
	for i := range b {
		b[i] = byte('0' + r.IntN(64))
	}
	return string(b)
}

// smallLog makes snapshots come often and leave little of the log.
func smallLog(o raftengine.Options) raftengine.Options {
	o.SnapshotBytes, o.TrailingBytes, o.MemTableBytes = 64<<10, 1, 256<<10
	return o
}
