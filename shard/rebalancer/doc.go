// Package rebalancer spreads buckets over replica sets in proportion to their weights.
//
// # The core
//
// Perfect says how many buckets each replica set should have, Imbalance how far they are from it,
// MakePlan which buckets go where so that the fewest move, and a schedule which of them go now, within
// the limits. None of it asks anybody or looks at a clock.
//
// # The shell
//
// A Rebalancer runs on every node that has a storage, and works on one: the master of the replica set
// with the smallest name among all that are known. Nobody chooses it, and nobody configures it. It
// acts only when every replica set that it knows has answered, and together they own every bucket.
//
// # Two at once
//
// For a moment there can be two: a master that does not know yet that it is none, or two replica sets
// that do not know of each other yet. They cannot do harm. A move is safe whoever asks for it, and a
// bucket that is moving already is refused. A destination counts what it receives, whoever sends it.
// And a rebalancer that sees moves under way that are not its own waits for their end. The worst is a
// bucket that moves once more than necessary.
package rebalancer
