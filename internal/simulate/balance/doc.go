// Package balance runs clients and servers in virtual time to show what the
// policies of the client stack do: thousands of them in seconds, and the same
// result for the same seed.
//
// Servers have workers, a bounded queue and a distribution of service times; they
// can be slow, cold, failing, flapping or gone. Clients send at random moments and
// choose with a Chooser: a balance.Balancer, alone or with retries and backup
// requests, or anything else that a caller plugs in. It is pure: no I/O and no clock.
package balance
