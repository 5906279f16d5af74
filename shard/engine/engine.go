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
	// Errors of the engine are *shard.Error. NonMaster, MissingMaster, Overloaded and
	// ArgumentsTooLarge mean that nothing was done; with OutcomeUnknown, StoreFailed and
	// StoreClosed it is unknown whether the command took effect, or will.
	Propose(cmd Command, done func(result []byte, err error))

	// View calls fn with a reader of this member's rows at one moment, which includes
	// every command whose done has run here before. The reader must not be used after fn
	// returned. An error of fn is returned as it is.
	View(ctx context.Context, fn func(Reader) error) error

	// ReadBarrier returns nil once this member is known to have been the master at a
	// moment after the call, with every command applied here that was acknowledged
	// before the call, by whichever master. A View after it is a linearizable read. It
	// writes nothing: it asks a majority of the members, once for all callers that wait
	// at the same time, and returns at once in a group of one. Its errors are those of
	// ctx and *shard.Error: NonMaster, StoreFailed, StoreClosed.
	ReadBarrier(ctx context.Context) error

	// Watch calls fn with who the master is as this member knows it, and again whenever
	// that changes, until stop is called. fn runs on one goroutine of the engine, so it
	// must be quick and must not call stop. Only the latest change is told when several
	// happen at once, but a loss of mastership here is always told before it is won again.
	// When stop returns, fn does not run and will not.
	Watch(fn func(Leadership)) (stop func())

	// Status reports the engine's condition. It is cheap.
	Status() Status

	// Close stops the engine: it refuses new commands, waits for those in flight and
	// for views until ctx ends, and releases everything.
	Close(ctx context.Context) error
}

// Group manages the members of an engine that has several. Its methods may be called
// from any goroutine. All but Bootstrap are for the master; others answer NonMaster.
type Group interface {
	// Bootstrap makes a group out of engines that were never part of one: this one
	// first, with itself as the master, and then the other members as AddMember does.
	// Called again after it was cut short, it adds those that are missing. members must
	// contain this member. On an engine whose group has members that are not among
	// members, it fails with NonEmpty.
	Bootstrap(ctx context.Context, members []Member) error
	// AddMember adds a member, or changes the address or the vote of one. A new voter
	// is brought up to date first, without a vote, so that the group can write
	// throughout; that needs the member to be reachable. When ctx ends before, the member
	// may stay without a vote. At most MaxMembers, else InvalidConfig.
	AddMember(ctx context.Context, m Member) error
	// RemoveMember removes a member; it does nothing when there is none of that id. The master
	// does not remove itself while another member can take its place: it hands over and
	// answers NonMaster with the new master, which removes it. The last voter cannot be removed.
	RemoveMember(ctx context.Context, id string) error
	// HandOver makes the member id the master, or the one that is most up to date when id
	// is empty. Commands that come meanwhile wait, and are then refused with NonMaster and
	// the new master. When it fails, this member goes on as the master.
	HandOver(ctx context.Context, id string) error
}

// MaxMembers is the largest number of members of a group.
const MaxMembers = 7

// Member is one member of a group.
type Member struct {
	// ID is its name, unique in the group and the same across restarts.
	ID string
	// Address is where it was last said to be reachable, host:port.
	Address string
	// Voter tells whether it counts for majorities and can become the master.
	Voter bool

	// Acknowledged is the number of the last log entry that it is known to have, and
	// Silent how long ago it answered last. Only the master knows, and only of others;
	// Silent is negative before the first answer.
	Acknowledged uint64
	Silent       time.Duration
}

// Leadership is who the master of a group is, as one member knows it.
type Leadership struct {
	// Here tells whether it is this member. It is set only after everything from before
	// was applied, so that commands and ReadBarrier are answered.
	Here bool
	// Master is its id, empty when it is not known.
	Master string
	// Term grows with every election. Of two masters, the one with the larger term is the
	// later one.
	Term uint64
}

// Command is one change, applied on every replica.
type Command struct {
	// Function names what the machine is to do, 1 to 255 bytes.
	Function string
	// Bucket is the bucket that the command is on, 0 for a command on none.
	Bucket shard.BucketID
	// View is how often the cluster's bucket_count had been doubled, as the caller knew it:
	// it says what Bucket means. 0 to MaxView.
	View uint8
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

// Doubler is a Machine whose number of buckets may be doubled while it runs. An engine
// then takes a folder or a snapshot whose number is a power of two times its own, or the
// other way round, and the machine checks the rest by its rows.
type Doubler interface {
	Machine
	// Doubles marks the interface.
	Doubles()
}

// Doubled reports whether one number of buckets is the other, doubled any number of times.
func Doubled(a, b uint32) bool {
	a, b = min(a, b), max(a, b)
	return a == b || a > 0 && b%a == 0 && b/a&(b/a-1) == 0
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
	// Starting: it replays its log, or is not part of a group yet.
	Starting State = iota
	// Master: it takes commands.
	Master
	// Replica: it follows a master, or waits for one to be elected.
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
	// Member is this member's id, and Master that of the master, empty when not known.
	Member, Master string
	// Term is the number of the latest election that this member knows of.
	Term uint64
	// Members are the members of the group in the order in which they came, empty when
	// this engine is not part of one yet.
	Members []Member
	// Applied is the number of the last command whose rows are visible.
	Applied uint64
	// Logged is the number of the last command in the log, and Committed of the last one
	// that a majority is known to have.
	Logged, Committed uint64
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
