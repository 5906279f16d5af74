package router

import (
	"fmt"
	"sort"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Level says how bad things are. The numbers are those of vshard.
type Level int

// Levels.
const (
	// Green: all is well.
	Green Level = 0
	// Yellow: something should be looked at.
	Yellow Level = 1
	// Orange: something does not work at the moment.
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

// Info is the condition of the store as the router sees it.
type Info struct {
	// Level is the highest level of the alerts.
	Level  Level
	Alerts []Alert
	// Buckets counts buckets by what can be done with them.
	Buckets BucketInfo
	// ReplicaSets are all of them, in order of their names.
	ReplicaSets []ReplicaSetInfo
}

// BucketInfo counts buckets. The four add up to the bucket count.
type BucketInfo struct {
	// ReadWrite can be read and written, ReadOnly only read.
	ReadWrite, ReadOnly int
	// Unreachable are on a replica set that does not answer, or on the move.
	Unreachable int
	// Unknown are nowhere as far as is known.
	Unknown int
}

// ReplicaSetInfo is the condition of one replica set.
type ReplicaSetInfo struct {
	Name    string
	Status  engine.Status
	Buckets map[shard.State]int
}

// Info asks every replica set for its condition now.
func (r *Router) Info() Info {
	info := Info{}
	alert := func(l Level, code shard.Code, set, format string, args ...any) {
		info.Alerts = append(info.Alerts, Alert{l, code, set, fmt.Sprintf(format, args...)})
		info.Level = max(info.Level, l)
	}
	placed := 0
	for _, k := range r.known {
		st, counts := k.set.Status(), k.set.BucketCounts()
		info.ReplicaSets = append(info.ReplicaSets, ReplicaSetInfo{k.name, st, counts})
		rw := counts[shard.Active] + counts[shard.Pinned]
		ro := counts[shard.ReadOnly] + counts[shard.Sending]
		moving := counts[shard.Receiving]
		placed += rw + ro + moving
		info.Buckets.Unreachable += moving
		switch st.State {
		case engine.Master:
			info.Buckets.ReadWrite += rw
			info.Buckets.ReadOnly += ro
		case engine.Starting, engine.Replica:
			info.Buckets.Unreachable += rw + ro
			alert(Orange, shard.MissingMaster, k.name, "the replica set has no master yet")
		case engine.Failed:
			info.Buckets.Unreachable += rw + ro
			alert(Red, shard.StoreFailed, k.name, "%v", st.Err)
		default:
			info.Buckets.Unreachable += rw + ro
			alert(Red, shard.UnreachableMaster, k.name, "the store is %v", st.State)
		}
		if st.Warning != "" {
			alert(Yellow, shard.StoreFailed, k.name, "%s", st.Warning)
		}
	}
	switch info.Buckets.Unknown = max(int(r.BucketCount())-placed, 0); {
	case info.Buckets.Unknown == int(r.BucketCount()):
		alert(Red, shard.UnknownBuckets, "", "no replica set has a bucket: the store is not bootstrapped")
	case info.Buckets.Unknown > 0:
		alert(Yellow, shard.UnknownBuckets, "", "%d of %d buckets are on no replica set that is known", info.Buckets.Unknown, r.BucketCount())
	}
	if placed > int(r.BucketCount()) {
		alert(Yellow, shard.BucketIsCorrupted, "", "%d buckets are on more than one replica set", placed-int(r.BucketCount()))
	}
	sort.Slice(info.ReplicaSets, func(i, j int) bool { return info.ReplicaSets[i].Name < info.ReplicaSets[j].Name })
	sort.SliceStable(info.Alerts, func(i, j int) bool { return info.Alerts[i].Level > info.Alerts[j].Level })
	return info
}
