package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func newShardCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "shard",
		Short: "Look at and change the store: buckets, replica sets, moves",
		Long: `Look at and change the sharded store of a cluster. Ask any node: each answers for
the whole cluster. docs/sharding.md explains buckets, replica sets and moves.

BUCKETS is a list of numbers and ranges: 7 or 1-100,205.`,
		Example: `  switchyard shard info
  switchyard shard send 1-100 store-2
  switchyard shard rebalance status --watch
  switchyard shard check`,
	}
	asGroup(c)
	c.AddCommand(
		newShardInfoCommand(a), newShardBucketsCommand(a), newShardRouteCommand(a), newShardMembersCommand(a), newShardCheckCommand(a),
		newShardSendCommand(a), newShardCancelSendCommand(a), newShardRebalanceCommand(a), newShardSplitCommand(a),
		newShardPinCommand(a), newShardUnpinCommand(a), newShardReadOnlyCommand(a), newShardForceCreateCommand(a), newShardForceDropCommand(a),
		newShardWeightCommand(a), newShardLockCommand(a), newShardUnlockCommand(a),
		newShardAddMemberCommand(a), newShardRemoveMemberCommand(a), newShardHandOverCommand(a),
		newShardCallCommand(a), newShardMapCallCommand(a),
	)
	return c
}

// parseBuckets reads a list of buckets: numbers and ranges with commas between them.
func parseBuckets(c *cobra.Command, text string) (out []*v1.BucketSpan, err error) {
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		first, err1 := strconv.ParseUint(strings.TrimSpace(from), 10, 32)
		last := first
		var err2 error
		if isRange {
			last, err2 = strconv.ParseUint(strings.TrimSpace(to), 10, 32)
		}
		if err1 != nil || err2 != nil {
			return nil, usageOf(c, fmt.Errorf("BUCKETS are numbers and ranges, like 1-100,205; %q is none", part))
		}
		out = append(out, &v1.BucketSpan{First: uint32(first), Last: uint32(last)})
	}
	return out, nil
}

// spansText is the reverse of parseBuckets.
func spansText(spans []*v1.BucketSpan) string {
	parts := make([]string, len(spans))
	for i, s := range spans {
		parts[i] = rangeText(s.GetFirst(), s.GetLast())
	}
	return strings.Join(parts, ",")
}

func rangeText(first, last uint32) string {
	if first == last {
		return strconv.Itoa(int(first))
	}
	return fmt.Sprintf("%d-%d", first, last)
}

// ask asks a question on a terminal.
func (a *app) ask(question, otherwise string) error {
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(a.stdin, 1024)).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(a.stderr)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return &exitError{code: exitRefused, err: errors.New(otherwise)}
}

// words completes an argument with one of a few words.
func words(position int, allowed ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == position {
			return allowed, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
