package storagerpc

import (
	"log/slog"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// Limits of the protocol that both sides know.
const (
	// batchBytes is about how much one message of a stream carries; a call that is larger
	// has a message of its own.
	batchBytes = 1 << 20
	// batchCalls is the largest number of calls or results in one message.
	batchCalls = 4096
	// callBytes is what a call takes besides its arguments, for the accounts.
	callBytes = 128
	// MaxArgs is the largest size of the arguments and of the result of one call, in bytes.
	MaxArgs = 64 << 20
	// MaxMessage is the largest message that the server and the client of this package
	// send. gRPC servers and clients must be made to take it.
	MaxMessage = MaxArgs + 1<<20
)

// ServerOptions of NewServer. The zero value of a field is its default.
type ServerOptions struct {
	// Storage is what is served. Required.
	Storage Storage
	// Member is the id of this member in its replica set.
	Member string

	// MaxCalls and MaxBytes bound the calls in flight on one stream, and the bytes of their
	// arguments and results (default 4096 and 64 MiB). One call may be larger.
	MaxCalls int
	MaxBytes int64
	// Readers is how many reads of one stream run, or wait for their master, at once (default 64).
	Readers int
	// MaxViews bounds the views that are open at once (default 256). More are refused with
	// OVERLOADED.
	MaxViews int
	// ViewIdle ends a view whose client asked for nothing for so long (default 30 s), and
	// ViewAge any view (default 5 min): it keeps old rows from being deleted.
	ViewIdle, ViewAge time.Duration
	// Heartbeat is how often a discovery stream says something (default 500 ms).
	Heartbeat time.Duration
	// Logger takes what goes wrong. Default: nothing.
	Logger *slog.Logger
}

func (o *ServerOptions) setDefaults() error {
	if o.Storage == nil {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "a server of a storage needs the storage"}
	}
	if o.MaxCalls < 0 || o.MaxBytes < 0 || o.Readers < 0 || o.MaxViews < 0 || o.ViewIdle < 0 || o.ViewAge < 0 || o.Heartbeat < 0 {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the limits of a server of a storage must not be negative"}
	}
	def(&o.MaxCalls, 4096)
	def(&o.MaxBytes, 64<<20)
	def(&o.Readers, 64)
	def(&o.MaxViews, 256)
	def(&o.ViewIdle, 30*time.Second)
	def(&o.ViewAge, 5*time.Minute)
	def(&o.Heartbeat, 500*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}
