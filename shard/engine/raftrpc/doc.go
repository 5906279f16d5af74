// Package raftrpc carries the messages of a Raft group between its members over gRPC.
//
// A [Transport] is both ends: it is the raft.Transport of this member, and, registered
// on a gRPC server, what the other members call. Members are known by their ids; where
// an id is reachable is asked anew for each connection, so addresses may change.
//
// # Lanes
//
// There are two connections to each member: one for heartbeats and votes, which must
// never wait behind a megabyte of entries, and one for entries and snapshots. When
// heartbeats to a member time out, both are closed and dialled anew: after a network
// comes back, a new connection is up long before an old one has noticed.
//
// # Entries
//
// Entries travel over one stream per term and member, many requests under way and
// answered in order. What a member has applied, and Raft cannot look up there any more, is
// left out where it arrives. A member that cannot be reached is tried again and again, since
// Raft itself would pause for longer and longer. Requests and large entries are cut into messages of about half a
// megabyte. What is under way to one member is bounded in number and bytes.
//
// # Who may speak
//
// The first message of every stream and each single request carries the cluster id,
// the name of the replica set, and the ids of sender and receiver. What does not belong
// here is refused with FAILED_PRECONDITION. A member that lost its disk has no voice
// until it has caught up: it neither votes nor stands for election, because it no longer
// knows what it has promised.
package raftrpc
