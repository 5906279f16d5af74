package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// withCluster opens a connection to the service of the cluster.
func (a *app) withCluster(fn func(v1.ClusterServiceClient) error) error {
	client, err := a.dial(switchyard.WithGRPC(grpc.WithDefaultCallOptions(grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(maxAnswer))))
	if err != nil {
		return err
	}
	defer client.Close()
	return fn(v1.NewClusterServiceClient(client.Conn()))
}

// maxAnswer is the largest answer that is taken: the result of a function, above all.
const maxAnswer = 80 << 20

// callCluster opens a connection for one call, with the deadline that calls have.
func (a *app) callCluster(parent context.Context, fn func(context.Context, v1.ClusterServiceClient) error) error {
	ctx, cancel := context.WithTimeout(parent, a.timeout)
	defer cancel()
	return a.withCluster(func(c v1.ClusterServiceClient) error { return fn(ctx, c) })
}

func newClusterCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Make a cluster's store, and look at and change which nodes and replica sets it has",
		Long: `Make a cluster's store, and look at and change which nodes and replica sets it
has. Ask any node: each answers for the whole cluster. docs/operations.md says how
to set the nodes up.`,
		Example: `  switchyard cluster members
  switchyard cluster bootstrap --replica-sets 3 --members 3
  switchyard cluster add-set store-4 --members 3`,
	}
	asGroup(c)
	c.AddCommand(newClusterMembersCommand(a), newClusterBootstrapCommand(a), newClusterAddSetCommand(a), newClusterRemoveSetCommand(a))
	return c
}

type nodeView struct {
	Name        string   `json:"name"`
	Roles       []string `json:"roles"`
	Zone        string   `json:"zone,omitempty"`
	Public      string   `json:"public_address,omitempty"`
	Internal    string   `json:"internal_address,omitempty"`
	ReplicaSet  string   `json:"replica_set,omitempty"`
	State       string   `json:"state"`
	MemberState string   `json:"member_state,omitempty"`
}

func newClusterMembersCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "members",
		Aliases: []string{"nodes"},
		Short:   "List the nodes: what each does, where it is, how it is",
		Long: `List the nodes that are there, and members of replica sets whose nodes are gone.

STATE is acting, or starting or draining while a node announces that it comes or
goes, or gone. MEMBER is what the node is in its replica set: master, replica,
none (its replica set does not have it yet), starting, failed or unreachable.`,
		Example: `  switchyard cluster members
  switchyard cluster members -o json | jq -r '.nodes[] | select(.state == "gone").name'`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.DescribeCluster(ctx, &v1.DescribeClusterRequest{})
				if err != nil {
					return err
				}
				return a.printNodes(resp)
			})
		},
	}
}

func (a *app) printNodes(resp *v1.DescribeClusterResponse) error {
	if a.json() {
		nodes := []nodeView{}
		for _, n := range resp.GetNodes() {
			nodes = append(nodes, nodeView{n.GetName(), n.GetRoles(), n.GetZone(), n.GetPublicAddress(), n.GetInternalAddress(), n.GetReplicaSet(), n.GetState(), n.GetMemberState()})
		}
		return a.printJSON(map[string]any{"cluster_id": resp.GetClusterId(), "bucket_count": resp.GetBucketCount(), "answered_by": resp.GetSelf(), "nodes": nodes})
	}
	t := a.newTable("NODE", "STATE", "ROLES", "REPLICA SET", "MEMBER", "ZONE", "PUBLIC", "INTERNAL")
	for _, n := range resp.GetNodes() {
		t.row(orDash(n.GetName()), n.GetState(), orDash(strings.Join(n.GetRoles(), ",")), orDash(n.GetReplicaSet()), orDash(n.GetMemberState()),
			orDash(n.GetZone()), orDash(n.GetPublicAddress()), orDash(n.GetInternalAddress()))
	}
	return t.flush()
}

// orDash makes an empty cell of a table seen.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s, 120)
}

type plannedView struct {
	Name    string   `json:"name"`
	Weight  float64  `json:"weight"`
	Members []string `json:"members"`
	Buckets string   `json:"buckets"`
	Count   uint32   `json:"bucket_count"`
	Done    bool     `json:"was_done"`
}

func viewPlanned(p *v1.PlannedReplicaSet) plannedView {
	v := plannedView{Name: p.GetName(), Weight: p.GetWeight(), Members: []string{}, Buckets: spansText(p.GetBuckets()), Count: p.GetBucketCount(), Done: p.GetDone()}
	for _, m := range p.GetMembers() {
		v.Members = append(v.Members, m.GetId())
	}
	return v
}

func newClusterBootstrapCommand(a *app) *cobra.Command {
	var sets, members int32
	var weights []string
	var dryRun, yes bool
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make the store of a new cluster",
		Long: `Make the store of a new cluster: the nodes with storage that are there are grouped
by the replica set in their configuration, each replica set becomes a Raft group
of all its nodes and gets its share of the buckets. This is done once; a second
time it is refused (NON_EMPTY). When it was cut short, the same command goes on.

A node that is not up yet would be left out, so say how many you expect with
--replica-sets and --members; without both, the command shows what it is about to
do and asks, and elsewhere than on a terminal it wants --yes.`,
		Example: `  switchyard cluster bootstrap --replica-sets 3 --members 3
  switchyard cluster bootstrap --dry-run
  switchyard cluster bootstrap --replica-sets 2 --members 1 --weight big=3`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			req := &v1.BootstrapClusterRequest{ReplicaSets: sets, Members: members, Weights: map[string]float64{}}
			for _, w := range weights {
				name, text, ok := strings.Cut(w, "=")
				n, err := strconv.ParseFloat(text, 64)
				if !ok || name == "" || err != nil {
					return usageOf(c, fmt.Errorf("--weight takes SET=WEIGHT, like big=3, not %q", w))
				}
				req.Weights[name] = n
			}
			return a.bootstrap(c, req, dryRun, yes || sets > 0 && members > 0)
		},
	}
	f := c.Flags()
	f.Int32Var(&sets, "replica-sets", 0, "there must be so many replica sets")
	f.Int32Var(&members, "members", 0, "each replica set must have so many members")
	f.StringArrayVar(&weights, "weight", nil, "`SET=WEIGHT` of a replica set that is to have more or fewer buckets than others (default 1); may be repeated")
	f.BoolVar(&dryRun, "dry-run", false, "only show what would be done")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func (a *app) bootstrap(c *cobra.Command, req *v1.BootstrapClusterRequest, dryRun, sure bool) error {
	req.DryRun = true
	var plan *v1.BootstrapClusterResponse
	err := a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) (err error) {
		plan, err = cc.BootstrapCluster(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	if dryRun || !a.json() {
		if err := a.printPlan(plan); err != nil || dryRun {
			return err
		}
	}
	if !sure {
		if !isTerminal(a.stdin) {
			return &exitError{code: exitRefused, err: errors.New("a node that is not up yet would be left out, and there is no terminal to ask on: give --replica-sets and --members, or --yes")}
		}
		if err := a.ask("Are these all nodes, and shall the store be made so?", "nothing was made"); err != nil {
			return err
		}
	}
	req.DryRun = false
	err = a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) (err error) {
		plan, err = cc.BootstrapCluster(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	if a.json() {
		return a.printPlan(plan)
	}
	_, err = fmt.Fprintf(a.stdout, "made the store of cluster %s: %s, %s\n", plan.GetClusterId(), plural(len(plan.GetReplicaSets()), "replica set"), plural(int64(plan.GetBucketCount()), "bucket"))
	return err
}

func (a *app) printPlan(resp *v1.BootstrapClusterResponse) error {
	if a.json() {
		sets := []plannedView{}
		for _, p := range resp.GetReplicaSets() {
			sets = append(sets, viewPlanned(p))
		}
		return a.printJSON(map[string]any{"cluster_id": resp.GetClusterId(), "bucket_count": resp.GetBucketCount(), "replica_sets": sets})
	}
	t := a.newTable("REPLICA SET", "WEIGHT", "BUCKETS", "", "MEMBERS", "")
	for _, p := range resp.GetReplicaSets() {
		v := viewPlanned(p)
		done := ""
		if v.Done {
			done = "made already"
		}
		t.row(v.Name, strconv.FormatFloat(v.Weight, 'g', -1, 64), count(int64(v.Count)), short(v.Buckets, 40), strings.Join(v.Members, ","), done)
	}
	return t.flush()
}

// short cuts a text that may be long.
func short(s string, most int) string { return printable(s, most) }

func newClusterAddSetCommand(a *app) *cobra.Command {
	var weight float64
	var members int32
	c := &cobra.Command{
		Use:   "add-set NAME",
		Short: "Make a replica set out of new nodes, as part of the store",
		Long: `Make a replica set part of the store: the nodes that have its name in their
configuration become a Raft group, without buckets. Buckets come to it by
themselves, by its weight, unless rebalancing is off; --weight 0 keeps it empty
until "switchyard shard weight" says otherwise.`,
		Example: `  switchyard cluster add-set store-4 --members 3
  switchyard cluster add-set big --weight 2`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				req := &v1.AddReplicaSetRequest{Name: args[0], Members: members}
				if c.Flags().Changed("weight") {
					req.Weight = &weight
				}
				resp, err := cc.AddReplicaSet(ctx, req)
				if err != nil {
					return err
				}
				v := viewPlanned(resp.GetReplicaSet())
				if a.json() {
					return a.printJSON(v)
				}
				_, err = fmt.Fprintf(a.stdout, "added replica set %s with %s: %s\n", v.Name, plural(len(v.Members), "member"), strings.Join(v.Members, ", "))
				return err
			})
		},
	}
	c.Flags().Float64Var(&weight, "weight", 1, "its share of the buckets, compared with other replica sets")
	c.Flags().Int32Var(&members, "members", 0, "it must have so many members")
	return c
}

func newClusterRemoveSetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove-set NAME",
		Short: "Forget a replica set that owns no bucket",
		Long: `Forget a replica set. It must own no bucket, every other replica set must answer,
and its nodes must be stopped. To get there:

  switchyard shard weight NAME 0      its buckets leave it
  switchyard shard info               wait until it has none
  (stop its nodes)
  switchyard cluster remove-set NAME`,
		Example: `  switchyard cluster remove-set store-4`,
		Args:    exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				if _, err := cc.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: args[0]}); err != nil {
					return err
				}
				return a.done(map[string]any{"removed": args[0]}, "removed replica set %s", args[0])
			})
		},
	}
}

// done says that something was done, as JSON or as a sentence.
func (a *app) done(v any, format string, args ...any) error {
	if a.json() {
		return a.printJSON(v)
	}
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return err
}
