// Package direct lets a process that adds tasks or works them off talk to the matching nodes
// of a cluster itself, without the hop over a frontend: it has a frontend of its own inside,
// which checks requests, chooses partitions by the queue's counts and backlogs, and calls
// the node that owns each.
//
//	conn, err := direct.New(direct.Options{
//		Nodes:       []direct.Node{{Name: "a", Address: "10.0.0.1:7481"}, {Name: "b", Address: "10.0.0.2:7481"}},
//		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(mutual))},
//	})
//	client, err := switchyard.Dial("10.0.0.1:7480", switchyard.WithDirect(conn))
//
// Tasks and calls then go directly; queues are created and looked after over the address that
// is dialled. A queue must exist.
//
// It needs what a node has, so it is for processes that are trusted like one: the internal
// ports (cluster.listen) must be reachable, with cluster.tls a certificate of the cluster's
// authority is needed, and the node names, addresses and the batch size of spread routing
// must be those of the cluster. A list of nodes that is out of date costs retries, and is
// replaced by SetNodes; a process that takes part in the cluster's gossip hands in its own
// matching/peers instead, and is never out of date. Limits are those that the process is
// given, not those of the cluster's frontends.
package direct
