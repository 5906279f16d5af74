package membership

import (
	"encoding/binary"
	"errors"
)

// metaVersion is the first byte of what gossip carries for a node. Later versions may add
// fields at the end, which older nodes leave out.
const metaVersion = 1

var errMeta = errors.New("membership: what the node tells of itself can't be read")

// appendMeta appends all of a node but its name.
func (n Node) appendMeta(b []byte) []byte {
	b = append(b, metaVersion, byte(n.Roles))
	b = binary.AppendUvarint(b, uint64(n.BucketCount))
	b = binary.AppendUvarint(b, uint64(n.Start))
	b = binary.AppendUvarint(b, uint64(n.Stop))
	for _, s := range [...]string{n.ClusterID, n.PublicAddress, n.InternalAddress, n.ReplicaSet, n.Member, n.Zone} {
		b = appendString(b, s)
	}
	return binary.AppendUvarint(b, uint64(n.Doubling))
}

// nodeOf is the reverse. Roles that are not known here are left out.
func nodeOf(name string, meta []byte) (Node, error) {
	n := Node{Name: name}
	if len(meta) < 2 || meta[0] < metaVersion {
		return Node{}, errMeta
	}
	n.Roles = Role(meta[1]) & (1<<roles - 1)
	r := reader{b: meta[2:]}
	count := r.uvarint()
	n.BucketCount = uint32(count)
	n.Start, n.Stop = int64(r.uvarint()), int64(r.uvarint())
	for _, s := range [...]*string{&n.ClusterID, &n.PublicAddress, &n.InternalAddress, &n.ReplicaSet, &n.Member, &n.Zone} {
		*s = string(r.bytes())
	}
	doubling := r.uvarint()
	n.Doubling = uint32(doubling)
	if r.bad || count != uint64(n.BucketCount) || doubling != uint64(n.Doubling) || n.check() != nil {
		return Node{}, errMeta
	}
	return n, nil
}

func appendString[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// reader reads fields until one is bad.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes returns a part of what is read.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}
