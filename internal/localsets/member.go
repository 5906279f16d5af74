package localsets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
	"github.com/switchyard-dev/switchyard/shard/storage/transferrpc"
)

// Member is one member of a replica set.
type Member struct {
	// ID is unique in the cluster, Address where it serves, also after it was started again.
	ID, Set, Address string
	// Storage, Engine, Server and Router are those of the living member.
	Storage *storage.Storage
	Engine  *raftengine.Engine
	Server  *storagerpc.Server
	Router  *router.Router

	c        *Cluster
	dir      string
	listener net.Listener // before Start
	grpc     *grpc.Server
	served   chan struct{}
}

// Alive tells whether the member runs.
func (m *Member) Alive() bool { return m.grpc != nil }

// Start starts the member, with what its folder has.
func (m *Member) Start(ctx context.Context) (err error) {
	if m.Alive() {
		return fmt.Errorf("member %s runs already", m.ID)
	}
	defer func() {
		if err != nil {
			m.Kill()
		}
	}()
	if m.listener == nil {
		if m.listener, err = m.listen(ctx); err != nil {
			return err
		}
	}
	tr, err := raftrpc.New(raftrpc.Options{ID: m.ID, ReplicaSet: m.Set, Address: m.Address, Logger: m.c.opts.Logger})
	if err != nil {
		return err
	}
	link := &transferrpc.Link{}
	opts := storage.Options{
		Registry: m.c.opts.Functions(), BucketCount: m.c.opts.Buckets, ReplicaSet: m.Set, Link: link, Logger: m.c.opts.Logger.With("member", m.ID),
	}
	opts.OpenEngine = func(ctx context.Context, machine engine.Machine) (engine.Engine, error) {
		o := m.c.opts.Engine
		o.Dir, o.Machine, o.BucketCount, o.Transport = m.dir, machine, opts.BucketCount, tr
		e, err := raftengine.Open(ctx, o)
		m.Engine = e
		return e, err
	}
	if m.c.opts.Storage != nil {
		m.c.opts.Storage(&opts)
	}
	if m.Storage, err = storage.Open(ctx, opts); err != nil {
		return errors.Join(err, tr.Close())
	}
	if m.Server, err = storagerpc.NewServer(storagerpc.ServerOptions{Storage: m.c.opts.Serve(m.Storage), Member: m.ID, Logger: m.c.opts.Logger}); err != nil {
		return err
	}
	m.Router, err = router.New(router.Options{Topology: m.c.Topology(), Local: m.Server, ClusterID: ClusterID, Logger: m.c.opts.Logger})
	if err != nil {
		return err
	}
	link.Attach(m.Router)
	m.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(raftrpc.DefaultMaxRequestBytes+1<<20), grpc.MaxSendMsgSize(storagerpc.MaxMessage))
	m.Server.Register(m.grpc)
	tr.Register(m.grpc)
	transferrpc.Register(m.grpc, m.Storage, m.c.opts.Logger)
	m.served = make(chan struct{})
	l, server, served := m.listener, m.grpc, m.served
	m.listener = nil
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends with Stop
	}()
	return nil
}

// listen takes the member's address again, which the system may need a moment for.
func (m *Member) listen(ctx context.Context) (net.Listener, error) {
	for {
		l, err := net.Listen("tcp", m.Address)
		if err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the member without a goodbye. It may be started again.
func (m *Member) Kill() {
	if m.grpc != nil {
		m.grpc.Stop()
		<-m.served
	}
	if m.Server != nil {
		m.Server.Close()
	}
	if m.Router != nil {
		m.Router.Close()
	}
	if m.Storage != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.Storage.Close(ended) // it has no time, which is an error
	}
	m.grpc, m.Server, m.Router, m.Storage, m.Engine = nil, nil, nil, nil, nil
}
