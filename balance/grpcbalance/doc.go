// Package grpcbalance makes the policies of package balance available to
// grpc-go. Import it, and name a policy in the service config:
//
//	import "github.com/switchyard-dev/switchyard/balance/grpcbalance"
//
//	conn, err := grpc.NewClient("dns:///backend.example:443",
//		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"switchyard_p2c_peak_ewma":{}}]}`), …)
//
// The policies are
//
//	switchyard_p2c_least_loaded   two choices, fewest outstanding requests
//	switchyard_p2c_peak_ewma      two choices, lowest recent latency
//	switchyard_aperture           a part of the endpoints, fewest outstanding requests
//	switchyard_aperture_peak_ewma a part of the endpoints, lowest recent latency
//	switchyard_heap               the endpoint with the fewest outstanding requests of all
//	switchyard_round_robin        in turns
//
// They work with any resolver. Each has one connection to each endpoint, or, the
// aperture, to those in use. Endpoints that fail are left alone for a while and
// probed; see the field failureAccrual of [Options]. Requests that are under way
// on an endpoint when the resolver drops it end in peace.
//
// Together with package retry/grpcretry, a request that is sent again goes to
// another endpoint, and what was never written is known to be safe to repeat.
package grpcbalance
