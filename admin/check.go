package admin

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// Kinds and severities of findings.
const (
	severityError   = "error"
	severityWarning = "warning"

	kindNoOwner     = "no_owner"
	kindTwoOwners   = "two_owners"
	kindRowsDiffer  = "rows_differ"
	kindStateDiffer = "state_differs"
	kindMoving      = "moving"
	kindNotChecked  = "not_checked"
	kindUnreachable = "unreachable"
	kindStranger    = "stranger"
)

const (
	// Owners that look wrong are looked at again so often, at this pace, those that do not even
	// move less often.
	ownerLooks      = 20
	ownerLooksStill = 4
	ownerPause      = 250 * time.Millisecond
)

// check is a CheckStore under way.
type check struct {
	s       *Service
	buckets []shard.BucketID
	tell    func(*v1.CheckStoreResponse) error
	start   time.Time
	checked atomic.Uint64
	toCheck atomic.Uint64
	bad     bool // there is an error among the findings
	sum     v1.CheckStoreSummary
}

// CheckStore implements v1.ClusterService.
func (s *Service) CheckStore(req *v1.CheckStoreRequest, stream grpc.ServerStreamingServer[v1.CheckStoreResponse]) error {
	return userError(s.checkStore(stream.Context(), req, stream.Send))
}

func (s *Service) checkStore(ctx context.Context, req *v1.CheckStoreRequest, tell func(*v1.CheckStoreResponse) error) error {
	buckets, err := listOrAll(req.GetBuckets(), s.router.BucketCount())
	if err != nil {
		return err
	}
	c := &check{s: s, buckets: buckets, tell: tell, start: time.Now()}
	info := s.router.Info(ctx)
	if err := c.say("asking all members"); err != nil {
		return err
	}
	if err := c.report(c.members(info)...); err != nil {
		return err
	}
	if err := c.say("looking for the owner of every bucket"); err != nil {
		return err
	}
	p, err := c.owners(ctx)
	if err != nil {
		return err
	}
	if !req.GetOwnersOnly() {
		if err := c.rows(ctx, info, p); err != nil {
			return err
		}
	}
	c.sum.Ok, c.sum.Buckets, c.sum.Took = !c.bad, uint32(len(buckets)), durationpb.New(time.Since(c.start))
	return tell(&v1.CheckStoreResponse{Checked: c.checked.Load(), ToCheck: c.toCheck.Load(), Summary: &c.sum})
}

func (c *check) say(step string) error {
	return c.tell(&v1.CheckStoreResponse{Step: step, Checked: c.checked.Load(), ToCheck: c.toCheck.Load()})
}

func (c *check) report(found ...*v1.StoreFinding) error {
	if len(found) == 0 {
		return nil
	}
	for _, f := range found {
		c.bad = c.bad || f.GetSeverity() == severityError
	}
	return c.tell(&v1.CheckStoreResponse{Checked: c.checked.Load(), ToCheck: c.toCheck.Load(), Findings: found})
}

// members looks who answers.
func (c *check) members(info router.Info) (found []*v1.StoreFinding) {
	stored := 0
	for i := range info.ReplicaSets {
		set := &info.ReplicaSets[i]
		if !part(set) && answers(set) {
			found = append(found, &v1.StoreFinding{
				Severity: severityWarning, Kind: kindStranger, ReplicaSet: set.Name, Text: "its nodes are there, and it is not part of the store",
				Repair: "add it with: switchyard cluster add-set " + set.Name + "; or stop its nodes",
			})
			continue
		}
		stored++
		c.sum.ReplicaSets++
		if set.Master == "" {
			found = append(found, &v1.StoreFinding{
				Severity: severityError, Kind: kindUnreachable, ReplicaSet: set.Name, Text: "it has no master that answers, so its buckets cannot be checked",
				Repair: "look at its nodes and the network; more than half of its members must be alive and reach each other",
			})
		}
		for k := range set.Members {
			if f := c.member(set, &set.Members[k]); f != nil {
				found = append(found, f)
			}
		}
		for _, g := range groupOf(set) {
			if !slices.ContainsFunc(set.Members, func(m router.MemberInfo) bool { return m.ID == g.GetId() }) {
				found = append(found, c.unseen(set.Name, g))
			}
		}
		found = append(found, c.unknownSets(info, set)...)
	}
	if stored == 0 {
		found = append(found, &v1.StoreFinding{Severity: severityError, Kind: kindUnreachable, Text: "no replica set that is part of a store answers", Repair: "is it made? see: switchyard cluster bootstrap --help"})
	}
	return found
}

func (c *check) member(set *router.ReplicaSetInfo, m *router.MemberInfo) *v1.StoreFinding {
	f := &v1.StoreFinding{Severity: severityError, Kind: kindUnreachable, ReplicaSet: set.Name, Member: m.ID}
	switch {
	case m.Err != nil && !set.Belongs(m.ID):
		return nil // it was taken out
	case m.Err != nil:
		f.Text = "it does not answer, so its rows cannot be checked: " + m.Err.Error()
		f.Repair = "start its node; if that is lost for good, take it out with: switchyard shard remove-member " + set.Name + " " + m.ID
	case m.State == engine.Failed:
		f.Text = "its store has failed: " + m.Warning
		f.Repair = "look at the log of its node; docs/operations.md says what to do"
	case memberState(set, m) == memberNone:
		f.Severity, f.Kind, f.Text = severityWarning, kindStranger, "its node is there, and it is not a member of the replica set"
		f.Repair = "add it with: switchyard shard add-member " + set.Name + " " + m.ID + "; or stop the node"
	default:
		c.sum.Members++
		return nil
	}
	return f
}

func (c *check) unseen(set string, g *v1.StorageMember) *v1.StoreFinding {
	return &v1.StoreFinding{
		Severity: severityError, Kind: kindUnreachable, ReplicaSet: set, Member: g.GetId(), Text: "its node was not seen, so its rows cannot be checked",
		Repair: "start the node; if it is lost for good, take it out with: switchyard shard remove-member " + set + " " + g.GetId(),
	}
}

// unknownSets are those that a set knows and nobody sees.
func (c *check) unknownSets(info router.Info, set *router.ReplicaSetInfo) (found []*v1.StoreFinding) {
	for _, name := range set.Known {
		if !slices.ContainsFunc(info.ReplicaSets, func(f router.ReplicaSetInfo) bool { return f.Name == name }) {
			found = append(found, &v1.StoreFinding{
				Severity: severityError, Kind: kindUnreachable, ReplicaSet: name, Text: "replica set " + set.Name + " knows it, and no node of it was seen",
				Repair: "start its nodes; if it is gone and owned no bucket: switchyard cluster remove-set " + name,
			})
		}
	}
	return found
}

// owners looks whether every bucket has exactly one owner. What looks wrong may be a move between two
// answers; it is looked at again until it is right, or stays.
func (c *check) owners(ctx context.Context) (*places, error) {
	suspects := c.buckets
	var p *places
	for n := 0; ; n++ {
		p = c.s.look(ctx)
		var still []shard.BucketID
		for _, b := range suspects {
			if len(p.owners(b)) != 1 {
				still = append(still, b)
			}
		}
		if suspects = still; len(suspects) == 0 || n == ownerLooks || n >= ownerLooksStill && p.resting(suspects) {
			break
		}
		select {
		case <-time.After(ownerPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, f := range judgeOwners(suspects, p) {
		if err := c.report(f); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// resting says that none of the buckets is in the middle of a move that should end.
func (p *places) resting(buckets []shard.BucketID) bool {
	for _, b := range buckets {
		for _, at := range p.at[b] {
			if len(p.silent) == 0 && (at.moving() || at.state == shard.Sent) {
				return false
			}
		}
	}
	return true
}

// judgeOwners says what is wrong with buckets that have no owner or several, equal ones together.
func judgeOwners(buckets []shard.BucketID, p *places) (found []*v1.StoreFinding) {
	byText := map[string]int{}
	members := map[int][]shard.BucketID{}
	for _, b := range buckets {
		f := judgeOwner(b, p)
		key := f.GetKind() + f.GetText() + f.GetRepair()
		i, ok := byText[key]
		if !ok {
			i = len(found)
			byText[key] = i
			found = append(found, f)
		}
		members[i] = append(members[i], b)
	}
	for i, f := range found {
		f.Buckets = spansOf(members[i])
	}
	return found
}

func judgeOwner(b shard.BucketID, p *places) *v1.StoreFinding {
	f := &v1.StoreFinding{Severity: severityError}
	owners := p.owners(b)
	if len(owners) > 1 {
		f.Kind = kindTwoOwners
		newest, oldest := owners[0], owners[0]
		for _, o := range owners {
			f.Text += fmt.Sprintf("%s on %s (transfer %d), ", o.state, o.set, o.transfer)
			if o.transfer > newest.transfer {
				newest = o
			}
			if o.transfer < oldest.transfer {
				oldest = o
			}
		}
		f.Text += "and only one of them may have it"
		if newest.transfer > oldest.transfer {
			f.Repair = fmt.Sprintf("%s is the later owner; compare the rows, and then drop the other's: switchyard shard force-drop BUCKETS %s", newest.set, oldest.set)
		} else {
			f.Repair = "compare the rows, and then drop those of the wrong one: switchyard shard force-drop BUCKETS SET"
		}
		return f
	}
	if len(p.silent) > 0 {
		f.Kind, f.Text = kindNotChecked, "no replica set that answers has it"
		f.Repair = "it may be on " + p.silent[0] + ", which does not answer: look at its nodes"
		return f
	}
	f.Kind, f.Text, f.Repair = kindNoOwner, "no replica set has it", "if it is lost, make it anew, empty: switchyard shard force-create BUCKETS SET"
	for _, at := range p.at[b] {
		switch at.state {
		case shard.Receiving:
			f.Kind = kindMoving
			f.Text = fmt.Sprintf("its move from %s to %s does not end", at.peer, at.set)
			f.Repair = fmt.Sprintf("it ends by itself when both masters answer; if %s is lost for good, what has arrived can be made the bucket: switchyard shard force-create BUCKETS %s", at.peer, at.set)
			return f
		case shard.Sent:
			f.Text = fmt.Sprintf("%s gave it to %s, which does not have it", at.set, at.peer)
			f.Repair = fmt.Sprintf("if %s has lost it, the rows that are still there can be made the bucket: switchyard shard force-create BUCKETS %s", at.peer, at.set)
		}
	}
	return f
}
