// Package clientmetrics shows the client stack to Prometheus: balancers (package
// balance and what stands on it) and retries (package retry and what stands on it).
//
//	metrics := clientmetrics.New("checkout", grpcbalance.Registry())
//	prometheus.MustRegister(metrics)
//	client, err := grpcretry.New(grpcretry.Config{Observe: metrics.Method})
//	metrics.WatchBudget(client.Budget())
//
// docs/client.md lists all names; they are stable. Who uses another system
// implements retry.Observer and reads balance.Registry.
package clientmetrics
