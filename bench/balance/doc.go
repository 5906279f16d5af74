// Package balance compares Switchyard's load balancing with what Go programs use
// otherwise: the policies of grpc-go, go-zero's p2c_ewma and kratos' p2c.
//
// The peers' own code runs, through grpc-go's registry of balancers or their own
// selectors. The benchmarks measure one pick with its completion:
//
//	go test -bench . -cpu 1,2 -benchmem
//
// TestTail puts them into the simulated world of `switchyard simulate balance`, with
// testing/synctest as their clock.
package balance
