package server

import (
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// openNode opens the store and the queues.
func openNode(Config, *slog.Logger, prometheus.Registerer) (core, error) {
	return nil, errors.New("not wired yet")
}
