package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/server"
	"github.com/switchyard-dev/switchyard/shard/router"
)

const (
	clusterID   = "bands"
	bucketCount = 60
)

// cluster is some nodes in this process. In real life each is a process of its own, made
// of the same server.New with the same functions.
type cluster struct {
	dir    string
	seeds  []string
	sets   []router.Set
	public []string
	cancel context.CancelFunc
	ctx    context.Context
	ended  sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newCluster() (*cluster, error) {
	dir, err := os.MkdirTemp("", "bands-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// start starts a node with a replica set of its own.
func (c *cluster) start(set string) error {
	addresses, err := freeAddresses(3)
	if err != nil {
		return err
	}
	config := server.DefaultConfig()
	config.Listen = addresses[0]
	config.DataDir = filepath.Join(c.dir, set)
	config.BucketCount = bucketCount
	config.Node.Name = "node-of-" + set
	config.Cluster.ID = clusterID
	config.Cluster.ReplicaSet = set
	config.Cluster.Listen, config.Cluster.Gossip = addresses[1], addresses[2]
	config.Cluster.Seeds = c.seeds
	config.Cluster.AlignChanges = 0
	node, err := server.New(config, slog.New(slog.DiscardHandler), register)
	if err != nil {
		return err
	}
	c.ended.Go(func() {
		err := node.Run(c.ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.errs = append(c.errs, err)
	})
	c.seeds = append(c.seeds, addresses[2])
	c.public = append(c.public, addresses[0])
	c.sets = append(c.sets, router.Set{Name: set, Members: []router.Member{{ID: config.Node.Name, Address: addresses[1]}}})
	return nil
}

// operate calls the operators' service of the first node, again until what it needs is there.
func (c *cluster) operate(ctx context.Context, do func(context.Context, v1.ClusterServiceClient) error) error {
	conn, err := grpc.NewClient(c.public[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		err := do(ctx, v1.NewClusterServiceClient(conn))
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// stop stops all nodes and removes their data.
func (c *cluster) stop() error {
	c.cancel()
	c.ended.Wait()
	return errors.Join(append(c.errs, os.RemoveAll(c.dir))...)
}

// freeAddresses finds addresses that nobody listens on.
func freeAddresses(n int) ([]string, error) {
	all := make([]string, n)
	for i := range all {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("no free port: %w", err)
		}
		defer l.Close()
		all[i] = l.Addr().String()
	}
	return all, nil
}
