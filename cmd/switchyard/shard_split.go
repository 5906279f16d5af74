package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func newShardSplitCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "split",
		Short: "Double the number of buckets while everything runs",
		Long: `Double bucket_count: every bucket is split in place, into itself and one with a
number above all others. Calls go on meanwhile.

  1. switchyard shard split start      the buckets are split in the background
  2. switchyard shard split status     until all are
  3. set the double bucket_count in the configuration of every node and restart
     one after the other; both counts are served
  4. switchyard shard split finish     the old one is refused from then on

From 1 to 4 no bucket moves to another replica set and none changes its state. After
1 there is no way back, only on. docs/sharding.md says how it works.`,
		Example: `  switchyard shard split start
  switchyard shard split status --watch
  switchyard shard split finish`,
	}
	asGroup(c)
	c.AddCommand(newShardSplitStartCommand(a), newShardSplitStatusCommand(a), newShardSplitFinishCommand(a))
	return c
}

func newShardSplitStartCommand(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "start",
		Short: "Begin to double the number of buckets",
		Long: `Begin to double bucket_count in every replica set. All of them must answer. Moves
that are under way are waited for, within --timeout. When a replica set cannot
begin, nothing is changed, or, if others have begun, the same command goes on.`,
		Example: `  switchyard shard split start
  switchyard shard split start --yes --timeout 1m`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes {
				if !isTerminal(a.stdin) {
					return &exitError{code: exitRefused, err: errors.New("this cannot be undone, and there is no terminal to ask on: give --yes")}
				}
				if err := a.ask("Double the number of buckets? It cannot be undone once it has begun.", "nothing was begun"); err != nil {
					return err
				}
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.StartDoubling(ctx, &v1.StartDoublingRequest{})
				if err != nil {
					return err
				}
				return a.done(map[string]any{"bucket_count": resp.GetBucketCount(), "doubled": resp.GetDoubled()},
					"%d buckets are being split into %d; see: switchyard shard split status --watch", resp.GetBucketCount(), resp.GetDoubled())
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func newShardSplitStatusCommand(a *app) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how far the doubling is, and what it waits for",
		Long: `Show how far the doubling of bucket_count is, on every member of every replica set,
and what finish would wait for.

--watch follows it until every bucket is split.`,
		Example: `  switchyard shard split status
  switchyard shard split status --watch`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if watch {
				return a.watchSplit(c.Context())
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.DescribeDoubling(ctx, &v1.DescribeDoublingRequest{})
				if err != nil {
					return err
				}
				return a.printSplit(resp)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "follow it until every bucket is split")
	return c
}

func newShardSplitFinishCommand(a *app) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "finish",
		Short: "End the doubling: only the new number of buckets counts",
		Long: `End the doubling of bucket_count. Every bucket must be split, every node must have
the new bucket_count, and every member must answer.

--force leaves out the nodes: those that have the old bucket_count or do not answer
are refused from then on, until they are restarted with the new one. It also goes
on when rows were found with hashes that are not of their buckets; nodes with the
new bucket_count may not find those.`,
		Example: `  switchyard shard split finish
  switchyard shard split finish --force`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.FinishDoubling(ctx, &v1.FinishDoublingRequest{Force: force})
				if err != nil {
					return err
				}
				return a.done(map[string]any{"bucket_count": resp.GetBucketCount()}, "the store has %d buckets", resp.GetBucketCount())
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "although nodes have the old bucket_count, or rows are misplaced")
	return c
}

type splitMemberView struct {
	Node       string `json:"node"`
	ReplicaSet string `json:"replica_set"`
	Master     bool   `json:"master"`
	Phase      string `json:"phase,omitempty"`
	Configured uint32 `json:"configured,omitempty"`
	OldCallers uint32 `json:"old_callers"`
	Error      string `json:"error,omitempty"`
}

type splitView struct {
	Phase         string            `json:"phase"`
	BucketCount   uint32            `json:"bucket_count"`
	Buckets       uint32            `json:"buckets"`
	Done          uint32            `json:"done"`
	Rows          uint64            `json:"rows"`
	MovedRows     uint64            `json:"moved_rows"`
	MovedBytes    uint64            `json:"moved_bytes"`
	MisplacedRows uint64            `json:"misplaced_rows"`
	WaitsFor      string            `json:"waits_for,omitempty"`
	OldNodes      []string          `json:"old_nodes"`
	Members       []splitMemberView `json:"members"`
}

func viewSplit(r *v1.DescribeDoublingResponse) splitView {
	v := splitView{
		Phase: r.GetPhase(), BucketCount: r.GetBucketCount(), Buckets: r.GetBuckets(), Done: r.GetDone(), Rows: r.GetRows(),
		MovedRows: r.GetMovedRows(), MovedBytes: r.GetMovedBytes(), MisplacedRows: r.GetMisplacedRows(), WaitsFor: r.GetWaitsFor(),
		OldNodes: append([]string{}, r.GetOldNodes()...), Members: []splitMemberView{},
	}
	for _, m := range r.GetMembers() {
		v.Members = append(v.Members, splitMemberView{m.GetNode(), m.GetReplicaSet(), m.GetMaster(), m.GetPhase(), m.GetConfigured(), m.GetOldCallers(), m.GetError()})
	}
	return v
}

func (a *app) printSplit(r *v1.DescribeDoublingResponse) error {
	v := viewSplit(r)
	if a.json() {
		return a.printJSON(v)
	}
	t := a.newTable()
	t.field("Phase", v.Phase)
	if v.Phase == "steady" {
		t.field("Buckets", fmt.Sprintf("%d, not being doubled", v.BucketCount))
		return t.flush()
	}
	t.field("Buckets", fmt.Sprintf("%d, to be %d", v.BucketCount, 2*v.BucketCount))
	t.field("Split", splitLine(v))
	if v.MisplacedRows > 0 {
		t.field("Misplaced", plural(int64(v.MisplacedRows), "row")+" with hashes that are not of their buckets")
	}
	t.field("Waits for", printable(orDash(v.WaitsFor), 300))
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	t = a.newTable("SET", "NODE", "PHASE", "CONFIGURED", "OLD CALLERS", "")
	for _, m := range v.Members {
		note := printable(m.Error, 120)
		if m.Master {
			note = "master"
		}
		t.row(m.ReplicaSet, m.Node, orDash(m.Phase), fmt.Sprint(m.Configured), fmt.Sprint(m.OldCallers), note)
	}
	return t.flush()
}

func splitLine(v splitView) string {
	return fmt.Sprintf("%d of %s, %s moved, %s", v.Done, plural(int64(v.Buckets), "bucket"), plural(int64(v.MovedRows), "row"), bytesText(v.MovedBytes))
}

// splitInterval is how often a doubling that is watched is asked for.
const splitInterval = 250 * time.Millisecond

// watchSplit shows a progress line until every bucket is split.
func (a *app) watchSplit(parent context.Context) error {
	ctx, _, stop := interrupts(parent)
	defer stop()
	var line statusLine
	line.set("asking the replica sets")
	var last *v1.DescribeDoublingResponse
	err := a.withCluster(func(cc v1.ClusterServiceClient) error {
		p := a.startProgress(true, 0, 200*time.Millisecond, line.get)
		defer p.end()
		tick := time.NewTicker(splitInterval)
		defer tick.Stop()
		for {
			call, cancel := context.WithTimeout(ctx, a.timeout)
			resp, err := cc.DescribeDoubling(call, &v1.DescribeDoublingRequest{})
			cancel()
			if err != nil {
				return err
			}
			last = resp
			line.set(splitLine(viewSplit(resp)))
			if p := resp.GetPhase(); p == "split" || p == "steady" {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err != nil {
		return err
	}
	if err := a.printSplit(last); err != nil {
		return err
	}
	if last.GetPhase() == "steady" {
		return &exitError{code: exitRefused, err: errors.New("bucket_count is not being doubled; begin with: switchyard shard split start")}
	}
	return nil
}
