package archtest

// Module is the import path that the rules speak about.
const Module = "github.com/switchyard-dev/switchyard"

// Switchyard is what the repository must look like. Paths are relative to the
// module; "." is the root package. The longest matching prefix decides.
var Switchyard = Rules{
	Module: Module,
	Floors: map[string]int{
		"api": 0,

		"shard":   1,
		"balance": 1,
		"retry":   1,

		// What puts the pure packages into gRPC, net/http and Prometheus.
		"balance/grpcbalance": 2,
		"retry/grpcretry":     2,
		"httpclient":          2,
		"clientmetrics":       2,

		"shard/engine": 2,
		"membership":   2,

		"shard/router":  3,
		"shard/storage": 3,
		// The way of transfers goes through a router, which stands beside the storage.
		"shard/storage/transferrpc": 3,
		"shard/rebalancer":          3,

		"matching":         4,
		"matching/scaling": 4,
		"matching/routing": 4,

		"frontend": 5,
		"admin":    5,

		// A frontend in a producer's or worker's own process.
		"direct": 6,

		"server":  6,
		"console": 6,
		// The SDK stands high so that no server package can import it. What it
		// may import itself is limited by Client below.
		".": 6,
		// Load generation for `switchyard bench`, on top of the SDK.
		"internal/loadgen": 6,
		// What `switchyard add` and `switchyard work` do besides flags and printing.
		"internal/bulkadd": 6,
		"internal/taskcmd": 6,

		"cmd":      7,
		"examples": 7,

		// Test support: on the lowest floor they can be imported by every test
		// and can import nothing of the server.
		"internal/archtest": 0,
		"internal/history":  0,
		"internal/grpctest": 0,
		// The client stack in virtual time, for tests, docs and `switchyard simulate`.
		"internal/simulate":        2,
		"internal/simulate/page":   0,
		"internal/simulate/events": 0,
		// Queues of a large cluster in virtual time, with the code that decides.
		"internal/simulate/queue": 5,
		// Whole replica sets in one process, for tests and measurements, and the one of moves.
		"internal/localsets":  3,
		"internal/movebench":  5,
		"internal/rebalbench": 5,
		// Measurements of the store, with members in processes of their own.
		"internal/storebench": 4,
		// Only tests of the whole store, with faults in its network and disks.
		"internal/chaos": 4,
		// Only tests that drive the built program from outside.
		"internal/crashtest": 7,
	},
	// Neighbours on one floor that may see each other: from → to.
	Sideways: map[string][]string{
		"api":                       {"api"},
		"shard":                     {"shard"},
		"shard/engine":              {"shard/engine"},
		"shard/router":              {"shard/storage"},
		"shard/storage":             {"shard/storage"},
		"shard/storage/transferrpc": {"shard/router", "shard/storage"},
		// internal/localsets is for its tests.
		"shard/rebalancer":   {"shard/rebalancer", "shard/router", "shard/storage", "internal/localsets"},
		"internal/localsets": {"shard/router", "shard/storage", "shard/storage/transferrpc"},
		"membership":         {"membership"},
		"matching":           {"matching", "matching/scaling", "matching/routing"},
		"server":             {"console"},
		"internal/loadgen":   {"."},
		"retry/grpcretry":    {"balance/grpcbalance"},
	},
	Pure: []string{"shard", "balance", "retry", "matching/scaling", "matching/routing", "membership/ring"},
	Impure: []string{
		"os", "io/fs", "net", "syscall", "math/rand", "crypto/rand", "log", "database/sql",
		"golang.org/x/sys", "google.golang.org/grpc",
	},
	Client:        ".",
	ClientImports: []string{"api", "balance", "retry", "clientmetrics"},
}
