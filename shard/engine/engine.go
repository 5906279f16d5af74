package engine

import (
	"context"
	"errors"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// Engine keeps rows and applies commands in one order. All methods may be called
// from any goroutine.
type Engine interface {
	// Propose asks for cmd to be applied. It does not wait. done is called exactly
	// once, after the command's rows are visible to View and as durable as the
	// engine was told to make them, or with an error. It never runs inside Propose,
	// and it runs on a goroutine that applies commands, so it must be quick.
	//
	// Commands proposed by one goroutine one after the other are applied in that
	// order. cmd.Args belongs to the engine until done runs. cmd.Time is ignored: the
	// engine stamps the command itself.
	//
	// Errors of the engine are *shard.Error. Overloaded and ArgumentsTooLarge mean that
	// nothing was done; with StoreFailed and StoreClosed it is unknown whether the
	// command took effect.
	Propose(cmd Command, done func(result []byte, err error))

	// View calls fn with a reader of one moment that includes every command whose
	// done has run before. The reader must not be used after fn returned. An error of
	// fn is returned as it is.
	View(ctx context.Context, fn func(Reader) error) error

	// Status reports the engine's condition. It is cheap.
	Status() Status

	// Close stops the engine: it refuses new commands, waits for those in flight and
	// for views until ctx ends, and releases everything.
	Close(ctx context.Context) error
}

// Command is one change, applied on every replica.
type Command struct {
	// Function names what the machine is to do, 1 to 255 bytes.
	Function string
	// Bucket is the bucket that the command is on, 0 for a command on none.
	Bucket shard.BucketID
	// Time is the master's clock when it took the command, to the nanosecond. It never
	// runs backwards from one command to the next.
	Time time.Time
	// Args are the function's arguments. They must not be changed.
	Args []byte
}

// Machine gives commands their meaning. An engine calls it from one goroutine at a
// time. It must be deterministic: the same commands on the same rows write the same
// rows on every replica.
type Machine interface {
	// Reset tells the machine that the rows are now those of r: once before the first
	// command, and whenever the engine took over the state of another replica. The
	// reader must not be used after Reset returned.
	Reset(r Reader) error
	// Apply carries out cmd through tx. When it returns an error, nothing that it wrote
	// is kept and the error goes to the proposer as it is. An error made by Fatal
	// stops the engine instead. The result must not share memory with what tx.Get
	// returned.
	Apply(tx Tx, cmd *Command) (result []byte, err error)
}

// Reader reads rows. It is for one goroutine.
type Reader interface {
	// Get returns the value of key, and whether there is one. The value is valid until
	// the reader's next call.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan calls fn with the rows whose keys are at least from and below to, in the
	// order of their keys or backwards, until fn returns false. Key and value are valid
	// during fn. fn may call Get, and nothing else, of the same reader.
	Scan(from, to []byte, reverse bool, fn func(key, value []byte) bool) error
}

// Tx is what one command reads and writes. Its reads see the rows as they were before
// the command, never the command's own writes.
type Tx interface {
	Reader
	// Put makes room for a row and returns where its key and value go. Both must be
	// filled before the next call.
	Put(keyLen, valueLen int) (key, value []byte)
	// Delete makes room for the key of a row to be deleted, like Put. There need not be
	// such a row.
	Delete(keyLen int) (key []byte)
	// DeleteRange deletes all rows whose keys are at least from and below to.
	DeleteRange(from, to []byte)
	// Settle makes everything that earlier commands wrote visible to View. A machine
	// calls it before it lets readers see a change of its own, such as a bucket's state.
	Settle() error
}

// fatal marks an error that must stop the engine.
type fatal struct{ err error }

func (f *fatal) Error() string { return f.err.Error() }
func (f *fatal) Unwrap() error { return f.err }

// Fatal wraps an error that a machine returns when going on would make replicas
// differ, such as a command that this version does not know.
func Fatal(err error) error { return &fatal{err} }

// IsFatal reports whether err was made by Fatal.
func IsFatal(err error) bool {
	var f *fatal
	return errors.As(err, &f)
}

// State says what an engine can do at the moment.
type State int

// States of an engine.
const (
	// Starting: it replays its log or looks for a master.
	Starting State = iota
	// Master: it takes commands.
	Master
	// Replica: it follows a master.
	Replica
	// Failed: it has met an error that it cannot go on with; see Status.Err.
	Failed
	// Closed: Close was called.
	Closed
)

var stateNames = [...]string{"starting", "master", "replica", "failed", "closed"}

func (s State) String() string {
	if s >= 0 && int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Status is the condition of an engine at one moment.
type Status struct {
	State State
	// Err is why the engine failed, nil in other states.
	Err error
	// Warning is something that an operator should look at soon, or empty.
	Warning string
	// Applied is the number of the last command whose rows are visible.
	Applied uint64
	// Logged is the number of the last command in the log.
	Logged uint64
	// InFlight and InFlightBytes count commands proposed and not done yet.
	InFlight      int
	InFlightBytes int64
	// SnapshotAt is the number of the last command in the newest snapshot, 0 for none.
	SnapshotAt uint64
	// LogBytes is what was logged since that snapshot: about what a restart replays.
	LogBytes int64
	// StateBytes is the size of the rows on disk, as far as known.
	StateBytes int64
}
