package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func newShardAddMemberCommand(a *app) *cobra.Command {
	var noVote bool
	c := &cobra.Command{
		Use:   "add-member SET NODE",
		Short: "Let a node join its replica set",
		Long: `Let a node, which must run and have SET in its configuration, join the replica set.
It gets all rows first and then its vote, so writes go on; this may take as long as
the rows need (--timeout).`,
		Example: `  switchyard shard add-member store-1 node-7
  switchyard shard add-member store-1 node-7 --timeout 10m`,
		Args: exactArgs("SET", "NODE"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				if _, err := cc.AddReplica(ctx, &v1.AddReplicaRequest{ReplicaSet: args[0], Node: args[1], WithoutVote: noVote}); err != nil {
					return err
				}
				return a.done(map[string]any{"replica_set": args[0], "node": args[1], "voter": !noVote}, "node %s is a member of replica set %s", args[1], args[0])
			})
		},
	}
	c.Flags().BoolVar(&noVote, "no-vote", false, "it gets all rows and no vote")
	return c
}

func newShardRemoveMemberCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove-member SET NODE",
		Short: "Take a node out of its replica set",
		Long: `Take a member out of its replica set: a node that is lost for good, or is to be
retired. When it is the master, another one takes over. The last member with a
vote cannot be removed. What the node has stays in its data folder; a node that is to
come back must start with an empty one.`,
		Example: `  switchyard shard remove-member store-1 node-7`,
		Args:    exactArgs("SET", "NODE"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				if _, err := cc.RemoveReplica(ctx, &v1.RemoveReplicaRequest{ReplicaSet: args[0], Node: args[1]}); err != nil {
					return err
				}
				return a.done(map[string]any{"replica_set": args[0], "removed": args[1]}, "removed node %s from replica set %s", args[1], args[0])
			})
		},
	}
}

func newShardHandOverCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "hand-over SET [NODE]",
		Short: "Make another member of a replica set its master",
		Long: `Make another member of a replica set its master: NODE, or whoever is most up to
date. Calls that come meanwhile wait for the new master. Do this before a master's
node is stopped, and nobody has to wait for an election.`,
		Example: `  switchyard shard hand-over store-1
  switchyard shard hand-over store-1 node-2`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return exactArgs("SET", "NODE")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			req := &v1.ChangeMasterRequest{ReplicaSet: args[0]}
			if len(args) == 2 {
				req.Node = args[1]
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.ChangeMaster(ctx, req)
				if err != nil {
					return err
				}
				text := "node " + resp.GetMaster() + " is the master of replica set %s"
				if resp.GetMaster() == "" {
					text = "the master of replica set %s has handed over; who took over is not known yet"
				}
				return a.done(map[string]any{"replica_set": args[0], "master": resp.GetMaster()}, "%s", fmt.Sprintf(text, args[0]))
			})
		},
	}
}
