package storage

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// SpaceFacts is "_facts", in bucket 0 only: what a replica set keeps about itself and the
// others. A row is a name and a text; an empty text is no row.
const SpaceFacts Space = 2

// Names of facts.
const (
	factCluster = "cluster_id"
	factWeight  = "weight"
	factLock    = "lock"
	factSet     = "set/" // and the name of a replica set that was seen
	// "on" or "off", a blank, and the number of the request, of which the highest counts
	factRebalance = "rebalance"
)

// defaultWeight is the weight of a replica set of which none was said.
const defaultWeight = 1.0

// maxReplicaSets bounds the replica sets that one remembers.
const maxReplicaSets = 1000

// facts are the rows of SpaceFacts in memory.
type facts struct {
	mu   sync.Mutex
	text map[string]string
	sum  uint64 // of the hashes of all
}

func factHash(name, text string) uint64 { return rowHash([]byte(name), []byte(text)) }

func (f *facts) get(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text[name]
}

func (f *facts) set(name, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.text[name]; old != "" {
		f.sum -= factHash(name, old)
	}
	if text == "" {
		delete(f.text, name)
	} else {
		f.text[name] = text
		f.sum += factHash(name, text)
	}
}

func (f *facts) read(r engine.Reader) error {
	all := map[string]string{}
	x := rows{r: r}
	err := x.Scan(SpaceFacts, nil, nil, false, func(key, value []byte) bool {
		all[string(key)] = string(value)
		return true
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text, f.sum = all, 0
	for name, text := range all {
		f.sum += factHash(name, text)
	}
	return err
}

// applyFact sets a fact. Arguments: name, text.
func (s *Storage) applyFact(tx *Tx, args []byte) error {
	in := decoder{b: args}
	name, text := string(in.text()), string(in.text())
	if in.bad || name == "" || len(name) > 2*maxNameLength || len(text) > 4*maxNameLength {
		return &shard.Error{Code: shard.InvalidArguments, Reason: "a fact that cannot be read"}
	}
	if old := s.facts.get(name); name == factCluster && old != "" && old != text {
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("it belongs to cluster %s, not to %s", old, text)}
	}
	if name == factRebalance {
		_, old := parseRebalance(s.facts.get(name))
		if _, v := parseRebalance(text); v <= old {
			return nil // something newer has been said
		}
	}
	var err error
	if text == "" {
		err = tx.Delete(SpaceFacts, []byte(name))
	} else {
		err = tx.Put(SpaceFacts, 0, []byte(name), []byte(text))
	}
	if err == nil {
		err = tx.tx.Settle()
	}
	if err == nil {
		s.facts.set(name, text)
		s.table.mu.Lock()
		s.table.tellLocked()
		s.table.mu.Unlock()
	}
	return err
}

func (s *Storage) setFact(ctx context.Context, name, text string) error {
	_, err := s.system(ctx, fnFact, appendText(appendText(nil, name), text))
	return err
}

// ClusterID returns the id of the cluster that the replica set was made for, or "".
func (s *Storage) ClusterID() string { return s.facts.get(factCluster) }

// Weight returns the replica set's weight: how many buckets it should have, compared with others.
func (s *Storage) Weight() float64 {
	if w, err := strconv.ParseFloat(s.facts.get(factWeight), 64); err == nil {
		return w
	}
	return defaultWeight
}

// SetWeight sets the weight: 0 drains the replica set, less is INVALID_CFG.
func (s *Storage) SetWeight(ctx context.Context, weight float64) error {
	if !validWeight(weight) {
		return s.badWeight(weight)
	}
	return s.setFact(ctx, factWeight, strconv.FormatFloat(weight, 'g', -1, 64))
}

func validWeight(weight float64) bool { return weight >= 0 && !math.IsInf(weight, 0) }

func (s *Storage) badWeight(weight float64) error {
	return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("weight %v; it must be a number from 0 on", weight)}
}

// Locked reports whether the replica set is locked: it sends and receives no buckets.
func (s *Storage) Locked() bool { return s.facts.get(factLock) != "" }

// SetLock locks the replica set or ends that.
func (s *Storage) SetLock(ctx context.Context, locked bool) error {
	text := ""
	if locked {
		text = "1"
	}
	return s.setFact(ctx, factLock, text)
}

// Rebalancing reports whether the replica set was told that buckets are to be rebalanced, and the
// number of the request that said so; yes and 0 when nothing was ever said. Of all replica sets
// of a cluster the one with the highest number counts.
func (s *Storage) Rebalancing() (on bool, version uint64) {
	return parseRebalance(s.facts.get(factRebalance))
}

func parseRebalance(text string) (on bool, version uint64) {
	word, number, _ := strings.Cut(text, " ")
	version, _ = strconv.ParseUint(number, 10, 64) // 0 when nothing was said
	return word != "off", version
}

// SetRebalancing tells the replica set whether buckets are to be rebalanced. It has no effect when
// a request with a number as high has been here; version 0 is higher than all that have.
func (s *Storage) SetRebalancing(ctx context.Context, on bool, version uint64) error {
	if version == 0 {
		_, old := s.Rebalancing()
		version = max(old+1, uint64(time.Now().UnixMilli()))
	}
	word := "off"
	if on {
		word = "on"
	}
	return s.setFact(ctx, factRebalance, word+" "+strconv.FormatUint(version, 10))
}

// FactsSum stands for what a rebalancer should know of this replica set, apart from which buckets it
// has: its facts and how many buckets are pinned. It is another number when any of that has changed.
func (s *Storage) FactsSum() uint64 {
	s.facts.mu.Lock()
	sum := s.facts.sum
	s.facts.mu.Unlock()
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return sum + uint64(s.table.count[shard.Pinned])*0x9e3779b97f4a7c15
}

// KnownReplicaSets returns the names of all replica sets that this one has seen and not
// forgotten, itself included, in order.
func (s *Storage) KnownReplicaSets() []string {
	names := []string{s.opts.ReplicaSet}
	s.facts.mu.Lock()
	for name := range maps.Keys(s.facts.text) {
		if set, ok := strings.CutPrefix(name, factSet); ok {
			names = append(names, set)
		}
	}
	s.facts.mu.Unlock()
	slices.Sort(names)
	return slices.Compact(names)
}

// RememberReplicaSet notes that there is a replica set.
func (s *Storage) RememberReplicaSet(ctx context.Context, name string) error {
	known := s.KnownReplicaSets()
	switch {
	case name == "" || len(name) > maxNameLength:
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("a replica set's name has 1 to %d bytes, this one %d", maxNameLength, len(name))}
	case slices.Contains(known, name):
		return nil
	case len(known) >= maxReplicaSets:
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("%d replica sets are known, which is the limit", len(known))}
	}
	return s.setFact(ctx, factSet+name, "1")
}

// ForgetReplicaSet forgets a replica set that is gone for good. The caller has made sure that
// it owns no bucket; as far as is known here, it must not be part of a move.
func (s *Storage) ForgetReplicaSet(ctx context.Context, name string) error {
	if name == s.opts.ReplicaSet || !slices.Contains(s.KnownReplicaSets(), name) {
		return &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: name, Reason: "it is not one of the others that are known"}
	}
	for b, row := range s.table.special() {
		if row.Peer == name && row.State != shard.Absent {
			return &shard.Error{Code: shard.TransferIsInProgress, Bucket: b, ReplicaSet: name, Reason: "a move with it is not over"}
		}
	}
	return s.setFact(ctx, factSet+name, "")
}

// BootstrapReplicaSet makes a replica set part of a cluster: with the buckets that it gets when the
// cluster is made, or without any when it comes later. With members it makes a group of them first,
// led by this one. What was cut short goes on when it is called again with the same request; when
// it was done it is NON_EMPTY.
func (s *Storage) BootstrapReplicaSet(ctx context.Context, req *v1.BootstrapStorageRequest) error {
	bad := func(format string, args ...any) error {
		return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case req.GetReplicaSet() != s.opts.ReplicaSet:
		return bad("this is replica set %s, not %s", s.opts.ReplicaSet, req.GetReplicaSet())
	case req.GetBucketCount() != s.opts.BucketCount:
		return bad("bucket_count is %d here, not %d", s.opts.BucketCount, req.GetBucketCount())
	case req.GetClusterId() == "" || len(req.GetClusterId()) > maxNameLength:
		return bad("a cluster id of 1 to %d bytes is needed", maxNameLength)
	case !validWeight(req.GetWeight()):
		return s.badWeight(req.GetWeight())
	case !s.haveRanges(req.GetBuckets()):
		return bad("buckets are numbered 1 to %d", s.opts.BucketCount)
	case s.ClusterID() != "":
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: s.opts.ReplicaSet, Reason: "it belongs to cluster " + s.ClusterID()}
	}
	if err := s.makeGroup(ctx, req.GetMembers()); err != nil {
		return err
	}
	for _, name := range req.GetReplicaSets() {
		if err := s.RememberReplicaSet(ctx, name); err != nil {
			return err
		}
	}
	if w := req.GetWeight(); w != 0 || req.GetDrained() {
		if req.GetDrained() {
			w = 0
		}
		if err := s.SetWeight(ctx, w); err != nil {
			return err
		}
	}
	if err := s.makeBuckets(ctx, req.GetBuckets()); err != nil {
		return err
	}
	// Last, because it says that all is done.
	return s.setFact(ctx, factCluster, req.GetClusterId())
}

// haveRanges reports whether there are such buckets.
func (s *Storage) haveRanges(ranges []*v1.BucketRange) bool {
	for _, r := range ranges {
		if r.GetFirst() < 1 || r.GetLast() < r.GetFirst() || r.GetLast() > s.opts.BucketCount {
			return false
		}
	}
	return true
}

// makeGroup makes a group of the members, this one first.
func (s *Storage) makeGroup(ctx context.Context, members []*v1.StorageMember) error {
	if len(members) == 0 {
		return nil
	}
	g, err := s.group()
	if err != nil {
		return err
	}
	list := make([]engine.Member, len(members))
	for i, m := range members {
		list[i] = engine.Member{ID: m.GetId(), Address: m.GetAddress(), Voter: m.GetVoter()}
	}
	return g.Bootstrap(ctx, list)
}

// makeBuckets makes the buckets of the ranges here. It does nothing when just these are here.
func (s *Storage) makeBuckets(ctx context.Context, ranges []*v1.BucketRange) error {
	wanted := make([]bool, s.opts.BucketCount+1)
	var args []byte
	for _, r := range ranges {
		first, last := shard.BucketID(r.GetFirst()), shard.BucketID(r.GetLast())
		args = appendRange(args, first, last, shard.Active)
		for b := first; b <= last && s.table.has(b); b++ {
			wanted[b] = true
		}
	}
	if s.BucketCounts()[shard.Absent] == int(s.opts.BucketCount) {
		if len(args) == 0 {
			return nil
		}
		_, err := s.system(ctx, fnBootstrap, args)
		return err
	}
	for b := shard.BucketID(1); s.table.has(b); b++ {
		if (s.table.load(b).state() != shard.Absent) != wanted[b] {
			return &shard.Error{Code: shard.NonEmpty, Bucket: b, ReplicaSet: s.opts.ReplicaSet}
		}
	}
	return nil
}
