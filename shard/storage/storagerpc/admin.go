package storagerpc

// Rebalancer is what a server needs of its node's rebalancer.
type Rebalancer interface{}
