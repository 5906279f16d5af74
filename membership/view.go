package membership

import (
	"cmp"
	"slices"
	"time"
)

// View is what a node knows of the cluster at one moment. It never changes. Slices that
// it returns must not be changed.
type View struct {
	nodes  []Node // by name
	acting [1 << roles][]Node
	// edge is the next second at which a node begins or ends to act, 0 for none.
	edge int64
}

func newView(nodes []Node, now time.Time) *View {
	v := &View{nodes: nodes}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		for _, edge := range [...]int64{n.Start, n.Stop} {
			if edge > now.Unix() && (v.edge == 0 || edge < v.edge) {
				v.edge = edge
			}
		}
		if !n.Acts(now) {
			continue
		}
		for r := range v.acting {
			if n.Roles.Has(Role(r)) {
				v.acting[r] = append(v.acting[r], n)
			}
		}
	}
	return v
}

// Nodes returns all nodes that are alive, in the order of their names, those that do not
// act yet, or no more, among them.
func (v *View) Nodes() []Node { return v.nodes }

// Acting returns the nodes that act in all of the roles, in the order of their names. With
// no role it returns all that act.
func (v *View) Acting(r Role) []Node {
	if int(r) >= len(v.acting) {
		return nil
	}
	return v.acting[r]
}

// Node returns the node of a name if it is alive.
func (v *View) Node(name string) (Node, bool) {
	i, ok := slices.BinarySearchFunc(v.nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return Node{}, false
	}
	return v.nodes[i], true
}
