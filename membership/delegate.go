package membership

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// What memberlist calls. It holds its own lock meanwhile, so nothing here may call it.
var (
	_ memberlist.Delegate         = (*gossip)(nil)
	_ memberlist.EventDelegate    = (*gossip)(nil)
	_ memberlist.AliveDelegate    = (*gossip)(nil)
	_ memberlist.MergeDelegate    = (*gossip)(nil)
	_ memberlist.ConflictDelegate = (*gossip)(nil)
)

// NodeMeta implements memberlist.Delegate.
func (g *gossip) NodeMeta(limit int) []byte {
	meta := g.m.Self().appendMeta(nil)
	if len(meta) > limit {
		panic(fmt.Sprintf("membership: the node's meta takes %d bytes of %d", len(meta), limit)) // Node.check bounds it
	}
	return meta
}

// NotifyMsg implements memberlist.Delegate.
func (g *gossip) NotifyMsg(msg []byte) { g.take(msg) }

// MergeRemoteState implements memberlist.Delegate.
func (g *gossip) MergeRemoteState(state []byte, _ bool) { g.take(state) }

func (g *gossip) take(msg []byte) {
	list, err := readFacts(msg, g.m.Self().ClusterID)
	if err == nil {
		err = g.m.learn(list...)
	}
	if err != nil {
		g.m.log.Warn("cluster: facts of another node were left out", "err", err)
	}
}

// LocalState implements memberlist.Delegate.
func (g *gossip) LocalState(bool) []byte {
	return appendFacts(nil, g.m.Self().ClusterID, g.m.Facts()...)
}

// GetBroadcasts implements memberlist.Delegate.
func (g *gossip) GetBroadcasts(overhead, limit int) [][]byte {
	return g.queue.GetBroadcasts(overhead, limit)
}

// spread passes a fact on. What does not get through travels with the next exchange of
// everything.
func (g *gossip) spread(f Fact) {
	g.queue.QueueBroadcast(news{f.Key, appendFacts(nil, g.m.Self().ClusterID, f)})
}

// news is a fact on its way; a newer one of its key takes its place.
type news struct {
	key string
	msg []byte
}

func (n news) Name() string    { return n.key }
func (n news) Message() []byte { return n.msg }
func (n news) Finished()       {}
func (n news) Invalidates(other memberlist.Broadcast) bool {
	o, ok := other.(news)
	return ok && o.key == n.key
}

// NotifyJoin implements memberlist.EventDelegate.
func (g *gossip) NotifyJoin(peer *memberlist.Node) { g.NotifyUpdate(peer) }

// NotifyUpdate implements memberlist.EventDelegate.
func (g *gossip) NotifyUpdate(peer *memberlist.Node) {
	n, err := nodeOf(peer.Name, peer.Meta)
	if err != nil {
		g.m.log.Error("cluster: a node tells nonsense of itself", "node", peer.Name, "err", err) // NotifyAlive refuses it
		return
	}
	g.came(peer.Name, peer.Address())
	g.m.set(n)
}

// NotifyLeave implements memberlist.EventDelegate.
func (g *gossip) NotifyLeave(peer *memberlist.Node) {
	// The library does not say here whether it left or was found dead; one that leaves has
	// told its stop before.
	n, known := g.m.remove(peer.Name)
	g.went(peer.Name, peer.Address(), known && n.Stop != 0, time.Now())
}

// NotifyAlive implements memberlist.AliveDelegate: it keeps out whom NotifyMerge did not
// see.
func (g *gossip) NotifyAlive(peer *memberlist.Node) error {
	if err := g.check(peer); err != nil {
		g.refused(err)
		return err
	}
	return nil
}

// NotifyMerge implements memberlist.MergeDelegate: with one node that does not fit,
// nothing is taken over.
func (g *gossip) NotifyMerge(peers []*memberlist.Node) error {
	// Whether a bucket_count is being doubled may be said by any of them.
	g.m.mu.Lock()
	for _, p := range peers {
		if n, err := nodeOf(p.Name, p.Meta); err == nil {
			g.m.seeDoubling(n)
		}
	}
	g.m.mu.Unlock()
	for _, p := range peers {
		err := g.check(p)
		if err == nil && (p.State == memberlist.StateAlive || p.State == memberlist.StateSuspect) {
			err = g.checkName(p)
		}
		if err != nil {
			g.refused(err)
			return err
		}
	}
	return nil
}

// check says why a node can't be of this cluster.
func (g *gossip) check(peer *memberlist.Node) error {
	n, err := nodeOf(peer.Name, peer.Meta)
	if err != nil {
		return &RefusedError{Node: peer.Name, Cause: Unreadable, text: fmt.Sprintf(
			"node %.64q at %s is not one of Switchyard's, or of a version that this one can't read", peer.Name, peer.Address())}
	}
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	g.m.seeDoubling(n)
	if n.Name == g.m.self.Name && n.ClusterID == g.m.self.ClusterID {
		return nil // an older version of itself, or a namesake, which has its own check
	}
	return g.m.refuses(n)
}

// checkName finds a namesake of this node.
func (g *gossip) checkName(peer *memberlist.Node) error {
	if peer.Name == g.m.Self().Name && peer.Address() != g.self {
		return &RefusedError{Node: peer.Name, Cause: NameTaken, text: fmt.Sprintf(
			"there is a node %q at %s already, and this one is at %s", peer.Name, peer.Address(), g.self)}
	}
	return nil
}

// NotifyConflict implements memberlist.ConflictDelegate.
func (g *gossip) NotifyConflict(existing, other *memberlist.Node) {
	err := &RefusedError{Node: other.Name, Cause: NameTaken, text: fmt.Sprintf(
		"there is a node %q at %s already, and another one at %s", existing.Name, existing.Address(), other.Address())}
	g.refused(err)
}

// refused remembers a refusal and logs it, once while nothing else is refused.
func (g *gossip) refused(err error) {
	r, ok := err.(*RefusedError)
	if !ok {
		return
	}
	g.mu.Lock()
	news := g.refusal == nil || g.refusal.text != r.text
	g.refusal = r
	g.mu.Unlock()
	if news {
		g.m.log.Error("cluster: a node was refused", "node", r.Node, "cause", string(r.Cause), "err", r)
	}
}

// logWriter hands memberlist's lines to slog. It warns of much that is normal while nodes
// come and go.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelDebug
	if rest, ok := strings.CutPrefix(text, "[ERR] "); ok {
		level, text = slog.LevelWarn, rest
	} else if i := strings.Index(text, "] "); i > 0 && text[0] == '[' {
		text = text[i+2:]
	}
	w.log.Log(context.Background(), level, "gossip: "+strings.TrimPrefix(text, "memberlist: "))
	return len(line), nil
}
