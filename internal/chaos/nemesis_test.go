package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// nemesis does harm to a cluster, and repairs it.
type nemesis struct {
	c      *cluster
	rnd    *rand.Rand // of the schedule
	say    func(format string, args ...any)
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
	moved  int
	failed map[string]int // moves, by the error
	err    error          // what must not happen, such as a node that does not start
}

// fault is one kind of harm. do returns what undoes it, nil for nothing.
type fault struct {
	name   string
	weight int
	do     func(*nemesis, *rand.Rand) (what string, heal func() error)
}

var faults = []fault{
	{"kill", 5, (*nemesis).kill},
	{"kill of a replica set", 1, (*nemesis).killSet},
	{"isolation", 3, (*nemesis).isolate},
	{"partition", 3, (*nemesis).partition},
	{"one way", 3, (*nemesis).oneWay},
	{"cut", 2, (*nemesis).cut},
	{"dropped connections", 2, (*nemesis).drop},
	{"slow network", 2, (*nemesis).slow},
	{"pause", 3, (*nemesis).pause},
	{"hung disk", 2, (*nemesis).hangDisk},
	{"hand-over", 5, (*nemesis).handOver},
	{"lost disk", 1, (*nemesis).loseDisk},
	{"removed member", 2, (*nemesis).removeMember},
}

// startNemesis begins the harm and the moves.
func startNemesis(c *cluster, seed uint64, say func(string, ...any)) *nemesis {
	ctx, cancel := context.WithCancel(context.Background())
	n := &nemesis{c: c, say: say, cancel: cancel, rnd: rand.New(rand.NewPCG(seed, 1<<32)), counts: map[string]int{}, failed: map[string]int{}}
	n.wg.Go(func() { n.harm(ctx) })
	for i := range 2 {
		rnd := rand.New(rand.NewPCG(seed, 1<<33+uint64(i)))
		n.wg.Go(func() { n.move(ctx, rnd) })
	}
	return n
}

// stop ends the harm and returns when all is repaired.
func (n *nemesis) stop() error {
	n.cancel()
	n.wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (n *nemesis) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = errors.Join(n.err, err)
}

func (n *nemesis) failedBadly() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err != nil
}

// notNow is what a fault says that was not done, because it would be too much.
const notNow = "not now"

// maxFaults is how many faults there are at a time.
const maxFaults = 2

func (n *nemesis) harm(ctx context.Context) {
	slots := make(chan struct{}, maxFaults)
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	for pause(ctx, time.Duration(50+n.rnd.IntN(600))*time.Millisecond) {
		pick := n.rnd.IntN(total)
		i := 0
		for pick >= faults[i].weight {
			pick -= faults[i].weight
			i++
		}
		f, lasts := faults[i], time.Duration(200+n.rnd.IntN(2300))*time.Millisecond
		rnd := rand.New(rand.NewPCG(n.rnd.Uint64(), 0))
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		n.wg.Go(func() {
			defer func() { <-slots }()
			what, heal := f.do(n, rnd)
			if what == notNow {
				return
			}
			n.mu.Lock()
			n.counts[f.name]++
			n.mu.Unlock()
			n.say("%s: %s, for %v", f.name, what, lasts)
			if heal == nil {
				return
			}
			pause(ctx, lasts)
			if err := heal(); err != nil {
				n.fail(fmt.Errorf("after %s, %s: %w", f.name, what, err))
			}
			n.say("%s: %s, over", f.name, what)
		})
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func quiet(heal func()) func() error { return func() error { heal(); return nil } }

func (n *nemesis) node(rnd *rand.Rand) *node { return n.c.nodes[rnd.IntN(len(n.c.nodes))] }

const startTime = time.Minute

func (n *nemesis) revive(nodes ...*node) error {
	var errs []error
	for _, x := range nodes {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		errs = append(errs, x.start(ctx))
		cancel()
	}
	return errors.Join(errs...)
}

func (n *nemesis) kill(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd)
	torn, err := x.kill(rnd)
	if err != nil {
		n.fail(err)
	}
	return fmt.Sprintf("%s, %d sectors torn", x.id, torn), func() error { return n.revive(x) }
}

func (n *nemesis) killSet(rnd *rand.Rand) (string, func() error) {
	set := n.c.names[rnd.IntN(len(n.c.names))]
	members := n.c.members(set)
	rnd.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, x := range members {
		if _, err := x.kill(rnd); err != nil {
			n.fail(err)
		}
	}
	return set, func() error { return n.revive(members...) }
}

// loseDisk gives a member an empty disk, when the others of its set are well.
func (n *nemesis) loseDisk(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd)
	if !n.c.whole(x.set) {
		return notNow, nil
	}
	if _, err := x.kill(nil); err != nil {
		n.fail(err)
	}
	if x.process() != nil { // somebody else has started it again
		return notNow, nil
	}
	if err := x.wipe(); err != nil {
		n.fail(err)
	}
	return x.id, func() error { return n.revive(x) }
}

// whole reports whether all members of a replica set are up and have all that is committed, so
// that it can do without one of them.
func (c *cluster) whole(set string) bool {
	var committed uint64
	found := false
	members := c.members(set)
	for _, n := range members {
		p := n.process()
		if p == nil {
			return false
		}
		if st := p.store.Status(); st.State == engine.Master && len(st.Members) == len(members) {
			committed, found = st.Committed, true
			for _, m := range st.Members {
				if m.ID != n.id && (m.Acknowledged < committed || m.Silent < 0 || m.Silent > time.Second) {
					return false
				}
			}
		}
	}
	for _, n := range members {
		p := n.process()
		if p == nil {
			return false
		}
		if st := p.store.Status(); st.Applied < committed || st.State == engine.Starting {
			return false
		}
	}
	return found
}

// between are both directions between two groups.
func between(a, b []string) (ways [][2]string) {
	for _, x := range a {
		for _, y := range b {
			ways = append(ways, [2]string{x, y}, [2]string{y, x})
		}
	}
	return ways
}

func (n *nemesis) others(of ...string) []string {
	return slices.DeleteFunc(n.c.everybody(), func(x string) bool { return slices.Contains(of, x) })
}

func (n *nemesis) isolate(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd).id
	return x, quiet(n.c.net.stall(between([]string{x}, n.others(x))))
}

// partition stalls everything between two groups, or between one member and its set.
func (n *nemesis) partition(rnd *rand.Rand) (string, func() error) {
	all := n.c.everybody()
	if rnd.IntN(2) == 0 {
		x := n.node(rnd)
		var rest []string
		for _, m := range n.c.members(x.set) {
			if m != x {
				rest = append(rest, m.id)
			}
		}
		return x.id + " from its replica set", quiet(n.c.net.stall(between([]string{x.id}, rest)))
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	cut := 2 + rnd.IntN(len(all)-3)
	return strings.Join(all[:cut], " ") + " from the others", quiet(n.c.net.stall(between(all[:cut], all[cut:])))
}

// oneWay stalls one direction between two nodes, or all that one says or hears.
func (n *nemesis) oneWay(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd).id
	others := n.others(x)
	if rnd.IntN(2) == 0 {
		others = others[:1:1]
		others[0] = n.others(x)[rnd.IntN(len(n.c.nodes)-1)]
	}
	says := rnd.IntN(2) == 0
	var ways [][2]string
	for _, y := range others {
		if says {
			ways = append(ways, [2]string{x, y})
		} else {
			ways = append(ways, [2]string{y, x})
		}
	}
	return fmt.Sprintf("%s to %d others, says %v", x, len(others), says), quiet(n.c.net.stall(ways))
}

func (n *nemesis) cut(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd).id
	return x, quiet(n.c.net.cut(between([]string{x}, n.others(x))))
}

func (n *nemesis) drop(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd).id
	n.c.net.drop(between([]string{x}, n.others(x)))
	return x, nil
}

func (n *nemesis) slow(rnd *rand.Rand) (string, func() error) {
	x, by := n.node(rnd).id, time.Duration(2+rnd.IntN(40))*time.Millisecond
	return fmt.Sprintf("%s by %v", x, by), quiet(n.c.net.slow(between([]string{x}, n.others(x)), by))
}

// pause lets a node stand still, as far as others and its disk can tell.
func (n *nemesis) pause(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd)
	network := n.c.net.stall(between([]string{x.id}, n.others(x.id)))
	p := x.process()
	if p == nil {
		return x.id + ", which is down", quiet(network)
	}
	disk := p.disk.hang()
	return x.id, quiet(func() { disk(); network() })
}

func (n *nemesis) hangDisk(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd)
	p := x.process()
	if p == nil {
		return x.id + ", which is down", nil
	}
	return x.id, quiet(p.disk.hang())
}

func (n *nemesis) handOver(rnd *rand.Rand) (string, func() error) {
	set := n.c.names[rnd.IntN(len(n.c.names))]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := n.c.router(rnd).OnMaster(ctx, set, func(ctx context.Context, s v1.StorageServiceClient) error {
		_, err := s.HandOver(ctx, &v1.HandOverRequest{})
		return err
	})
	return fmt.Sprintf("%s: %v", set, err), nil
}

// removeMember takes a member out of its replica set when all of that are well, and back in
// later.
func (n *nemesis) removeMember(rnd *rand.Rand) (string, func() error) {
	x := n.node(rnd)
	if !n.c.whole(x.set) {
		return notNow, nil
	}
	r := n.c.router(rnd)
	change := func(time time.Duration, do func(context.Context, v1.StorageServiceClient) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), time)
		defer cancel()
		return r.OnMaster(ctx, x.set, do)
	}
	err := change(5*time.Second, func(ctx context.Context, s v1.StorageServiceClient) error {
		_, err := s.RemoveMember(ctx, &v1.RemoveMemberRequest{Id: x.id})
		return err
	})
	return fmt.Sprintf("%s: %v", x.id, err), func() error {
		for deadline := time.Now().Add(startTime); ; {
			r = n.c.clients[0]
			err := change(5*time.Second, func(ctx context.Context, s v1.StorageServiceClient) error {
				_, err := s.AddMember(ctx, &v1.AddMemberRequest{Member: &v1.StorageMember{Id: x.id, Address: x.id + portSuffix, Voter: true}})
				return err
			})
			if err == nil || time.Now().After(deadline) {
				return err
			}
			pause(context.Background(), 50*time.Millisecond)
		}
	}
}

// move sends buckets from one replica set to another, all the time.
func (n *nemesis) move(ctx context.Context, rnd *rand.Rand) {
	for pause(ctx, time.Duration(rnd.IntN(100))*time.Millisecond) {
		r := n.c.router(rnd)
		to := n.c.names[rnd.IntN(len(n.c.names))]
		var list []shard.BucketID
		for range 1 + rnd.IntN(4) {
			b := shard.BucketID(1 + rnd.IntN(buckets))
			if at, err := r.Route(b); err == nil && at != to && !slices.Contains(list, b) {
				list = append(list, b)
			}
		}
		if len(list) == 0 {
			continue
		}
		try, cancel := context.WithTimeout(ctx, time.Duration(500+rnd.IntN(10_000))*time.Millisecond)
		failed, err := r.SendBuckets(try, list, to)
		cancel()
		n.mu.Lock()
		for _, b := range list {
			switch {
			case err != nil:
				n.failed[code(err)]++
			case failed[b] != nil:
				n.failed[code(failed[b])]++
			default:
				n.moved++
			}
		}
		n.mu.Unlock()
	}
}

func code(err error) string {
	var e *shard.Error
	if errors.As(err, &e) {
		return e.Code.String()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "no time"
	}
	return err.Error()
}

// report says what was done.
func (n *nemesis) report() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, n.counts[name]))
	}
	var errs []string
	for _, name := range slices.Sorted(maps.Keys(n.failed)) {
		errs = append(errs, fmt.Sprintf("%s %d", name, n.failed[name]))
	}
	return fmt.Sprintf("faults: %s\nbuckets moved: %d; not moved: %s", strings.Join(parts, ", "), n.moved, strings.Join(errs, ", "))
}
