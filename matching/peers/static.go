package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/membership/ring"
)

// Node is a matching node.
type Node struct {
	// Name is the node's name in the cluster: it decides which partitions are its.
	Name string
	// Address is host:port of its internal port.
	Address string
}

// StaticOptions configure Static.
type StaticOptions struct {
	// Nodes are all matching nodes of the cluster; see Static.SetNodes. Required.
	Nodes []Node
	// DialOptions are for connections to them. Required: they say at least which
	// credentials are used.
	DialOptions []grpc.DialOption
	// BatchSize of spread routing, the same as the nodes'; 0 for basic routing.
	BatchSize int
	// CloseDelay is how long a connection outlives its node. Default 30 s.
	CloseDelay time.Duration
	// Logger; default slog.Default().
	Logger *slog.Logger
}

// Static finds the owners of partitions among nodes that are given, for clients that take
// no part in gossip. While the list is out of date, calls are sent to nodes that refuse them
// with PARTITION_MOVED. All methods may be called from any goroutine.
type Static struct {
	o   StaticOptions
	now atomic.Pointer[snapshot]

	mu     sync.Mutex
	links  map[string]*link // by address
	timers map[string]*time.Timer
	closed bool
}

var _ matching.Peers = (*Static)(nil)

// NewStatic makes it. Connections are made when they are first used.
func NewStatic(o StaticOptions) (*Static, error) {
	if len(o.DialOptions) == 0 {
		return nil, errors.New("peers: StaticOptions.DialOptions are missing")
	}
	if o.BatchSize < 0 || o.BatchSize > routing.MaxBatchSize {
		return nil, fmt.Errorf("peers: a batch size of %d; 0 to %d are possible", o.BatchSize, routing.MaxBatchSize)
	}
	if o.CloseDelay <= 0 {
		o.CloseDelay = defaultCloseDelay
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Static{o: o, links: map[string]*link{}, timers: map[string]*time.Timer{}}
	if err := s.SetNodes(o.Nodes); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// SetNodes replaces the list. Connections to nodes that are not on it any more are closed
// after CloseDelay. With an error nothing changes.
func (s *Static) SetNodes(nodes []Node) error {
	if len(nodes) == 0 {
		return errors.New("peers: there are no nodes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("peers: closed")
	}
	fresh := &snapshot{ready: true, links: make(map[string]*link, len(nodes))}
	var names []string
	here := map[string]bool{}
	for _, n := range nodes {
		switch _, twice := fresh.links[n.Name]; {
		case n.Name == "" || n.Address == "":
			return fmt.Errorf("peers: node %q with address %q: both are needed", n.Name, n.Address)
		case twice:
			return fmt.Errorf("peers: node %q is named twice", n.Name)
		}
		l := s.links[n.Address]
		if l == nil {
			var err error
			if l, err = connect(n.Address, s.o.DialOptions); err != nil {
				return err
			}
			s.links[n.Address] = l
		}
		fresh.links[n.Name] = l
		names = append(names, n.Name)
		here[n.Address] = true
	}
	fresh.ring = ring.New(names)
	s.now.Store(fresh)
	for address := range s.links {
		if t := s.timers[address]; t != nil && here[address] {
			t.Stop()
			delete(s.timers, address)
		} else if t == nil && !here[address] {
			s.timers[address] = time.AfterFunc(s.o.CloseDelay, func() { s.drop(address) })
		}
	}
	return nil
}

// drop closes the connection to a node that is gone.
func (s *Static) drop(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timers[address] == nil {
		return // it came back
	}
	delete(s.timers, address)
	s.close(address)
}

func (s *Static) close(address string) {
	l := s.links[address]
	delete(s.links, address)
	if err := l.conn.Close(); err != nil {
		s.o.Logger.Warn("connection to a matching node was not closed well", "address", address, "err", err)
	}
}

// Close ends all connections; calls under way fail.
func (s *Static) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, t := range s.timers {
		t.Stop()
	}
	clear(s.timers)
	for address := range s.links {
		s.close(address)
	}
	return nil
}

// Owner implements matching.Peers.
func (s *Static) Owner(id matching.PartitionID) (v1.MatchingServiceServer, bool, error) {
	now := s.now.Load()
	name, err := routing.Owner(now.ring, placeOf(id), s.o.BatchSize)
	if err != nil {
		return nil, false, notReady(id, err.Error())
	}
	return now.links[name].client, false, nil
}

func placeOf(id matching.PartitionID) routing.Partition {
	return routing.Partition{Namespace: id.Namespace, Queue: id.Queue, Number: id.Number, Sticky: id.Sticky}
}
