// Package routing says where a partition is: which node owns it, and which partition of
// a queue a task or a poll should go to. It decides only: rings, counts, backlogs, time
// and randomness are handed in, and nothing here waits or calls.
//
// The owner of a partition follows from its key on the ring of matching nodes (Owner).
// Basic routing gives every partition a key of its own. Spread routing gives a batch of
// partitions one key and lays its members on successive nodes of the ring, so that the
// partitions of a queue lie evenly on the nodes. A Gradual setting moves the keys from
// one batch size to another over time, each at its own moment, the same on every node.
//
// A task goes to a partition by the random bits of its id; a poll goes where this client
// has the fewest. When the backlogs of all partitions are known, writes go in proportion
// to the room below a cap, and polls in proportion to the backlog. This is how Temporal's
// matching client chooses; keys, owners and moments are equal to its vectors.
package routing
