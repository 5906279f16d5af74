package ring

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/dgryski/go-farm"
)

// PointsPerServer is how many points each server has on the circle.
const PointsPerServer = 100

// Ring is an immutable set of servers on the circle. The zero value has none. All methods
// may be called from any goroutine.
type Ring struct {
	servers []string // in order of their names, each once
	points  []point  // in order
}

// point is a place on the circle where a server begins to be looked up.
type point struct {
	hash   uint32
	server int32 // index into servers
}

// New makes a ring of the servers, given in any order; one that stands twice counts once.
// A name is usually an address. The slice is not kept.
func New(servers []string) *Ring {
	r := &Ring{servers: slices.Compact(slices.Sorted(slices.Values(servers)))}
	r.points = make([]point, 0, len(r.servers)*PointsPerServer)
	var text []byte
	for i, s := range r.servers {
		text = append(text[:0], s...)
		for p := range PointsPerServer {
			text = strconv.AppendInt(text[:len(s)], int64(p), 10)
			r.points = append(r.points, point{farm.Hash32(text), int32(i)})
		}
	}
	// Servers are in the order of their names, so equal hashes come in that order too.
	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.server, b.server))
	})
	return r
}

// Len returns the number of servers.
func (r *Ring) Len() int { return len(r.servers) }

// Servers returns the servers in the order of their names. The slice must not be changed.
func (r *Ring) Servers() []string { return r.servers }

// Lookup returns the server of a key, and false when there are no servers. It does not
// allocate.
func (r *Ring) Lookup(key []byte) (server string, ok bool) {
	if len(r.points) == 0 {
		return "", false
	}
	return r.servers[r.points[r.first(key)].server], true
}

// LookupN appends to out the first n distinct servers for a key, or all servers when
// there are fewer, in the order in which they follow the key on the circle. The first is
// that of Lookup. With room in out it does not allocate.
func (r *Ring) LookupN(key []byte, n int, out []string) []string {
	n = min(n, len(r.servers))
	if n <= 0 {
		return out
	}
	begin := len(out)
	for i := r.first(key); len(out)-begin < n; i++ {
		s := r.servers[r.points[i%len(r.points)].server]
		if !slices.Contains(out[begin:], s) {
			out = append(out, s)
		}
	}
	return out
}

// first is the index of the point that a key belongs to.
func (r *Ring) first(key []byte) int {
	i, _ := slices.BinarySearchFunc(r.points, Fingerprint32(key), func(p point, h uint32) int {
		return cmp.Compare(p.hash, h)
	})
	return i % len(r.points)
}

// Fingerprint32 is the hash of the ring, FarmHash's Fingerprint32, which is its Hash32. (The
// library's function of that name is in assembly and makes its argument escape.)
func Fingerprint32(key []byte) uint32 { return farm.Hash32(key) }
