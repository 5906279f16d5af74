package router

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

const (
	// A member that is so many commands behind its master is far behind.
	lagYellow = 100_000
	lagOrange = 1_000_000
	// A move that is older is stuck.
	stuckMove = time.Minute
	// namedBuckets is how many buckets an alert names.
	namedBuckets = 5
)

// inspector makes an Info of what replica sets say.
type inspector struct {
	info        Info
	bucketCount int
	owner       []string // by bucket: whose master said it has it
	readOnly    []bool
	twice       []string
	masterless  map[string]bool // replica sets that have no master
	// distance says how far a member is, and route where a bucket was last known to be.
	distance func(Member) int
	route    func(b int) string
}

func (i *inspector) alert(l Level, code shard.Code, set, format string, args ...any) {
	i.info.Alerts = append(i.info.Alerts, Alert{l, code, set, fmt.Sprintf(format, args...)})
}

// set takes in one replica set.
func (i *inspector) set(f inspection) {
	i.info.ReplicaSets = append(i.info.ReplicaSets, f.ReplicaSetInfo)
	answering := i.members(f)
	switch {
	case len(f.Members) == 0:
		i.alert(Red, shard.UnreachableReplicaSet, f.Name, "no member of it is known; its buckets cannot be used until one is")
	case answering == 0:
		i.alert(Red, shard.UnreachableReplicaSet, f.Name, "none of its %d members answers; its buckets cannot be used: look at its nodes and the network", len(f.Members))
	case f.Master == "":
		i.noMaster(f, answering)
	default:
		i.master(f)
	}
	if f.Master == "" {
		i.masterless[f.Name] = true
	}
}

// members takes in the members of a replica set, and returns how many answer.
func (i *inspector) members(f inspection) (answering int) {
	counted, size := 0, 0 // of the group
	for _, m := range f.Members {
		if f.Belongs(m.ID) {
			size++
		} else if m.Err != nil {
			continue // its node was taken out, or is none of the group's yet
		}
		if errors.Is(m.Err, shard.InvalidConfig) {
			i.alert(Red, shard.InvalidConfig, f.Name, "member %s is not of this cluster: %v", m.ID, m.Err)
			continue
		}
		if m.Err != nil {
			i.alert(Yellow, shard.UnreachableReplica, f.Name, "member %s at %s does not answer: %v", m.ID, m.Address, m.Err)
			continue
		}
		answering++
		if f.Belongs(m.ID) {
			counted++
		}
		switch {
		case m.State == engine.Failed && f.Master != "":
			i.alert(Orange, shard.UnreachableReplica, f.Name, "the store of member %s has failed and must be looked after", m.ID)
		case m.Lag >= lagOrange:
			i.alert(Orange, shard.HighReplicationLag, f.Name, "member %s is %d commands behind its master", m.ID, m.Lag)
		case m.Lag >= lagYellow:
			i.alert(Yellow, shard.HighReplicationLag, f.Name, "member %s is %d commands behind its master", m.ID, m.Lag)
		}
		if m.Warning != "" {
			i.alert(Yellow, shard.StoreFailed, f.Name, "member %s: %s", m.ID, m.Warning)
		}
	}
	i.nearest(f, answering)
	if n := max(size, len(f.Group)); n > 1 && counted > 0 && counted < n {
		level := Yellow
		if counted <= n/2+1 {
			level = Orange
		}
		i.alert(level, shard.LowRedundancy, f.Name, "%d of %d members answer; %d are needed to write", counted, n, n/2+1)
	}
	return answering
}

// nearest tells when only members that are farther away than others answer.
func (i *inspector) nearest(f inspection, answering int) {
	if answering == 0 {
		return
	}
	least, leastUp := math.MaxInt, math.MaxInt
	for _, m := range f.Members {
		d := i.distance(m.Member)
		least = min(least, d)
		if m.Err == nil {
			leastUp = min(leastUp, d)
		}
	}
	if leastUp > least {
		i.alert(Yellow, shard.SuboptimalReplica, f.Name, "no member in the nearest zone answers; reads go to a farther one")
	}
}

// noMaster says why a replica set whose members answer has no master.
func (i *inspector) noMaster(f inspection, answering int) {
	st := f.Status
	if len(f.Members) > 1 {
		if answering <= len(f.Members)/2 {
			i.alert(Red, shard.MissingMaster, f.Name, "it has no master, because only %d of its %d members answer; its buckets can be read on replicas at best", answering, len(f.Members))
		} else {
			i.alert(Orange, shard.MissingMaster, f.Name, "it has no master at the moment; it should elect one within seconds")
		}
		return
	}
	switch st.State {
	case engine.Starting, engine.Replica:
		i.alert(Orange, shard.MissingMaster, f.Name, "the replica set has no master yet")
	case engine.Failed:
		i.alert(Red, shard.StoreFailed, f.Name, "%v", st.Err)
	default:
		i.alert(Red, shard.UnreachableMaster, f.Name, "the store is %v", st.State)
	}
}

// master takes in what a replica set's master says of buckets and moves.
func (i *inspector) master(f inspection) {
	for _, g := range f.ranges {
		state := shard.State(g.GetState())
		if !state.CanRead() {
			continue
		}
		for b := g.GetFirst(); b <= g.GetLast() && int(b) < len(i.owner); b++ {
			if other := i.owner[b]; other != "" {
				i.twice = append(i.twice, fmt.Sprintf("%d (%s and %s)", b, other, f.Name))
				continue
			}
			i.owner[b] = f.Name
			i.readOnly[b] = !state.CanWrite()
		}
	}
	if f.SplitPhase != "" {
		i.alert(Yellow, shard.SplitIsInProgress, f.Name, "bucket_count is being doubled (%s), and no bucket moves until that is finished; see: switchyard shard split status", f.SplitPhase)
	}
	stuck := 0
	var first string
	for _, m := range f.Moves {
		if m.GetAge().AsDuration() < stuckMove && m.GetError() == "" {
			continue
		}
		if stuck++; first == "" {
			first = fmt.Sprintf("bucket %d to %s, %s for %v", m.GetBucket(), m.GetDestination(), m.GetPhase(), m.GetAge().AsDuration().Round(time.Second))
			if m.GetError() != "" {
				first += ": " + m.GetError()
			}
		}
	}
	if stuck > 0 {
		i.alert(Yellow, shard.TransferIsInProgress, f.Name, "%d moves make no progress, such as %s", stuck, first)
	}
}

// buckets sums up where buckets are.
func (i *inspector) buckets() {
	b := &i.info.Buckets
	for bucket := 1; bucket <= i.bucketCount; bucket++ {
		switch {
		case i.owner[bucket] == "" && i.masterless[i.route(bucket)]:
			b.Unreachable++
		case i.owner[bucket] == "":
			b.Unknown++
		case i.readOnly[bucket]:
			b.ReadOnly++
		default:
			b.ReadWrite++
		}
	}
	switch {
	case b.Unknown == i.bucketCount:
		i.alert(Red, shard.UnknownBuckets, "", "no replica set that answers has a bucket: is the store bootstrapped?")
	case b.Unknown > 0:
		i.alert(Yellow, shard.UnknownBuckets, "", "%d of %d buckets are on no replica set that answers", b.Unknown, i.bucketCount)
	}
	if n := len(i.twice); n > 0 {
		text := strings.Join(i.twice[:min(n, namedBuckets)], ", ")
		if n > namedBuckets {
			text += ", …"
		}
		i.alert(Red, shard.BucketIsCorrupted, "", "%d buckets are on two replica sets, and one of the two must be dropped: %s", n, text)
	}
}
