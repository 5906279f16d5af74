package grpcbalance

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/resolver"

	"github.com/switchyard-dev/switchyard/balance"
)

type weightKey struct{}

// WithWeight returns the endpoint with a weight, for resolvers: an endpoint of
// weight 2 gets twice as many requests as one of weight 1, which is the default.
func WithWeight(e resolver.Endpoint, weight float64) resolver.Endpoint {
	e.Attributes = e.Attributes.WithValue(weightKey{}, weight)
	return e
}

// weightOf finds an endpoint's weight. What is no use as a weight is reported and
// counts as 1: one bad address must not take the whole set away.
func weightOf(e resolver.Endpoint) float64 {
	w, ok := e.Attributes.Value(weightKey{}).(float64)
	if !ok {
		return 1
	}
	if !(w > 0) || w > 1e12 {
		logger.Warningf("endpoint %s has weight %v, which is not a number above 0; taken as 1", keyOf(e), w)
		return 1
	}
	return w
}

// keyOf is an endpoint's identity: its addresses, with the server name where the
// resolver gives one.
func keyOf(e resolver.Endpoint) string {
	if len(e.Addresses) == 1 && e.Addresses[0].ServerName == "" {
		return e.Addresses[0].Addr
	}
	parts := make([]string, len(e.Addresses))
	for i, a := range e.Addresses {
		parts[i] = a.Addr
		if a.ServerName != "" {
			parts[i] += "@" + a.ServerName
		}
	}
	return strings.Join(parts, ",")
}

// endpointsOf returns the resolver's endpoints, once each, without those that
// have no address.
func endpointsOf(s resolver.State) []resolver.Endpoint {
	list := s.Endpoints
	if list == nil {
		for _, a := range s.Addresses {
			list = append(list, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
	}
	seen := make(map[string]bool, len(list))
	out := make([]resolver.Endpoint, 0, len(list))
	for _, e := range list {
		if key := keyOf(e); key != "" && !seen[key] {
			seen[key] = true
			out = append(out, e)
		}
	}
	return out
}

// process holds what all balancers of the process share.
var process struct {
	mu       sync.Mutex
	peer     balance.Peer
	lbs      map[*lb]bool
	registry balance.Registry
}

// Registry lists the balancers of all gRPC connections of the process, for
// metrics and status pages.
func Registry() *balance.Registry { return &process.registry }

// SetPeer tells all aperture balancers of the process, now and later, this
// client's place among the clients of the same servers, so that they use the
// deterministic aperture. IDs are 0 … Total-1, each used by one client. The zero
// Peer takes it back. A peer in a service config goes before.
func SetPeer(p balance.Peer) error {
	probe := balance.Config{Policy: balance.Aperture{Peer: p}}
	if err := probe.Check(); err != nil {
		return err
	}
	process.mu.Lock()
	process.peer = p
	lbs := slices.Collect(maps.Keys(process.lbs))
	process.mu.Unlock()
	// Each has taken the old peer already, and gets the new one now, or will take
	// the new one.
	for _, b := range lbs {
		b.setPeer(p)
	}
	return nil
}

func (b *lb) register() {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.lbs == nil {
		process.lbs = map[*lb]bool{}
	}
	process.lbs[b] = true
}

func (b *lb) unregister() {
	process.mu.Lock()
	defer process.mu.Unlock()
	delete(process.lbs, b)
}
