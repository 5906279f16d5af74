package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// eachOf calls fn with what comes on a stream, until its end.
func eachOf[T any](stream grpc.ServerStreamingClient[T], fn func(*T) error) error {
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = fn(resp)
		}
		if err != nil {
			return err
		}
	}
}

// statusLine is a text that one goroutine changes and the progress line shows.
type statusLine struct {
	mu   sync.Mutex
	text string
}

func (s *statusLine) set(text string) { s.mu.Lock(); s.text = text; s.mu.Unlock() }

func (s *statusLine) get() string { s.mu.Lock(); defer s.mu.Unlock(); return s.text }

type failureView struct {
	Bucket uint32 `json:"bucket"`
	Code   string `json:"code,omitempty"`
	Text   string `json:"text"`
}

func viewFailure(f *v1.BucketFailure) failureView {
	return failureView{f.GetBucket(), f.GetCode(), f.GetText()}
}

// namedFailures is how many of the failures of one kind are written out.
const namedFailures = 5

// printFailures tells what failed, on standard error.
func (a *app) printFailures(w io.Writer, failed []failureView) {
	seen := map[string]int{}
	for _, f := range failed {
		if seen[f.Code]++; seen[f.Code] <= namedFailures {
			fmt.Fprintf(w, "%s (%s)\n", printable(f.Text, 300), f.Code)
		}
	}
	for code, n := range seen {
		if n > namedFailures {
			fmt.Fprintf(w, "and %s more (%s)\n", count(n-namedFailures), code)
		}
	}
}

func newShardSendCommand(a *app) *cobra.Command {
	var show bool
	c := &cobra.Command{
		Use:   "send BUCKETS SET",
		Short: "Move buckets to a replica set",
		Long: `Move buckets, wherever they are, to a replica set, and wait until each has arrived
or failed. They are read and written meanwhile. Buckets that are there already stay.
Ctrl-C calls off what is under way; what has arrived stays.

The rebalancer may move them back: pin them there, or turn it off.

Exit code 6 says that some buckets did not move.`,
		Example: `  switchyard shard send 7 store-2
  switchyard shard send 1-100,205 store-2 --progress`,
		Args: exactArgs("BUCKETS", "SET"),
		RunE: func(c *cobra.Command, args []string) error {
			spans, err := parseBuckets(c, args[0])
			if err != nil {
				return err
			}
			return a.send(c.Context(), &v1.MoveBucketsRequest{Buckets: spans, ReplicaSet: args[1]}, show)
		},
	}
	c.Flags().BoolVar(&show, "progress", false, "show progress also when standard error is not a terminal")
	return c
}

func (a *app) send(parent context.Context, req *v1.MoveBucketsRequest, show bool) error {
	ctx, _, stop := interrupts(parent)
	defer stop()
	start := time.Now()
	var line statusLine
	line.set("asking where the buckets are")
	var last *v1.MoveBucketsResponse
	failed := []failureView{}
	err := a.withCluster(func(cc v1.ClusterServiceClient) error {
		p := a.startProgress(show, 500*time.Millisecond, 200*time.Millisecond, line.get)
		defer p.end()
		stream, err := cc.MoveBuckets(ctx, req)
		if err != nil {
			return err
		}
		return eachOf(stream, func(resp *v1.MoveBucketsResponse) error {
			last = resp
			for _, f := range resp.GetFailed() {
				failed = append(failed, viewFailure(f))
			}
			line.set(sendLine(resp, len(failed), time.Since(start)))
			return nil
		})
	})
	if err != nil && (last == nil || ctx.Err() == nil) {
		return err
	}
	took := time.Since(start)
	if a.json() {
		if err := a.printJSON(map[string]any{
			"replica_set": req.GetReplicaSet(), "total": last.GetTotal(), "moved": last.GetMoved(), "already_there": last.GetAlready(), "failed": failed,
			"complete": err == nil, "seconds": took.Seconds(),
		}); err != nil {
			return err
		}
	} else {
		a.printFailures(a.stderr, failed)
		already := ""
		if n := last.GetAlready(); n > 0 {
			already = fmt.Sprintf("; %s there already", count(int64(n)))
		}
		fmt.Fprintf(a.stdout, "moved %s of %s to %s in %s%s\n", count(int64(last.GetMoved())), plural(int64(last.GetTotal()), "bucket"), req.GetReplicaSet(), roughly(took), already)
	}
	switch {
	case err != nil:
		return &exitError{code: exitInterrupted, err: errors.New("interrupted; moves that had not ended were called off")}
	case len(failed) > 0:
		return &exitError{code: exitPartly, err: fmt.Errorf("%s did not move", plural(len(failed), "bucket"))}
	}
	return nil
}

func sendLine(resp *v1.MoveBucketsResponse, failed int, took time.Duration) string {
	text := fmt.Sprintf("%s of %s moved", count(int64(resp.GetMoved())), count(int64(resp.GetTotal())))
	if failed > 0 {
		text += fmt.Sprintf(", %s failed", count(failed))
	}
	if resp.GetMoved() > 0 {
		text += ", " + perSecond(float64(resp.GetMoved())/took.Seconds())
	}
	if moves := resp.GetMoves(); len(moves) > 0 {
		text += fmt.Sprintf(", %s under way: bucket %d %s", count(len(moves)), moves[0].GetBucket(), moves[0].GetPhase())
		if moves[0].GetBytes() > 0 {
			text += " " + bytesText(moves[0].GetBytes())
		}
	}
	return text
}

func newShardCancelSendCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel-send BUCKETS",
		Short: "Call off moves of buckets that have not arrived",
		Long: `Call off the moves of buckets: they stay where they are. Buckets that are not
moving are left alone. A move that is past its point of no return is completed.`,
		Example: `  switchyard shard cancel-send 7
  switchyard shard cancel-send 1-3000`,
		Args: exactArgs("BUCKETS"),
		RunE: func(c *cobra.Command, args []string) error {
			spans, err := parseBuckets(c, args[0])
			if err != nil {
				return err
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.CancelMoves(ctx, &v1.CancelMovesRequest{Buckets: spans})
				if err != nil {
					return err
				}
				return a.done(map[string]any{"cancelled": resp.GetCancelled()}, "called off %s", plural(int64(resp.GetCancelled()), "move"))
			})
		},
	}
}

type rebalancingView struct {
	On         bool     `json:"on"`
	ReplicaSet string   `json:"replica_set,omitempty"`
	Node       string   `json:"node,omitempty"`
	Phase      string   `json:"phase"`
	Reason     string   `json:"reason,omitempty"`
	Moved      uint64   `json:"moved"`
	ToMove     uint64   `json:"to_move"`
	Rate       float64  `json:"rate"`
	Took       float64  `json:"took_seconds"`
	ETA        float64  `json:"eta_seconds"`
	Failed     uint64   `json:"failed"`
	Imbalance  *float64 `json:"imbalance_percent,omitempty"`
}

func newShardRebalanceCommand(a *app) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "rebalance on|off|status",
		Short: "Turn rebalancing on or off, or show what it does",
		Long: `Turn rebalancing on or off, for the whole cluster and until it is set again, also
over restarts; what is under way is brought to its end. Or show what the rebalancer does:
how many buckets of how many have moved, and why nothing moves.

--watch follows it until the buckets are where they should be. It ends with exit
code 4 when rebalancing is off.`,
		Example: `  switchyard shard rebalance status
  switchyard shard rebalance status --watch
  switchyard shard rebalance off`,
		Args:              exactArgs("on|off|status"),
		ValidArgsFunction: words(0, "on", "off", "status"),
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "on", "off":
				return a.setRebalancing(c.Context(), args[0] == "on")
			case "status":
				if watch {
					return a.watchRebalancing(c.Context())
				}
				return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
					resp, err := cc.DescribeRebalancing(ctx, &v1.DescribeRebalancingRequest{})
					if err != nil {
						return err
					}
					return a.printRebalancing(resp)
				})
			}
			return usageOf(c, fmt.Errorf("rebalance takes on, off or status, not %q", args[0]))
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "with status: follow it until there is nothing to do")
	return c
}

func (a *app) setRebalancing(parent context.Context, on bool) error {
	return a.callCluster(parent, func(ctx context.Context, cc v1.ClusterServiceClient) error {
		resp, err := cc.SetRebalancing(ctx, &v1.SetRebalancingRequest{On: on})
		if err != nil {
			return err
		}
		for _, s := range resp.GetUntold() {
			fmt.Fprintf(a.stderr, "Replica set %s could not be told; it learns it when it answers again.\n", s)
		}
		word := map[bool]string{true: "on", false: "off"}[on]
		return a.done(map[string]any{"on": on, "untold": append([]string{}, resp.GetUntold()...)}, "rebalancing is %s", word)
	})
}

func viewRebalancing(r *v1.DescribeRebalancingResponse) rebalancingView {
	v := rebalancingView{
		On: r.GetOn(), ReplicaSet: r.GetReplicaSet(), Node: r.GetNode(), Phase: r.GetPhase(), Reason: r.GetReason(), Moved: r.GetMoved(), ToMove: r.GetToMove(),
		Rate: r.GetRate(), Took: r.GetTook().AsDuration().Seconds(), ETA: r.GetEta().AsDuration().Seconds(), Failed: r.GetFailed(),
	}
	if r.GetImbalance() >= 0 {
		v.Imbalance = &r.Imbalance
	}
	return v
}

func (a *app) printRebalancing(r *v1.DescribeRebalancingResponse) error {
	v := viewRebalancing(r)
	if a.json() {
		return a.printJSON(v)
	}
	t := a.newTable()
	t.field("Rebalancing", map[bool]string{true: "on", false: "off"}[v.On])
	t.field("Phase", v.Phase)
	t.field("Reason", printable(v.Reason, 300))
	if v.ToMove > 0 {
		t.field("Moved", fmt.Sprintf("%s of %s in %s, %s", count(int64(v.Moved)), plural(int64(v.ToMove), "bucket"), roughly(r.GetTook().AsDuration()), perSecond(v.Rate)))
	}
	if v.ETA > 0 && v.Phase == "moving" {
		t.field("Left", "about "+roughly(r.GetEta().AsDuration()))
	}
	if v.Imbalance != nil {
		t.field("Imbalance", fmt.Sprintf("%.3g %%", *v.Imbalance))
	}
	if v.Failed > 0 {
		t.field("Failed", plural(int64(v.Failed), "list")+" of buckets did not all move")
	}
	t.field("Where", fmt.Sprintf("node %s of replica set %s", orDash(v.Node), orDash(v.ReplicaSet)))
	return t.flush()
}

// watchInterval is how often a rebalancing that is watched is asked for.
const rebalanceInterval = 250 * time.Millisecond

// watchRebalancing shows a progress line until the buckets are where they should be.
func (a *app) watchRebalancing(parent context.Context) error {
	ctx, _, stop := interrupts(parent)
	defer stop()
	var line statusLine
	line.set("asking the rebalancer")
	var last *v1.DescribeRebalancingResponse
	err := a.withCluster(func(cc v1.ClusterServiceClient) error {
		p := a.startProgress(true, 0, 200*time.Millisecond, line.get)
		defer p.end()
		tick := time.NewTicker(rebalanceInterval)
		defer tick.Stop()
		for quiet := 0; quiet < 2; {
			call, cancel := context.WithTimeout(ctx, a.timeout)
			resp, err := cc.DescribeRebalancing(call, &v1.DescribeRebalancingRequest{})
			cancel()
			if err != nil {
				return err
			}
			last = resp
			line.set(rebalanceLine(viewRebalancing(resp)))
			// Twice, because it begins a moment after a change.
			if resp.GetPhase() == "idle" || !resp.GetOn() {
				quiet++
			} else {
				quiet = 0
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := a.printRebalancing(last); err != nil {
		return err
	}
	if !last.GetOn() {
		return &exitError{code: exitRefused, err: errors.New("rebalancing is off; turn it on with: switchyard shard rebalance on")}
	}
	return nil
}

func rebalanceLine(v rebalancingView) string {
	if v.Phase != "moving" {
		return fmt.Sprintf("%s: %s", v.Phase, printable(v.Reason, 150))
	}
	text := fmt.Sprintf("%s of %s moved", count(int64(v.Moved)), plural(int64(v.ToMove), "bucket"))
	if v.ToMove > 0 {
		text += fmt.Sprintf(" (%d %%)", 100*v.Moved/v.ToMove)
	}
	if v.Rate > 0 {
		text += ", " + perSecond(v.Rate)
	}
	if v.ETA > 0 {
		text += ", about " + roughly(time.Duration(v.ETA*float64(time.Second))) + " left"
	}
	return text
}
