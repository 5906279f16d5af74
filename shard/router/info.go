package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// infoTime bounds how long Info waits for a member.
const infoTime = 2 * time.Second

// Level says how bad things are. The numbers are those of vshard.
type Level int

// Levels.
const (
	// Green: all is well.
	Green Level = 0
	// Yellow: something should be looked at.
	Yellow Level = 1
	// Orange: something does not work at the moment, or one more failure would be too many.
	Orange Level = 2
	// Red: some buckets cannot be used.
	Red Level = 3
)

func (l Level) String() string {
	switch l {
	case Green:
		return "green"
	case Yellow:
		return "yellow"
	case Orange:
		return "orange"
	case Red:
		return "red"
	}
	return fmt.Sprintf("Level(%d)", int(l))
}

// Alert is something that an operator should know.
type Alert struct {
	Level Level
	// Code names the kind of alert.
	Code shard.Code
	// ReplicaSet is the replica set it is about, if it is about one.
	ReplicaSet string
	// Text says what is the matter and, where it helps, what to do.
	Text string
}

// Info is the condition of the store.
type Info struct {
	// Level is the highest level of the alerts.
	Level  Level
	Alerts []Alert
	// Buckets counts buckets by what can be done with them.
	Buckets BucketInfo
	// ReplicaSets are all of them, in order of their names.
	ReplicaSets []ReplicaSetInfo
}

// BucketInfo counts buckets. The four add up to the bucket count, unless a bucket is on more
// than one replica set.
type BucketInfo struct {
	// ReadWrite can be read and written, ReadOnly only read.
	ReadWrite, ReadOnly int
	// Unreachable are on a replica set that does not answer.
	Unreachable int
	// Unknown are nowhere as far as is known.
	Unknown int
}

// ReplicaSetInfo is the condition of one replica set.
type ReplicaSetInfo struct {
	Name string
	// ClusterID is that of the cluster it was made for, empty when it was not bootstrapped.
	ClusterID string
	// Master is the id of its master, empty when it has none that answers.
	Master string
	// Status is the condition of the master's engine or, when there is no master, of that of
	// a member that answers.
	Status engine.Status
	// Weight and Locked are what the rebalancer goes by.
	Weight float64
	Locked bool
	// Buckets counts its buckets by state.
	Buckets map[shard.State]int
	// Members are all of them.
	Members []MemberInfo
	// SplitPhase is "held" or "splitting" while bucket_count is doubled, else empty.
	SplitPhase string
	// Moves are the moves of buckets that its master looks after.
	Moves []*v1.BucketMove
	// Known are the replica sets that it has ever seen and that were not forgotten.
	Known []string
	// Group are its members as the group itself knows them, from whom Status is.
	Group []*v1.StorageMember
}

// Belongs reports whether a member belongs to the group, as the master says; true when that is not
// known. A node that waits to be added, or was taken out, does not.
func (s *ReplicaSetInfo) Belongs(id string) bool {
	has := func(id string) bool {
		return slices.ContainsFunc(s.Group, func(m *v1.StorageMember) bool { return m.GetId() == id })
	}
	// A node by itself has another name in its group of one.
	return !has(s.Master) || has(id)
}

// MemberInfo is the condition of one member.
type MemberInfo struct {
	Member
	// Err is why it does not answer, else nil; then the rest is unknown.
	Err error
	// State is what its engine can do.
	State engine.State
	// Applied is the number of the last command that it has.
	Applied uint64
	// Lag is how many commands it is behind the master.
	Lag uint64
	// Warning is what its operator should look at, or empty.
	Warning string
}

// Info asks every member of every replica set for its condition now, all at once, and waits for
// those that do not answer for 2 s at most.
func (r *Router) Info(ctx context.Context) Info {
	ctx, cancel := context.WithTimeout(ctx, infoTime)
	defer cancel()
	sets := r.all()
	found := make([]inspection, len(sets))
	var wg sync.WaitGroup
	for i, s := range sets {
		wg.Go(func() { found[i] = inspect(ctx, s) })
	}
	wg.Wait()
	slices.SortFunc(found, func(a, b inspection) int { return cmp.Compare(a.Name, b.Name) })
	i := &inspector{
		bucketCount: int(r.count), owner: make([]string, r.count+1), readOnly: make([]bool, r.count+1), masterless: map[string]bool{},
		distance: func(m Member) int { return r.opts.ZoneDistance(r.opts.Zone, m.Zone) },
		route: func(b int) string {
			if s := r.routes[b].Load(); s != nil {
				return s.name
			}
			return ""
		},
	}
	for _, f := range found {
		i.set(f)
	}
	i.buckets()
	slices.SortStableFunc(i.info.Alerts, func(a, b Alert) int { return cmp.Compare(b.Level, a.Level) })
	for _, a := range i.info.Alerts {
		i.info.Level = max(i.info.Level, a.Level)
	}
	return i.info
}

// inspection is what a replica set's members say.
type inspection struct {
	ReplicaSetInfo
	whole  bool // its one member is in this process
	ranges []*v1.BucketRange
}

// inspect asks a replica set's members.
func inspect(ctx context.Context, s *replicaSet) inspection {
	members := *s.members.Load()
	out := inspection{ReplicaSetInfo: ReplicaSetInfo{Name: s.name, Members: make([]MemberInfo, len(members))}, whole: s.whole != nil}
	infos := make([]*v1.StorageInfoResponse, len(members))
	ranges := make([][]*v1.BucketRange, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		out.Members[i].Member = m.Member
		wg.Go(func() {
			infos[i], ranges[i], out.Members[i].Err = m.inspect(ctx)
		})
	}
	wg.Wait()
	best := -1
	for i, info := range infos {
		if info == nil {
			continue
		}
		out.Members[i].State = engine.State(info.GetEngineState())
		out.Members[i].Applied = info.GetApplied()
		out.Members[i].Warning = info.GetWarning()
		isMaster := out.Members[i].State == engine.Master
		switch {
		case best < 0,
			isMaster && (out.Members[best].State != engine.Master || info.GetTerm() > infos[best].GetTerm()):
			best = i
		}
	}
	if best < 0 {
		return out
	}
	info := infos[best]
	if out.Members[best].State == engine.Master {
		out.Master = members[best].ID
		out.ranges = ranges[best]
	}
	out.Status = engineStatus(info)
	out.ClusterID, out.Group = info.GetClusterId(), info.GetMembers()
	out.Weight, out.Locked = info.GetWeight(), info.GetLocked()
	out.Moves, out.Known = info.GetMoves(), info.GetKnownReplicaSets()
	out.SplitPhase = info.GetSplitPhase()
	out.Buckets = map[shard.State]int{}
	for state, n := range info.GetBuckets() {
		out.Buckets[shard.State(state)] = int(n)
	}
	if out.Master != "" {
		for i := range out.Members {
			if m := &out.Members[i]; m.Err == nil && m.Applied < info.GetApplied() {
				m.Lag = info.GetApplied() - m.Applied
			}
		}
	}
	return out
}

// inspect asks a member.
func (m *member) inspect(ctx context.Context) (info *v1.StorageInfoResponse, ranges []*v1.BucketRange, err error) {
	err = m.link.admin(ctx, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
		info, err = c.StorageInfo(ctx, &v1.StorageInfoRequest{})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if engine.State(info.GetEngineState()) == engine.Master {
		resp, err := m.link.discover(ctx)
		if err != nil {
			return nil, nil, err
		}
		ranges = resp.GetRanges()
	}
	return info, ranges, nil
}

func engineStatus(info *v1.StorageInfoResponse) engine.Status {
	st := engine.Status{
		State: engine.State(info.GetEngineState()), Warning: info.GetWarning(),
		Applied: info.GetApplied(), Logged: info.GetLogged(), InFlight: int(info.GetInFlight()), InFlightBytes: info.GetInFlightBytes(),
		SnapshotAt: info.GetSnapshotAt(), LogBytes: info.GetLogBytes(), StateBytes: info.GetStateBytes(),
	}
	if t := info.GetEngineError(); t != "" {
		st.Err = &shard.Error{Code: shard.StoreFailed, ReplicaSet: info.GetReplicaSet(), Reason: t}
	}
	return st
}
