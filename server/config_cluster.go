package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/membership"
)

// Ports of a node of a cluster for other nodes.
const (
	// DefaultClusterListen is where a node listens for gRPC of other nodes.
	DefaultClusterListen = "127.0.0.1:7481"
	// DefaultGossip is where it listens for gossip.
	DefaultGossip = "127.0.0.1:7482"
)

// NodeConfig says which node this is.
type NodeConfig struct {
	// Name is unique in the cluster and stays the same; it is the id of the node's member of
	// its replica set. Required in a cluster.
	Name string `yaml:"name"`
	// Zone is where the node stands; replicas in the same zone answer first.
	Zone string `yaml:"zone"`
}

// ClusterConfig makes a node part of a cluster.
type ClusterConfig struct {
	// ID is the name of the cluster, the same on all of its nodes. Empty: the node is by
	// itself, and the other settings of the cluster are not used.
	ID string `yaml:"id"`
	// Listen is the address for gRPC of other nodes, "host:port", and Advertise where they
	// reach it if that is not Listen.
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise"`
	// Gossip is the address for gossip, over UDP and TCP, "ip:port", and GossipAdvertise
	// where others reach it if that is not Gossip.
	Gossip          string `yaml:"gossip"`
	GossipAdvertise string `yaml:"gossip_advertise"`
	// Seeds are addresses for gossip of some nodes of the cluster; this one may be among them.
	Seeds []string `yaml:"seeds"`
	// Secret, if not empty, encrypts and authenticates gossip; all nodes have the same.
	Secret string `yaml:"secret"`
	// ReplicaSet is the replica set of a node with the role storage.
	ReplicaSet string `yaml:"replica_set"`
	// TLS is for gRPC between nodes. Without, it is in the clear.
	TLS TLSConfig `yaml:"tls"`
	// AlignChanges is how far ahead a node announces the second from which on it takes part,
	// or does no more, so that all nodes see the change at once. 0: at once.
	AlignChanges time.Duration `yaml:"align_changes"`
	// Detection is about how long it takes until a node that vanished is taken to be dead.
	Detection time.Duration `yaml:"detection"`
}

// TLSConfig is mutual TLS: three PEM files, all or none. A certificate that is replaced is
// used for the next connection.
type TLSConfig struct {
	// Cert and Key are the node's own certificate, for both directions.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// CA has the certificates that sign those of the nodes.
	CA string `yaml:"ca"`
}

// RebalancerConfig spreads the buckets over the replica sets.
type RebalancerConfig struct {
	// Threshold is the imbalance, in percent, at which buckets begin to move.
	Threshold float64 `yaml:"threshold"`
	// MaxSending and MaxReceiving are how many buckets a replica set sends and receives at
	// once, and MaxSendingBytes the size of those that it sends.
	MaxSending      int   `yaml:"max_sending"`
	MaxReceiving    int   `yaml:"max_receiving"`
	MaxSendingBytes int64 `yaml:"max_sending_bytes"`
	// BusyShare is the share of the time that moves may take while their source serves calls, above 0
	// and up to 1.
	BusyShare float64 `yaml:"busy_share"`
}

// SpreadConfig is spread routing: partitions of a queue on successive nodes. A change of the
// size can be made slowly, each queue at its own moment, the same on all nodes.
type SpreadConfig struct {
	// Size is how many partitions are laid on successive nodes, 0 for none.
	Size int `yaml:"size"`
	// From is what Size was; used when Start and End say when the change is made, in the form
	// of RFC 3339.
	From  int    `yaml:"from"`
	Start string `yaml:"start"`
	End   string `yaml:"end"`
}

// gradual returns the size as it changes.
func (c SpreadConfig) gradual() (routing.Gradual[int], error) {
	for _, n := range []int{c.Size, c.From} {
		if n < 0 || n > routing.MaxBatchSize {
			return routing.Gradual[int]{}, fmt.Errorf("size and from: %d is not between 0 and %d", n, routing.MaxBatchSize)
		}
	}
	if c.Start == "" && c.End == "" {
		return routing.Fixed(c.Size), nil
	}
	g := routing.Gradual[int]{Old: c.From, New: c.Size}
	for _, t := range []struct {
		name, text string
		to         *time.Time
	}{{"start", c.Start, &g.Start}, {"end", c.End, &g.End}} {
		at, err := time.Parse(time.RFC3339, t.text)
		if err != nil {
			return g, fmt.Errorf("%s: %q is not a time such as 2026-01-02T15:04:05Z", t.name, t.text)
		}
		*t.to = at
	}
	if g.End.Before(g.Start) {
		return g, errors.New("end: it is before start")
	}
	return g, nil
}

// clustered says that the node is part of a cluster.
func (c Config) clustered() bool { return c.Cluster.ID != "" }

// has says that the node has a role.
func (c Config) has(role string) bool { return slices.Contains(c.Roles, role) }

// roles are the node's roles as the membership tells them.
func (c Config) roles() (r membership.Role) {
	for name, bit := range map[string]membership.Role{
		RoleFrontend: membership.Frontend, RoleMatching: membership.Matching, RoleStorage: membership.Storage,
	} {
		if c.has(name) {
			r |= bit
		}
	}
	return r
}

// validateCluster checks what makes a node part of a cluster, or keeps it by itself.
func (c Config) validateCluster() error {
	if _, err := c.Matching.Spread.gradual(); err != nil {
		return fmt.Errorf("matching.spread.%w", err)
	}
	if r := c.Rebalancer; !(r.Threshold > 0) || r.MaxSending < 1 || r.MaxReceiving < 1 || r.MaxSendingBytes < 1 || !(r.BusyShare > 0 && r.BusyShare <= 1) {
		return errors.New("rebalancer: threshold must be greater than 0, max_sending, max_receiving and max_sending_bytes must be at least 1, and busy_share above 0 and at most 1")
	}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return fmt.Errorf("advertise: %q is not host:port: %w", c.Advertise, err)
		}
	}
	if !c.clustered() {
		for _, r := range []string{RoleFrontend, RoleMatching, RoleStorage} {
			if !c.has(r) {
				return fmt.Errorf("roles: %s is missing; a node by itself, without cluster.id, runs frontend, matching and storage", r)
			}
		}
		return nil
	}
	cl := c.Cluster
	if len(c.Roles) == 0 {
		return errors.New("roles: none is given")
	}
	for _, n := range []struct {
		name, value string
		needed      bool
		limit       int
	}{
		{"cluster.id", cl.ID, true, membership.MaxClusterID},
		{"node.name", c.Node.Name, true, membership.MaxName},
		{"node.zone", c.Node.Zone, false, membership.MaxName},
		{"cluster.replica_set", cl.ReplicaSet, c.has(RoleStorage), membership.MaxName},
	} {
		if n.needed && n.value == "" {
			return fmt.Errorf("%s: it is empty; a node of a cluster needs it", n.name)
		}
		if len(n.value) > n.limit {
			return fmt.Errorf("%s: it has %d bytes, %d are allowed", n.name, len(n.value), n.limit)
		}
		if i := strings.IndexFunc(n.value, notInName); i >= 0 {
			return fmt.Errorf("%s: %q has the character %q; letters, digits and . _ - are allowed", n.name, n.value, n.value[i:i+1])
		}
	}
	for _, a := range []struct {
		name, value string
		ip, needed  bool
	}{
		{"cluster.listen", cl.Listen, false, true}, {"cluster.advertise", cl.Advertise, false, false},
		{"cluster.gossip", cl.Gossip, true, true}, {"cluster.gossip_advertise", cl.GossipAdvertise, true, false},
	} {
		if a.value == "" && !a.needed {
			continue
		}
		host, _, err := net.SplitHostPort(a.value)
		if err != nil {
			return fmt.Errorf("%s: %q is not host:port: %w", a.name, a.value, err)
		}
		if _, err := netip.ParseAddr(host); a.ip && err != nil {
			return fmt.Errorf("%s: the host of %q is not an IP address", a.name, a.value)
		}
		if len(a.value) > membership.MaxAddress {
			return fmt.Errorf("%s: it has %d bytes, %d are allowed", a.name, len(a.value), membership.MaxAddress)
		}
	}
	if cl.Advertise == "" && anyHost(cl.Listen) {
		return fmt.Errorf("cluster.advertise: it is needed, as other nodes cannot reach %q", cl.Listen)
	}
	if cl.GossipAdvertise == "" && anyHost(cl.Gossip) {
		return fmt.Errorf("cluster.gossip_advertise: it is needed, as other nodes cannot reach %q", cl.Gossip)
	}
	for _, s := range cl.Seeds {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("cluster.seeds: %q is not host:port: %w", s, err)
		}
	}
	if n := len(cl.Secret); n > 0 && n < membership.MinSecret {
		return fmt.Errorf("cluster.secret: it has %d bytes and needs at least %d", n, membership.MinSecret)
	}
	if t := cl.TLS; t != (TLSConfig{}) && (t.Cert == "" || t.Key == "" || t.CA == "") {
		return errors.New("cluster.tls: cert, key and ca belong together; one of them is empty")
	}
	if cl.AlignChanges < 0 || cl.AlignChanges > time.Minute {
		return fmt.Errorf("cluster.align_changes: it is %v and must be between 0 and 1m", cl.AlignChanges)
	}
	if cl.Detection < 100*time.Millisecond || cl.Detection > time.Minute {
		return fmt.Errorf("cluster.detection: it is %v and must be between 100ms and 1m", cl.Detection)
	}
	return nil
}

func notInName(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		return false
	}
	return true
}

// anyHost says that an address stands for all addresses of the machine.
func anyHost(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}
