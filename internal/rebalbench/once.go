package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/rebalancer/routed"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// cluster is two replica sets, each with rebalancers.
type cluster struct {
	o      options
	local  *localsets.Cluster
	router *router.Router
	// running is the context of the rebalancers, and stop ends it.
	running context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// once measures with a new cluster.
func once(ctx context.Context, o options, last bool) (r result, err error) {
	dir, err := os.MkdirTemp(o.dir, "rebalbench")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &cluster{o: o}
	c.running, c.stop = context.WithCancel(ctx)
	defer c.close()
	if err := c.start(ctx, dir); err != nil {
		return r, err
	}
	if err := c.fill(ctx); err != nil {
		return r, err
	}
	if !last {
		o.profile = ""
	}
	if o.load {
		return c.underLoad(ctx, o)
	}
	return c.idle(ctx, o)
}

// idle measures without any traffic, from the moment when the added set is part of the cluster.
func (c *cluster) idle(ctx context.Context, o options) (r result, err error) {
	err = profiled(o.profile, func() error {
		if err := c.local.AddSet(ctx, "b"); err != nil {
			return err
		}
		began := time.Now()
		if err := c.rebalance("b"); err != nil {
			return err
		}
		r.moved, r.known, err = c.balanced(ctx, began)
		return err
	})
	return r, err
}

// underLoad measures with traffic, from the moment when rebalancing is turned on.
func (c *cluster) underLoad(ctx context.Context, o options) (r result, err error) {
	if _, err := routed.SetOn(ctx, c.router, false); err != nil {
		return r, err
	}
	if err := c.local.AddSet(ctx, "b"); err != nil {
		return r, err
	}
	if err := c.rebalance("b"); err != nil {
		return r, err
	}
	if r.capacity, err = c.capacity(ctx); err != nil {
		return r, err
	}
	l := c.load(ctx, r.capacity*o.share)
	defer l.end()
	if err := sleep(ctx, time.Second); err != nil { // until it is steady
		return r, err
	}
	l.take()
	if err := sleep(ctx, c.o.steady); err != nil {
		return r, err
	}
	r.before = l.take()
	err = profiled(o.profile, func() error {
		began := time.Now()
		if _, err := routed.SetOn(ctx, c.router, true); err != nil {
			return err
		}
		r.moved, r.known, err = c.balanced(ctx, began)
		return err
	})
	r.during = l.take()
	if err == nil {
		err = sleep(ctx, c.o.steady)
	}
	r.after = l.take()
	return r, err
}

func (c *cluster) start(ctx context.Context, dir string) (err error) {
	c.local, err = localsets.Start(ctx, localsets.Options{
		Dir: dir, Sets: []string{"a"}, Members: c.o.members, Buckets: uint32(c.o.buckets), Logger: c.o.logger})
	if err != nil {
		return err
	}
	if c.router, err = c.local.Router(); err != nil {
		return err
	}
	return c.rebalance("a")
}

// rebalance starts the rebalancers of a set.
func (c *cluster) rebalance(set string) error {
	for _, m := range c.local.Members(set) {
		n, err := routed.New(routed.Options{Router: m.Router, Storage: m.Storage, Server: m.Server, Limits: c.o.limits, Logger: c.o.logger.With("member", m.ID)})
		if err != nil {
			return err
		}
		c.wg.Go(func() { _ = n.Run(c.running) })
	}
	return nil
}

func (c *cluster) close() {
	c.stop()
	c.wg.Wait()
	if c.router != nil {
		c.router.Close()
	}
	if c.local != nil {
		c.local.Close()
	}
}

// balanced waits until both sets have half of the buckets, and then until the router of a process
// without a storage knows where each of them is.
func (c *cluster) balanced(ctx context.Context, began time.Time) (moved, known time.Duration, err error) {
	a, err := c.local.Master(ctx, "a")
	if err != nil {
		return 0, 0, err
	}
	b, err := c.local.Master(ctx, "b")
	if err != nil {
		return 0, 0, err
	}
	want := c.o.buckets / 2
	for b.Storage.BucketCounts()[shard.Active] != want || a.Storage.BucketCounts()[shard.Active] != c.o.buckets-want {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return 0, 0, fmt.Errorf("a has %v, b has %v: %w", a.Storage.BucketCounts(), b.Storage.BucketCounts(), err)
		}
	}
	moved = time.Since(began)
	for id := shard.BucketID(1); int(id) <= c.o.buckets; id++ {
		where := "a"
		if state, _ := b.Storage.BucketState(id); state == shard.Active {
			where = "b"
		}
		for {
			if at, err := c.router.Route(id); err == nil && at == where {
				break
			}
			if err := sleep(ctx, time.Millisecond); err != nil {
				return 0, 0, err
			}
		}
	}
	return moved, time.Since(began) - moved, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
