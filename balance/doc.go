// Package balance chooses which endpoint gets the next request.
//
// A Balancer holds a set of endpoints that may change at any time (Update), and
// hands them out one request at a time (Pick, then Pick.Done with how it went).
// What it is told about requests is its load metric; which endpoints it looks at
// for a request is its policy; which of them it leaves alone because they fail is
// decided by failure accrual and fail-fast.
//
// The package is pure: it opens no connection, starts no goroutine and no timer.
// Time and randomness are functions in the Config; without them it uses the
// machine's monotonic clock and math/rand/v2. What has to be done to connections
// is asked of the Connections in the Config; what has to happen at some time
// happens in the first Pick after it, or in Tick.
//
// All methods may be called concurrently. Pick and Done take no lock that is
// shared between endpoints (the Heap policy excepted), allocate nothing, and read
// the clock at most once each.
package balance
