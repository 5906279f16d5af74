package matching

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/switchyard-dev/switchyard/shard"
)

// PartitionID names one partition of a queue. Number 0 is the root.
type PartitionID struct {
	Namespace string
	Queue     string
	Number    int32
	// Sticky is the worker whose own queue this is, empty for a normal partition.
	// A sticky queue has one partition, number 0, and no place in the tree.
	Sticky string
}

// Key is the partition's sharding key: "namespace:queue:task" for the root, with
// "/number" behind it for the others, and with "@worker" for a sticky queue. Names
// can't contain a colon, so keys never collide.
func (p PartitionID) Key() string {
	var b strings.Builder
	b.Grow(len(p.Namespace) + len(p.Queue) + len(p.Sticky) + 12)
	b.WriteString(p.Namespace)
	b.WriteByte(':')
	b.WriteString(p.Queue)
	b.WriteString(":task")
	switch {
	case p.Sticky != "":
		b.WriteByte('@')
		b.WriteString(p.Sticky)
	case p.Number != 0:
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(int(p.Number)))
	}
	return b.String()
}

// isRoot says whether it is the root of a tree.
func (p PartitionID) isRoot() bool { return p.Number == 0 && p.Sticky == "" }

// parent is the partition to which this one forwards, if it has one.
func (p PartitionID) parent() (PartitionID, bool) {
	n, ok := Parent(p.Number)
	if !ok || p.Sticky != "" {
		return PartitionID{}, false
	}
	p.Number = n
	return p, true
}

// sibling is another partition of the same queue.
func (p PartitionID) sibling(n int32) PartitionID {
	return PartitionID{Namespace: p.Namespace, Queue: p.Queue, Number: n}
}

// Hash is the 32-bit hash of the key; it decides the bucket.
func (p PartitionID) Hash() uint32 { return shard.MPCRC32String(p.Key()) }

func (p PartitionID) String() string {
	if p.Sticky != "" {
		return fmt.Sprintf("%s/%s@%s", p.Namespace, p.Queue, p.Sticky)
	}
	return fmt.Sprintf("%s/%s/%d", p.Namespace, p.Queue, p.Number)
}

// queueKey is the key of a queue's row; all queues of a namespace lie in the
// bucket of the namespace, so listing them is one scan.
func queueKey(namespace, queue string) []byte {
	b := make([]byte, 0, len(namespace)+1+len(queue))
	b = append(b, namespace...)
	b = append(b, 0)
	return append(b, queue...)
}

// namespaceHash decides the bucket of a namespace's queue rows.
func namespaceHash(namespace string) uint32 { return shard.MPCRC32String(namespace) }
