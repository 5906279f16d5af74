package storage

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// WriteFunc changes rows of one bucket. It runs on every replica in the order of the
// log and must be deterministic: everything it decides by comes from the rows, from
// args, and from tx.Time. When it returns an error, its rows are discarded and the error
// goes to the caller as it is. It must not keep args or tx, and its result must not
// share memory with what tx.Get returned.
type WriteFunc func(tx *Tx, args []byte) ([]byte, error)

// ReadFunc reads rows of one bucket at one moment. It must not keep args or v, and its
// result must not share memory with what v.Get returned.
type ReadFunc func(v *View, args []byte) ([]byte, error)

// Registry holds functions by name. The built-in kv functions are in every one.
type Registry struct {
	mu     sync.Mutex
	frozen bool
	writes map[string]WriteFunc
	reads  map[string]ReadFunc
}

// NewRegistry returns a registry with the built-in functions.
func NewRegistry() *Registry {
	r := &Registry{writes: map[string]WriteFunc{}, reads: map[string]ReadFunc{}}
	registerKV(r)
	return r
}

// Register adds a write function. Names have 1 to 255 bytes and must be unique over
// writes and reads; names that start with "_" are the storage's own. It panics on a bad
// name and after a storage was opened with the registry, because both are faults of the
// program.
func (r *Registry) Register(name string, fn WriteFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.check(name, fn == nil)
	r.writes[name] = fn
}

// RegisterRead adds a read function; see Register.
func (r *Registry) RegisterRead(name string, fn ReadFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.check(name, fn == nil)
	r.reads[name] = fn
}

func (r *Registry) check(name string, missing bool) {
	_, write := r.writes[name]
	_, read := r.reads[name]
	switch {
	case r.frozen:
		panic(fmt.Sprintf("storage: function %q is registered after a storage was opened", name))
	case name == "" || len(name) > engine.MaxFunctionName || strings.HasPrefix(name, "_"):
		panic(fmt.Sprintf("storage: %q cannot be the name of a function", name))
	case missing:
		panic(fmt.Sprintf("storage: function %q is nil", name))
	case write || read:
		panic(fmt.Sprintf("storage: function %q is registered twice", name))
	}
}

// freeze ends the registering and returns the functions, to be read without a lock.
func (r *Registry) freeze() (map[string]WriteFunc, map[string]ReadFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = true
	return maps.Clone(r.writes), maps.Clone(r.reads)
}
