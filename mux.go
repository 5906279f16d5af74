package switchyard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Mux is a Handler that chooses another one by the task's kind. A task of an
// unknown kind goes to the fallback, and without one the attempt fails: it is
// retried later, which gives the right worker a chance (one of a newer version,
// say), and when nobody ever knows the kind the task becomes dead, visibly.
//
// Handlers and middleware may be added at any time, in any order.
type Mux struct {
	mu         sync.Mutex
	plain      map[string]Handler
	fallback   Handler
	middleware []Middleware
	// ready is what Handle looks at: all handlers inside of all middleware.
	ready atomic.Pointer[muxTable]
}

type muxTable struct {
	byKind   map[string]Handler
	fallback Handler
}

// NewMux returns a Mux without handlers.
func NewMux() *Mux { return &Mux{} }

// Handle sets the handler of a kind. It panics if the kind is empty or has a
// handler already, since that is a mistake in the program.
func (m *Mux) Handle(kind string, handler Handler) {
	if kind == "" || handler == nil {
		panic("switchyard: Mux.Handle needs a kind and a handler")
	}
	m.change(func() {
		if m.plain[kind] != nil {
			panic(fmt.Sprintf("switchyard: the kind %q has a handler already", kind))
		}
		if m.plain == nil {
			m.plain = make(map[string]Handler)
		}
		m.plain[kind] = handler
	})
}

// HandleFunc sets a function as the handler of a kind; see Handle.
func (m *Mux) HandleFunc(kind string, handler func(ctx context.Context, job *Job) error) {
	m.Handle(kind, HandlerFunc(handler))
}

// Fallback sets the handler of all kinds that have none of their own.
func (m *Mux) Fallback(handler Handler) {
	m.change(func() { m.fallback = handler })
}

// Use puts middleware around all handlers, the fallback included, whether they
// were added before or come later. The first one is the outermost.
func (m *Mux) Use(middleware ...Middleware) {
	m.change(func() { m.middleware = append(m.middleware, middleware...) })
}

// Kinds returns the kinds that have a handler, sorted.
func (m *Mux) Kinds() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.plain))
}

// HandleTask runs the handler of the job's kind.
func (m *Mux) HandleTask(ctx context.Context, job *Job) error {
	table := m.ready.Load()
	if table == nil {
		return unknownKind(ctx, job)
	}
	if handler := table.byKind[job.Kind]; handler != nil {
		return handler.HandleTask(ctx, job)
	}
	return table.fallback.HandleTask(ctx, job)
}

func unknownKind(_ context.Context, job *Job) error {
	return fmt.Errorf("this worker has no handler for the kind %q", job.Kind)
}

// change applies f and makes the table that HandleTask looks at anew.
func (m *Mux) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	table := &muxTable{byKind: make(map[string]Handler, len(m.plain))}
	for kind, handler := range m.plain {
		table.byKind[kind] = wrap(handler, m.middleware)
	}
	fallback := m.fallback
	if fallback == nil {
		fallback = HandlerFunc(unknownKind)
	}
	table.fallback = wrap(fallback, m.middleware)
	m.ready.Store(table)
}
