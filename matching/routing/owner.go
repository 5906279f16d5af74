package routing

import (
	"errors"
	"strconv"

	"github.com/switchyard-dev/switchyard/membership/ring"
)

// TaskType is the type of a queue of tasks, as it stands in keys.
const TaskType = "task"

// MaxBatchSize is the largest batch of spread routing.
const MaxBatchSize = 1024

// Partition is what is to be placed on the ring.
type Partition struct {
	Namespace, Queue string
	// Type is the queue's type; empty is TaskType.
	Type string
	// Number is 0 for the root.
	Number int32
	// Sticky is the worker whose own queue this is; then Queue and Number do not matter,
	// and neither does the batch size.
	Sticky string
}

// AppendKey appends the partition's key on the ring to dst and returns it with the index
// among the key's nodes. batch is the size of the batches of spread routing, 0 for basic
// routing. With room in dst it does not allocate.
func (p Partition) AppendKey(dst []byte, batch int) (key []byte, index int) {
	dst = append(append(dst, p.Namespace...), ':')
	switch {
	case p.Sticky != "":
		dst = append(dst, p.Sticky...)
	case batch <= 0 && p.Number > 0:
		dst = append(append(dst, "/_sys/"...), p.Queue...)
		dst = strconv.AppendInt(append(dst, '/'), int64(p.Number), 10)
	case batch <= 0:
		dst = append(dst, p.Queue...)
	default:
		dst = append(dst, p.Queue...)
		if b := p.Number / int32(batch); b > 0 {
			dst = strconv.AppendInt(append(dst, ':'), int64(b), 10)
		}
		index = int(p.Number) % batch
	}
	dst = append(dst, ':')
	if p.Type == "" {
		return append(dst, TaskType...), index
	}
	return append(dst, p.Type...), index
}

// gradualKey is the key whose moment decides when the partition changes to a new batch
// size: that of basic routing, so that the partitions of a queue do not all move at once.
func (p Partition) gradualKey(dst []byte) []byte {
	key, _ := p.AppendKey(dst, 0)
	return key
}

// Owner returns the node that owns a partition. Spread over fewer nodes than a batch has
// members, the members begin again at the first. Without nodes the error is
// ErrNoNodes.
func Owner(r *ring.Ring, p Partition, batch int) (string, error) {
	var room [256]byte
	key, index := p.AppendKey(room[:0], min(batch, MaxBatchSize))
	if index == 0 {
		if node, ok := r.Lookup(key); ok {
			return node, nil
		}
		return "", ErrNoNodes
	}
	var nodes [64]string
	found := r.LookupN(key, index+1, nodes[:0])
	if len(found) == 0 {
		return "", ErrNoNodes
	}
	return found[index%len(found)], nil
}

// ErrNoNodes says that a ring has no nodes, so that nobody can own anything.
var ErrNoNodes = errors.New("no matching node is known at the moment")
