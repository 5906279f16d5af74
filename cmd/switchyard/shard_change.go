package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// changeBuckets makes one change of a list of buckets.
func (a *app) changeBuckets(c *cobra.Command, list, set string, change v1.BucketChange, what string) error {
	spans, err := parseBuckets(c, list)
	if err != nil {
		return err
	}
	return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
		resp, err := cc.UpdateBuckets(ctx, &v1.UpdateBucketsRequest{Buckets: spans, Change: change, ReplicaSet: set})
		if err != nil {
			return err
		}
		v := map[string]any{"buckets": resp.GetBuckets(), "change": strings.ToLower(strings.TrimPrefix(change.String(), "BUCKET_CHANGE_"))}
		if set != "" {
			v["replica_set"] = set
		}
		return a.done(v, what, plural(int64(resp.GetBuckets()), "bucket"))
	})
}

func newShardPinCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "pin BUCKETS",
		Short: "Keep buckets where they are, whatever the rebalancer thinks",
		Long: `Pin buckets: they are read and written as before, and nothing moves them. All of
them are pinned or, when one cannot be, none.`,
		Example: `  switchyard shard pin 7
  switchyard shard pin 1-10,205`,
		Args: exactArgs("BUCKETS"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeBuckets(c, args[0], "", v1.BucketChange_BUCKET_CHANGE_PIN, "pinned %s")
		},
	}
}

func newShardUnpinCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "unpin BUCKETS",
		Short:   "Let pinned buckets move again",
		Example: `  switchyard shard unpin 1-10,205`,
		Args:    exactArgs("BUCKETS"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeBuckets(c, args[0], "", v1.BucketChange_BUCKET_CHANGE_UNPIN, "unpinned %s")
		},
	}
}

func newShardReadOnlyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "readonly on|off BUCKETS",
		Short: "Stop writes to buckets, or allow them again",
		Long: `Make buckets read-only: writes to them wait, and fail when their time is over. Or
allow writes again. All of them are changed or, when one cannot be, none.`,
		Example: `  switchyard shard readonly on 7
  switchyard shard readonly off 1-3000`,
		Args:              exactArgs("on|off", "BUCKETS"),
		ValidArgsFunction: words(0, "on", "off"),
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "on":
				return a.changeBuckets(c, args[1], "", v1.BucketChange_BUCKET_CHANGE_READ_ONLY, "made %s read-only")
			case "off":
				return a.changeBuckets(c, args[1], "", v1.BucketChange_BUCKET_CHANGE_READ_WRITE, "allowed writes to %s again")
			}
			return usageOf(c, fmt.Errorf("readonly takes on or off, not %q", args[0]))
		},
	}
}

// warnForce says what a change by force risks, with where the buckets are now, and wants the operator's word.
func (a *app) warnForce(c *cobra.Command, list, set, risk string, sure bool) error {
	spans, err := parseBuckets(c, list)
	if err != nil {
		return err
	}
	var resp *v1.DescribeBucketsResponse
	err = a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) (err error) {
		resp, err = cc.DescribeBuckets(ctx, &v1.DescribeBucketsRequest{Buckets: spans})
		return err
	})
	if err != nil {
		return err
	}
	elsewhere := 0
	for _, p := range resp.GetPlaces() {
		if owns(p.GetState()) && p.GetReplicaSet() != set {
			elsewhere += int(p.GetLast() - p.GetFirst() + 1)
		}
	}
	named := 0
	for _, s := range spans {
		named += int(s.GetLast() - s.GetFirst() + 1)
	}
	fmt.Fprintf(a.stderr, "WARNING: %s\n", risk)
	fmt.Fprintf(a.stderr, "WARNING: of the %s, %s owned by other replica sets now.\n", plural(named, "bucket"), isAre(elsewhere))
	if n := len(resp.GetSilent()); n > 0 {
		fmt.Fprintf(a.stderr, "WARNING: %s not answer (%s), and may own some too.\n", map[bool]string{true: "one replica set does", false: strconv.Itoa(n) + " replica sets do"}[n == 1], strings.Join(resp.GetSilent(), ", "))
	}
	switch {
	case sure:
		return nil
	case !isTerminal(a.stdin):
		return &exitError{code: exitRefused, err: errors.New("this can lose or double data, and there is no terminal to ask on: give --yes-i-know")}
	}
	return a.ask("Do it nevertheless?", "nothing was changed")
}

func isAre(n int) string {
	if n == 1 {
		return "1 is"
	}
	return count(n) + " are"
}

func newShardForceCreateCommand(a *app) *cobra.Command {
	var sure bool
	c := &cobra.Command{
		Use:   "force-create BUCKETS SET",
		Short: "Repair: make buckets that are lost anew on a replica set",
		Long: `Make buckets ACTIVE on a replica set, for repair. What that replica set still has of
them (RECEIVING, SENT) becomes theirs; else they are empty.

When another replica set owns such a bucket, there are two of it from then on, and
writes go to the one or the other: that is worse than none. When none does, what
is not on SET is lost for good. "switchyard shard check" says when this is the right
thing to do.`,
		Example: `  switchyard shard force-create 7 store-1 --yes-i-know`,
		Args:    exactArgs("BUCKETS", "SET"),
		RunE: func(c *cobra.Command, args []string) error {
			risk := "if another replica set owns one of these buckets there will be two of it, and if none does, rows that are not on " + args[1] + " are lost for good."
			if err := a.warnForce(c, args[0], args[1], risk, sure); err != nil {
				return err
			}
			return a.changeBuckets(c, args[0], args[1], v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE, "created %s on "+escape(args[1]))
		},
	}
	c.Flags().BoolVar(&sure, "yes-i-know", false, "do not ask: the risk is known")
	return c
}

// escape keeps a text from being read as a format.
func escape(s string) string { return strings.ReplaceAll(s, "%", "%%") }

func newShardForceDropCommand(a *app) *cobra.Command {
	var sure bool
	c := &cobra.Command{
		Use:   "force-drop BUCKETS SET",
		Short: "Repair: delete buckets on a replica set",
		Long: `Delete buckets on a replica set, whatever state they are in there, for repair: of two
owners, the one that is wrong. When no other replica set owns such a bucket, its rows
are LOST. "switchyard shard check" says when this is the right thing to do.`,
		Example: `  switchyard shard force-drop 7 store-1 --yes-i-know`,
		Args:    exactArgs("BUCKETS", "SET"),
		RunE: func(c *cobra.Command, args []string) error {
			risk := "the rows of these buckets on " + args[1] + " are deleted; where no other replica set owns a bucket they are LOST."
			if err := a.warnForce(c, args[0], args[1], risk, sure); err != nil {
				return err
			}
			return a.changeBuckets(c, args[0], args[1], v1.BucketChange_BUCKET_CHANGE_FORCE_DROP, "dropped %s on "+escape(args[1]))
		},
	}
	c.Flags().BoolVar(&sure, "yes-i-know", false, "do not ask: the risk is known")
	return c
}

func newShardWeightCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "weight SET WEIGHT",
		Short: "Set a replica set's share of the buckets",
		Long: `Set the weight of a replica set: how many buckets it should have, compared with the
others. 0 drains it. Buckets move at once, unless rebalancing is off.`,
		Example: `  switchyard shard weight store-1 2
  switchyard shard weight store-4 0`,
		Args: exactArgs("SET", "WEIGHT"),
		RunE: func(c *cobra.Command, args []string) error {
			weight, err := strconv.ParseFloat(args[1], 64)
			if err != nil {
				return usageOf(c, fmt.Errorf("WEIGHT is a number from 0 up, not %q", args[1]))
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				if _, err := cc.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: args[0], Weight: &weight}); err != nil {
					return err
				}
				return a.done(map[string]any{"replica_set": args[0], "weight": weight}, "replica set %s has the weight %s", args[0], weightText(weight))
			})
		},
	}
}

func (a *app) setLock(parent context.Context, set string, locked bool) error {
	return a.callCluster(parent, func(ctx context.Context, cc v1.ClusterServiceClient) error {
		if _, err := cc.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: set, Locked: &locked}); err != nil {
			return err
		}
		word := map[bool]string{true: "locked", false: "unlocked"}[locked]
		return a.done(map[string]any{"replica_set": set, "locked": locked}, "%s replica set %s", word, set)
	})
}

func newShardLockCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "lock SET",
		Short: "Keep a replica set from sending and receiving buckets",
		Long: `Lock a replica set: it neither sends nor receives buckets, and the rebalancer leaves
it out. Reads and writes go on.`,
		Example: `  switchyard shard lock store-1`,
		Args:    exactArgs("SET"),
		RunE:    func(c *cobra.Command, args []string) error { return a.setLock(c.Context(), args[0], true) },
	}
}

func newShardUnlockCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "unlock SET",
		Short:   "Let a replica set send and receive buckets again",
		Example: `  switchyard shard unlock store-1`,
		Args:    exactArgs("SET"),
		RunE:    func(c *cobra.Command, args []string) error { return a.setLock(c.Context(), args[0], false) },
	}
}
