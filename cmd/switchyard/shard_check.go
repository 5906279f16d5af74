package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

type findingView struct {
	Severity   string `json:"severity"`
	Kind       string `json:"kind"`
	Buckets    string `json:"buckets,omitempty"`
	ReplicaSet string `json:"replica_set,omitempty"`
	Member     string `json:"member,omitempty"`
	Text       string `json:"text"`
	Repair     string `json:"repair,omitempty"`
}

func viewFinding(f *v1.StoreFinding) findingView {
	buckets := spansText(f.GetBuckets())
	return findingView{f.GetSeverity(), f.GetKind(), buckets, f.GetReplicaSet(), f.GetMember(), f.GetText(),
		strings.ReplaceAll(f.GetRepair(), "BUCKETS", short(buckets, 60))}
}

func newShardCheckCommand(a *app) *cobra.Command {
	var owners, show bool
	var list string
	c := &cobra.Command{
		Use:   "check",
		Short: "Check that every bucket has one owner and that replicas agree",
		Long: `Check the store: every bucket has exactly one owner, every member answers, and the
members of each replica set have the same rows, by count and checksum at the same
place of the log. All rows are read, on all members; traffic and moves may go on.
Nothing is changed; for what is wrong it says how to repair it.

The exit code is 1 when something is wrong or could not be checked.`,
		Example: `  switchyard shard check
  switchyard shard check --owners-only
  switchyard shard check --buckets 1-100 -o json`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			req := &v1.CheckStoreRequest{OwnersOnly: owners}
			if list != "" {
				spans, err := parseBuckets(c, list)
				if err != nil {
					return err
				}
				req.Buckets = spans
			}
			return a.check(c.Context(), req, show)
		},
	}
	f := c.Flags()
	f.BoolVar(&owners, "owners-only", false, "do not read rows")
	f.StringVar(&list, "buckets", "", "only these `BUCKETS`")
	f.BoolVar(&show, "progress", false, "show progress also when standard error is not a terminal")
	return c
}

func (a *app) check(parent context.Context, req *v1.CheckStoreRequest, show bool) error {
	ctx, _, stop := interrupts(parent)
	defer stop()
	var line statusLine
	line.set("connecting")
	var found []findingView
	var sum *v1.CheckStoreSummary
	step := ""
	err := a.withCluster(func(cc v1.ClusterServiceClient) error {
		p := a.startProgress(show, 500*time.Millisecond, 200*time.Millisecond, line.get)
		defer p.end()
		stream, err := cc.CheckStore(ctx, req)
		if err != nil {
			return err
		}
		return eachOf(stream, func(resp *v1.CheckStoreResponse) error {
			if resp.GetStep() != "" {
				step = resp.GetStep()
			}
			text := step
			if resp.GetToCheck() > 0 {
				text += fmt.Sprintf(": %s of %s buckets", count(int64(resp.GetChecked())), count(int64(resp.GetToCheck())))
			}
			line.set(text)
			for _, f := range resp.GetFindings() {
				found = append(found, viewFinding(f))
			}
			sum = resp.GetSummary()
			return nil
		})
	})
	if err != nil {
		return err
	}
	if err := a.printChecked(found, sum); err != nil {
		return err
	}
	if !sum.GetOk() {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (a *app) printChecked(found []findingView, sum *v1.CheckStoreSummary) error {
	if a.json() {
		return a.printJSON(map[string]any{
			"ok": sum.GetOk(), "buckets": sum.GetBuckets(), "replica_sets": sum.GetReplicaSets(), "members": sum.GetMembers(),
			"rows": sum.GetRows(), "bytes": sum.GetBytes(), "seconds": sum.GetTook().AsDuration().Seconds(), "findings": append([]findingView{}, found...),
		})
	}
	for _, f := range found {
		var where []string
		for _, w := range []struct{ what, value string }{{"replica set", f.ReplicaSet}, {"member", f.Member}, {"bucket", short(f.Buckets, 60)}} {
			if w.value != "" {
				where = append(where, w.what+" "+w.value)
			}
		}
		fmt.Fprintf(a.stdout, "%s %s: %s: %s\n", f.Severity, f.Kind, strings.Join(where, ", "), printable(f.Text, 500))
		if f.Repair != "" {
			fmt.Fprintf(a.stdout, "    %s\n", f.Repair)
		}
	}
	verdict := "all is well"
	if !sum.GetOk() {
		verdict = "SOMETHING IS WRONG"
	}
	_, err := fmt.Fprintf(a.stdout, "%s: checked %s on %s with %s, %s, %s, in %s\n", verdict, plural(int64(sum.GetBuckets()), "bucket"),
		plural(int64(sum.GetReplicaSets()), "replica set"), plural(int64(sum.GetMembers()), "member"), plural(int64(sum.GetRows()), "row"),
		bytesText(sum.GetBytes()), roughly(sum.GetTook().AsDuration()))
	return err
}
