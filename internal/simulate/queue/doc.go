// Package queue runs queues of a large cluster in virtual time, to show what the
// decisions about partitions come to: where they lie on a thousand nodes and how many
// move when a node is lost (Spread), how a backlog is worked off (Drain), and how a
// queue's number of partitions follows a day's load (Day).
//
// What decides here is what decides in a node: the ring, matching/routing,
// matching/scaling and the core of a partition. Only time, the store and the way
// between nodes are simulated. The same seed gives the same result.
package queue
