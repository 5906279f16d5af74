package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/switchyard-dev/switchyard/api/link"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// watchInterval is how often a node looks at the state of its store.
const watchInterval = 100 * time.Millisecond

// core is what stands behind the frontend.
type core interface {
	frontend.Backend
	// Status returns nil when the store accepts writes. Otherwise the reason
	// of the error tells a store that is not ready yet (NOT_READY) from one
	// that has failed (STORAGE_FAILED).
	Status() error
	// Cluster answers operators; nil for nobody.
	Cluster() v1.ClusterServiceServer
	// Stop ends waiting polls, hands back what it can, flushes and closes the
	// store. It returns when all is done, or soon after ctx is.
	Stop(ctx context.Context) error
}

// Server is a node.
type Server struct {
	config   Config
	logger   *slog.Logger
	core     core
	frontend *frontend.Frontend
	health   *health.Server
	grpc     *grpc.Server
	link     *link.Server
	http     *http.Server
	listener net.Listener

	status   atomic.Pointer[error] // what core.Status returned at the last look
	stopping atomic.Bool
	started  atomic.Bool // by Run, or Close instead
}

// New makes a node: it binds the address, and opens or recovers the store. The
// node answers once Run is called; connections made before wait for it. A node
// that is not going to Run must be closed.
//
// register, if given, adds functions of the caller's own to the store, in spaces from
// storage.FirstUserSpace on. All nodes of a cluster must have the same.
func New(config Config, logger *slog.Logger, register ...func(*storage.Registry)) (*Server, error) {
	return newServer(config, logger, func(c Config, l *slog.Logger, reg prometheus.Registerer) (core, error) {
		return openNode(c, l, reg, functions(register))
	})
}

// opener makes the core of a node. Its metrics go to the registerer.
type opener func(Config, *slog.Logger, prometheus.Registerer) (core, error)

func newServer(config Config, logger *slog.Logger, open opener) (_ *Server, err error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return nil, fmt.Errorf("server: cannot listen on %s: %w", config.Listen, err)
	}
	defer func() {
		if err != nil {
			listener.Close()
		}
	}()
	node, err := open(config, logger, registry)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stopCore(node, config.ShutdownTimeout))
		}
	}()
	s := &Server{config: config, logger: logger, core: node, listener: listener, health: health.NewServer()}
	s.frontend, err = frontend.New(frontend.Options{Backend: node, Limits: config.Limits, Logger: logger, Registerer: registry})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.grpc = newGRPCServer(s.frontend, node.Cluster(), s.health, logger)
	s.link = newLinkServer(s.frontend, logger)
	s.http, err = newHTTPServer(httpOptions{
		frontend: s.frontend, registry: registry, logger: logger, pprof: config.Pprof, ready: s.Ready,
	})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.look()
	return s, nil
}

// stopCore stops a core within timeout, but gives it minStopTime.
func stopCore(c core, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), max(timeout, minStopTime))
	defer cancel()
	return c.Stop(ctx)
}

// Addr returns the address that the node listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Ready returns nil when the node takes calls, and otherwise why not. That it takes
// calls again is noticed a fraction of a second later.
func (s *Server) Ready() error {
	if s.stopping.Load() {
		return errStopping
	}
	if err := s.core.Status(); err != nil {
		return err
	}
	return *s.status.Load()
}

var errNoFrontend = reason.New(codes.Unavailable, reason.NotReady, nil,
	"this node has not the role frontend; ask a node that has it")

var errStopping = reason.New(codes.Unavailable, reason.ShuttingDown, nil, "the node is shutting down")

// Close closes a node that was not run. After Run it does nothing.
func (s *Server) Close() error {
	if s.started.Swap(true) {
		return nil
	}
	return errors.Join(s.listener.Close(), stopCore(s.core, s.config.ShutdownTimeout))
}

// Run serves until ctx is done or serving fails, then stops: it accepts no more
// connections, ends waiting polls, lets calls in progress finish, hands back
// leases that were not delivered, and flushes and closes the store. Calls in
// progress get shutdown_timeout and are cut off then; the store gets as long
// again. It returns nil after a clean stop. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("server: it was run or closed before")
	}
	sniff := newSniffer(s.listener, sniffTimeout, s.logger)
	ended := make(chan error, 3)
	go func() { ended <- s.grpc.Serve(sniff.http2) }()
	go func() { ended <- s.link.Serve(sniff.link) }()
	go func() { ended <- s.http.Serve(sniff.http1) }()
	s.logger.Info("serving", "addr", s.Addr(), "durability", s.config.Durability, "memory", s.config.Memory)

	watch := time.NewTicker(watchInterval)
	defer watch.Stop()
	var failure error
	running := 3
	for failure == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case err := <-ended:
			running--
			failure = fmt.Errorf("server: serving ended by itself: %w", err)
		case <-watch.C:
			s.look()
		}
	}
	return errors.Join(failure, s.shutdown(sniff, ended, running))
}

// look takes over the state of the store.
func (s *Server) look() {
	err := s.core.Status()
	if err == nil && !s.config.has(RoleFrontend) {
		s.frontend.SetUnavailable(errNoFrontend)
	} else {
		s.frontend.SetUnavailable(err)
	}
	was := s.status.Swap(&err)
	if red := err != nil; red != (was != nil && *was != nil) {
		if red && reason.Of(err) == reason.NotReady {
			s.logger.Warn("the node takes no calls yet", "err", err)
		} else if red {
			s.logger.Error("the node takes no calls", "err", err)
		} else {
			s.logger.Info("the node takes calls again")
		}
	}
	state := healthpb.HealthCheckResponse_SERVING
	if err != nil {
		state = healthpb.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus("", state)
}

// shutdown stops the node; running is how many of the three servers still have to
// report on ended.
func (s *Server) shutdown(sniff *sniffer, ended <-chan error, running int) error {
	begin := time.Now()
	s.stopping.Store(true)
	s.logger.Info("stopping", "calls_in_progress", s.frontend.InFlight())
	s.health.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), s.config.ShutdownTimeout)
	defer cancel()
	err := sniff.close()
	s.frontend.Drain()

	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		var both sync.WaitGroup
		both.Go(s.grpc.GracefulStop)
		both.Go(s.link.GracefulStop)
		both.Wait()
	}()
	if herr := s.http.Shutdown(ctx); herr != nil {
		s.logger.Warn("HTTP calls did not finish in time and are cut off", "err", herr)
		s.http.Close()
	}
	select {
	case <-graceful:
	case <-ctx.Done():
		s.logger.Warn("calls did not finish in time and are cut off", "calls_in_progress", s.frontend.InFlight())
		// Cancels the calls' contexts; both return when the handlers have.
		go s.grpc.Stop()
		go s.link.Stop()
		select {
		case <-graceful:
		case <-time.After(cutOffTime):
			err = errors.Join(err, errors.New("server: calls in progress did not end when they were cancelled"))
		}
	}
	for ; running > 0; running-- {
		<-ended
	}
	err = errors.Join(err, stopCore(s.core, s.config.ShutdownTimeout))
	s.logger.Info("stopped", "took", time.Since(begin).Round(time.Millisecond))
	return err
}

const (
	// cutOffTime is how long cancelled calls may take to end.
	cutOffTime = 2 * time.Second
	// minStopTime is what the store gets to stop however short shutdown_timeout is.
	minStopTime = time.Second
)
