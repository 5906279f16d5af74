package balance

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
)

// Status says whether requests should go to an endpoint, or to a balancer.
// Higher is better.
type Status uint8

const (
	// Closed means never again.
	Closed Status = iota
	// Busy means not now: a breaker is open, the endpoint is being probed, or its
	// connection is down.
	Busy
	// Open means ready.
	Open
)

func (s Status) String() string {
	switch s {
	case Open:
		return "open"
	case Busy:
		return "busy"
	}
	return "closed"
}

// Endpoint is one server address as the caller knows it. Address and Replica
// together are its identity: an endpoint with the same identity in the next
// Update keeps its load and its history.
type Endpoint struct {
	// Address names the endpoint, for example "10.0.0.1:443". Not empty.
	Address string
	// Replica tells apart several connections to one address: list the address
	// with replicas 0, 1, 2 … to have it several times.
	Replica int
	// Weight is the share of requests in relation to the other endpoints. 0 means
	// 1, so that it need not be set; below 0, NaN and infinite are errors. An
	// endpoint that should get nothing is left out of the set.
	Weight float64
	// Value is the caller's own, for example the connection; see Node.Value. The
	// value of an endpoint that is already in the set is not replaced.
	Value any
}

type identity struct {
	address string
	replica int
}

func (e Endpoint) id() identity { return identity{e.Address, e.Replica} }

func (e Endpoint) String() string {
	if e.Replica == 0 {
		return e.Address
	}
	return fmt.Sprintf("%s (replica %d)", e.Address, e.Replica)
}

// The errors of Pick. They are always these very values.
var (
	// ErrNoEndpoints: the set is empty. Whoever knows where endpoints come from
	// decides whether to wait.
	ErrNoEndpoints = errors.New("balance: no endpoints: the set is empty")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("balance: the balancer is closed")
)

// checkEndpoints returns an error that names the first bad endpoint.
func checkEndpoints(endpoints []Endpoint) error {
	seen := make(map[identity]struct{}, len(endpoints))
	for i, e := range endpoints {
		switch {
		case e.Address == "":
			return fmt.Errorf("balance: endpoint %d has an empty address", i)
		case !(e.Weight >= 0) || math.IsInf(e.Weight, 0):
			return fmt.Errorf("balance: endpoint %s has weight %v; it must be a number above 0 (0 counts as 1)", e, e.Weight)
		}
		if _, ok := seen[e.id()]; ok {
			return fmt.Errorf("balance: endpoint %s is listed twice; use Deduplicate, or Replica for several connections to one address", e)
		}
		seen[e.id()] = struct{}{}
	}
	return nil
}

// Deduplicate returns the endpoints without those whose identity came before.
func Deduplicate(endpoints []Endpoint) []Endpoint {
	seen := make(map[identity]struct{}, len(endpoints))
	out := make([]Endpoint, 0, len(endpoints))
	for _, e := range endpoints {
		if _, ok := seen[e.id()]; !ok {
			seen[e.id()] = struct{}{}
			out = append(out, e)
		}
	}
	return out
}

// Sort puts the endpoints into an order that is the same in every process and
// unrelated to how addresses were assigned. Deterministic aperture relies on a
// common order and sorts by itself.
func Sort(endpoints []Endpoint) {
	slices.SortFunc(endpoints, func(a, b Endpoint) int { return compareIdentity(a.id(), b.id()) })
}

func compareIdentity(a, b identity) int {
	ha, hb := addressHash(a.address), addressHash(b.address)
	switch {
	case ha != hb && ha < hb:
		return -1
	case ha != hb:
		return 1
	case a.address != b.address:
		return strings.Compare(a.address, b.address)
	}
	return a.replica - b.replica
}

// addressHash spreads similar addresses; FNV alone leaves neighbours close.
func addressHash(address string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(address))
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
