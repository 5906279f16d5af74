package membership

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// Limits of facts. One fact fits a packet of gossip.
const (
	MaxFactKey   = 128
	MaxFactValue = 512
	MaxFacts     = 4096
)

// Fact is a small value that all nodes get.
type Fact struct {
	Key   string
	Value []byte // not to be changed; empty says that the fact holds no more
	// Version: the highest wins. What counts it up is up to those who publish under the
	// key, for example the term of a replica set's master.
	Version uint64
	// Node is who published it; of equal versions the greater name wins.
	Node string
}

// newer says whether f replaces old. It is a total order, so all nodes end with the same.
func (f Fact) newer(old Fact) bool {
	return cmp.Or(cmp.Compare(f.Version, old.Version), cmp.Compare(f.Node, old.Node), bytes.Compare(f.Value, old.Value)) > 0
}

func (f Fact) check() error {
	switch {
	case f.Key == "" || len(f.Key) > MaxFactKey:
		return fmt.Errorf("membership: the key of a fact has 1 to %d bytes, %.20q has %d", MaxFactKey, f.Key, len(f.Key))
	case len(f.Value) > MaxFactValue:
		return fmt.Errorf("membership: the value of fact %q has %d bytes, %d are allowed", f.Key, len(f.Value), MaxFactValue)
	case f.Node == "" || len(f.Node) > MaxName:
		return fmt.Errorf("membership: fact %q names no node", f.Key)
	}
	return nil
}

// facts are the newest of each key.
type facts map[string]Fact

// merge takes a fact in and says whether it was news.
func (t facts) merge(f Fact) (bool, error) {
	if err := f.check(); err != nil {
		return false, err
	}
	old, ok := t[f.Key]
	if ok && !f.newer(old) {
		return false, nil
	}
	if !ok && len(t) >= MaxFacts {
		return false, fmt.Errorf("membership: there are %d facts, which is the limit; %q is left out", len(t), f.Key)
	}
	t[f.Key] = f
	return true, nil
}

// all in the order of their keys.
func (t facts) all() []Fact {
	list := make([]Fact, 0, len(t))
	for _, f := range t {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Fact) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// factsVersion is the first byte of facts on the wire.
const factsVersion = 1

// appendFacts makes a message of facts; the cluster's id keeps those of others out.
func appendFacts(b []byte, cluster string, list ...Fact) []byte {
	b = appendString(append(b, factsVersion), cluster)
	for _, f := range list {
		b = appendString(b, f.Key)
		b = appendString(b, f.Value)
		b = binary.AppendUvarint(b, f.Version)
		b = appendString(b, f.Node)
	}
	return b
}

// readFacts reads a message of facts of a cluster. It keeps nothing of b.
func readFacts(b []byte, cluster string) ([]Fact, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != factsVersion {
		return nil, fmt.Errorf("membership: facts of version %d, this node knows %d", b[0], factsVersion)
	}
	r := reader{b: b[1:]}
	if from := string(r.bytes()); from != cluster {
		return nil, fmt.Errorf("membership: facts of cluster %.64q, this is %q", from, cluster)
	}
	var list []Fact
	for len(r.b) > 0 {
		f := Fact{Key: string(r.bytes()), Value: bytes.Clone(r.bytes()), Version: r.uvarint(), Node: string(r.bytes())}
		if r.bad {
			return nil, fmt.Errorf("membership: facts end in the middle")
		}
		list = append(list, f)
	}
	return list, nil
}
