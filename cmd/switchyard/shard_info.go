package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

type alertView struct {
	Level      string `json:"level"`
	Code       string `json:"code"`
	ReplicaSet string `json:"replica_set,omitempty"`
	Text       string `json:"text"`
}

type replicaView struct {
	Node    string `json:"node"`
	Address string `json:"address"`
	Zone    string `json:"zone,omitempty"`
	State   string `json:"state"`
	Voter   *bool  `json:"voter,omitempty"`
	Applied uint64 `json:"applied"`
	Lag     uint64 `json:"lag"`
	Error   string `json:"error,omitempty"`
	Warning string `json:"warning,omitempty"`
}

type moveView struct {
	Bucket      uint32  `json:"bucket"`
	Destination string  `json:"destination"`
	Transfer    uint64  `json:"transfer"`
	Phase       string  `json:"phase,omitempty"`
	Rows        uint64  `json:"rows"`
	Bytes       uint64  `json:"bytes"`
	Age         float64 `json:"age_seconds"`
	Error       string  `json:"error,omitempty"`
}

type setView struct {
	Name         string            `json:"name"`
	Bootstrapped bool              `json:"bootstrapped"`
	Master       string            `json:"master,omitempty"`
	Weight       float64           `json:"weight"`
	Locked       bool              `json:"locked"`
	Owned        uint32            `json:"owned"`
	Perfect      *uint32           `json:"perfect,omitempty"`
	Buckets      map[string]uint32 `json:"buckets"`
	StateBytes   int64             `json:"state_bytes"`
	Members      []replicaView     `json:"members"`
	Moves        []moveView        `json:"moves"`
}

func viewSet(s *v1.ReplicaSetStatus) setView {
	v := setView{
		Name: s.GetName(), Bootstrapped: s.GetBootstrapped(), Master: s.GetMaster(), Weight: s.GetWeight(), Locked: s.GetLocked(),
		Perfect: s.Perfect, Buckets: s.GetBuckets(), StateBytes: s.GetStateBytes(), Members: []replicaView{}, Moves: []moveView{},
	}
	for state, n := range s.GetBuckets() {
		if owns(state) {
			v.Owned += n
		}
	}
	for _, m := range s.GetMembers() {
		v.Members = append(v.Members, replicaView{m.GetId(), m.GetAddress(), m.GetZone(), m.GetState(), m.Voter, m.GetApplied(), m.GetLag(), m.GetError(), m.GetWarning()})
	}
	for _, m := range s.GetMoves() {
		v.Moves = append(v.Moves, viewMove(m))
	}
	return v
}

func viewMove(m *v1.BucketMove) moveView {
	return moveView{m.GetBucket(), m.GetDestination(), m.GetTransfer(), m.GetPhase(), m.GetRows(), m.GetBytes(), m.GetAge().AsDuration().Seconds(), m.GetError()}
}

// owns says whether a replica set owns buckets in that state.
func owns(state string) bool {
	return state == "ACTIVE" || state == "PINNED" || state == "READONLY" || state == "SENDING"
}

func newShardInfoCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "Show the condition of the store: replica sets, masters, bucket counts, alerts",
		Long: `Show the condition of the store as all members tell it now. It is green when all
is well, yellow when something should be looked at, orange when something does not
work or one more failure would be too many, red when some buckets cannot be used.`,
		Example: `  switchyard shard info
  switchyard shard info -o json | jq -r .level`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.DescribeStore(ctx, &v1.DescribeStoreRequest{})
				if err != nil {
					return err
				}
				return a.printStore(resp)
			})
		},
	}
}

func (a *app) printStore(resp *v1.DescribeStoreResponse) error {
	if a.json() {
		alerts, sets := []alertView{}, []setView{}
		for _, x := range resp.GetAlerts() {
			alerts = append(alerts, alertView{x.GetLevel(), x.GetCode(), x.GetReplicaSet(), x.GetText()})
		}
		for _, s := range resp.GetReplicaSets() {
			sets = append(sets, viewSet(s))
		}
		return a.printJSON(map[string]any{
			"level": resp.GetLevel(), "cluster_id": resp.GetClusterId(), "bucket_count": resp.GetBucketCount(),
			"buckets":      map[string]uint32{"read_write": resp.GetReadWrite(), "read_only": resp.GetReadOnly(), "unreachable": resp.GetUnreachable(), "unknown": resp.GetUnknown()},
			"replica_sets": sets, "alerts": alerts,
		})
	}
	t := a.newTable()
	t.field("Cluster", resp.GetClusterId())
	t.field("Status", resp.GetLevel())
	parts := []string{count(int64(resp.GetReadWrite())) + " read and write"}
	for _, p := range []struct {
		n    uint32
		what string
	}{{resp.GetReadOnly(), "read only"}, {resp.GetUnreachable(), "unreachable"}, {resp.GetUnknown(), "unknown"}} {
		if p.n > 0 {
			parts = append(parts, count(int64(p.n))+" "+p.what)
		}
	}
	t.field("Buckets", fmt.Sprintf("%s: %s", count(int64(resp.GetBucketCount())), strings.Join(parts, ", ")))
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	t = a.newTable("REPLICA SET", "MASTER", "MEMBERS", "WEIGHT", "BUCKETS", "PERFECT", "MOVING", "SIZE", "")
	for _, s := range resp.GetReplicaSets() {
		t.row(setRow(viewSet(s))...)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for i, x := range resp.GetAlerts() {
		if i == 0 {
			fmt.Fprintln(a.stdout)
		}
		where := ""
		if x.GetReplicaSet() != "" {
			where = " " + x.GetReplicaSet() + ":"
		}
		fmt.Fprintf(a.stdout, "%s%s %s (%s)\n", x.GetLevel(), where, printable(x.GetText(), 400), x.GetCode())
	}
	return nil
}

func setRow(v setView) []string {
	up := 0
	for _, m := range v.Members {
		if m.State == "master" || m.State == "replica" {
			up++
		}
	}
	perfect := "-"
	if v.Perfect != nil {
		perfect = count(int64(*v.Perfect))
	}
	moving := v.Buckets["SENDING"] + v.Buckets["RECEIVING"]
	moving = max(moving, uint32(len(v.Moves)))
	var notes []string
	if !v.Bootstrapped {
		notes = append(notes, "not part of the store")
	}
	if v.Locked {
		notes = append(notes, "locked")
	}
	for _, state := range []string{"PINNED", "READONLY"} {
		if n := v.Buckets[state]; n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n, strings.ToLower(state)))
		}
	}
	return []string{
		v.Name, orDash(v.Master), fmt.Sprintf("%d/%d", up, len(v.Members)), weightText(v.Weight), count(int64(v.Owned)), perfect,
		count(int64(moving)), bytesText(uint64(max(v.StateBytes, 0))), strings.Join(notes, ", "),
	}
}

func weightText(w float64) string { return strconv.FormatFloat(w, 'g', -1, 64) }

// bytesText writes a size as people read it.
func bytesText(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1023.95 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

func newShardMembersCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "members [SET]",
		Short: "List the members of the replica sets",
		Long: `List the members of all replica sets, or of one: which is master, which have a
vote, and how many commands each is behind.`,
		Example: `  switchyard shard members
  switchyard shard members store-1`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactArgs("SET")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.DescribeStore(ctx, &v1.DescribeStoreRequest{})
				if err != nil {
					return err
				}
				sets := resp.GetReplicaSets()
				if len(args) == 1 {
					i := slices.IndexFunc(sets, func(s *v1.ReplicaSetStatus) bool { return s.GetName() == args[0] })
					if i < 0 {
						return &exitError{code: exitNotFound, err: fmt.Errorf("there is no replica set %q (NO_SUCH_REPLICASET)", args[0])}
					}
					sets = sets[i : i+1]
				}
				return a.printReplicas(sets)
			})
		},
	}
}

func (a *app) printReplicas(sets []*v1.ReplicaSetStatus) error {
	type row struct {
		ReplicaSet string `json:"replica_set"`
		replicaView
	}
	rows := []row{}
	for _, s := range sets {
		for _, m := range viewSet(s).Members {
			rows = append(rows, row{s.GetName(), m})
		}
	}
	if a.json() {
		return a.printJSON(rows)
	}
	t := a.newTable("REPLICA SET", "NODE", "STATE", "VOTE", "LAG", "APPLIED", "ZONE", "ADDRESS", "")
	for _, r := range rows {
		vote := "-"
		if r.Voter != nil {
			vote = map[bool]string{true: "yes", false: "no"}[*r.Voter]
		}
		note := r.Warning
		if r.Error != "" {
			note = r.Error
		}
		t.row(r.ReplicaSet, r.Node, r.State, vote, strconv.FormatUint(r.Lag, 10), strconv.FormatUint(r.Applied, 10), orDash(r.Zone), orDash(r.Address), printable(note, 120))
	}
	return t.flush()
}

func newShardRouteCommand(a *app) *cobra.Command {
	var hash string
	var number bool
	var bucket uint32
	c := &cobra.Command{
		Use:   "route KEY...",
		Short: "Show which bucket a key has, and where that is",
		Long: `Show the hash and the bucket of a sharding key, and the replica set that has it.
Several arguments are one key of several parts. --number takes them as whole
numbers, which hash in another way than their texts. --bucket shows where a bucket
is.`,
		Example: `  switchyard shard route customer-17
  switchyard shard route --hash strcrc32 customer-17
  switchyard shard route --number 42
  switchyard shard route --bucket 1042`,
		Args: func(c *cobra.Command, args []string) error {
			if given := c.Flags().Changed("bucket"); given && len(args) > 0 {
				return usageOf(c, fmt.Errorf("a KEY or --bucket, not both"))
			} else if !given && len(args) == 0 {
				return exactArgs("KEY")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			req := &v1.LocateKeyRequest{Bucket: bucket}
			if !c.Flags().Changed("bucket") {
				key, err := shardingKey(c, args, number, hash)
				if err != nil {
					return err
				}
				req.Key = key
			} else if bucket == 0 {
				return usageOf(c, fmt.Errorf("buckets are numbered from 1"))
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				resp, err := cc.LocateKey(ctx, req)
				if err != nil {
					return err
				}
				return a.printRoute(hash, req.GetKey() != nil, resp)
			})
		},
	}
	c.Flags().Var(newChoice(&hash, "mpcrc32", "strcrc32"), "hash", "hash `FUNCTION`: mpcrc32 or strcrc32")
	c.Flags().BoolVar(&number, "number", false, "the parts of the key are numbers")
	c.Flags().Uint32Var(&bucket, "bucket", 0, "show where this bucket is")
	return c
}

// shardingKey makes a key of arguments.
func shardingKey(c *cobra.Command, parts []string, number bool, hash string) (*v1.ShardingKey, error) {
	key := &v1.ShardingKey{Hash: map[string]v1.KeyHash{"mpcrc32": v1.KeyHash_KEY_HASH_MPCRC32, "strcrc32": v1.KeyHash_KEY_HASH_STRCRC32}[hash]}
	for _, p := range parts {
		part := &v1.ShardingKey_Part{Value: &v1.ShardingKey_Part_Bytes{Bytes: []byte(p)}}
		if number {
			n, err := strconv.ParseInt(p, 10, 64)
			if err != nil {
				return nil, usageOf(c, fmt.Errorf("%q is not a whole number", p))
			}
			part.Value = &v1.ShardingKey_Part_Number{Number: n}
		}
		key.Parts = append(key.Parts, part)
	}
	return key, nil
}

func (a *app) printRoute(hash string, key bool, r *v1.LocateKeyResponse) error {
	if a.json() {
		v := map[string]any{"bucket": r.GetBucket(), "replica_set": r.GetReplicaSet(), "state": r.GetState(), "master": r.GetMaster()}
		if key {
			v["hash"], v["hash_function"] = r.GetHash(), hash
		}
		return a.printJSON(v)
	}
	t := a.newTable()
	if key {
		t.field("Hash", fmt.Sprintf("%d  (%s)", r.GetHash(), hash))
	}
	t.field("Bucket", strconv.Itoa(int(r.GetBucket())))
	t.field("Replica set", r.GetReplicaSet())
	t.field("State", r.GetState())
	t.field("Master", r.GetMaster())
	return t.flush()
}
