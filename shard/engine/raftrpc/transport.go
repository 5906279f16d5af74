package raftrpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// Options of New. The zero value of a field is its default.
type Options struct {
	// ID is this member's id and ReplicaSet the name of its replica set. Required.
	ID, ReplicaSet string
	// Address is where other members reach this one, host:port. Required.
	Address string
	// Resolve returns the address of a member, or "" when it does not know; the address
	// that the group agreed on is used then. It must be quick. Default: never knows.
	Resolve func(id string) string
	// DialOptions are for the connections to other members; they must contain
	// credentials. Default: no encryption.
	DialOptions []grpc.DialOption
	// HeartbeatTimeout and VoteTimeout bound one heartbeat and one request for a vote
	// (default 500 ms each).
	HeartbeatTimeout, VoteTimeout time.Duration
	// AppendTimeout is how long a member may take over entries, or over a piece of a
	// snapshot, before it is taken to be lost (default 30 s).
	AppendTimeout time.Duration
	// MaxInFlight and MaxInFlightBytes bound the requests with entries that are under way
	// to one member (default 4 and 32 MiB; one request larger than that goes alone). A member
	// stores one after the other, so entries that wait here share a sync there.
	MaxInFlight      int
	MaxInFlightBytes int64
	// MaxRequestBytes bounds one request with entries (default 256 MiB). It must have room
	// for the largest entry.
	MaxRequestBytes int64
	// Logger takes what the transport has to say. Default: nothing.
	Logger *slog.Logger
}

// DefaultMaxRequestBytes is the default of Options.MaxRequestBytes.
const DefaultMaxRequestBytes = 256 << 20

func (o *Options) setDefaults() error {
	if o.ID == "" || o.ReplicaSet == "" || o.Address == "" {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "a member needs an id, an address and the name of its replica set"}
	}
	if len(o.ID) > maxName || len(o.ReplicaSet) > maxName {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the id of a member and the name of a replica set have at most 255 bytes"}
	}
	if o.Resolve == nil {
		o.Resolve = func(string) string { return "" }
	}
	if len(o.DialOptions) == 0 {
		o.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&o.HeartbeatTimeout, 500 * time.Millisecond}, {&o.VoteTimeout, 500 * time.Millisecond}, {&o.AppendTimeout, 30 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.or
		}
		if *d.value < time.Millisecond {
			return &shard.Error{Code: shard.InvalidConfig, Reason: "a timeout between members must be at least 1ms"}
		}
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 4
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = 32 << 20
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if o.MaxInFlight < 1 || o.MaxInFlightBytes < 1 || o.MaxRequestBytes < 1 {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "the limits of what is under way between members must be at least 1"}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

const maxName = 255

// Host is the engine that the messages are for. Its methods may be called from any
// goroutine and must be quick, but for Adopt and Installing.
type Host interface {
	// ClusterID returns the id of the cluster, or "" as long as it is not known.
	ClusterID() string
	// Adopt takes over the cluster id of the group that this member was added to, for
	// good. It fails when another one is known.
	Adopt(clusterID string) error
	// Voice tells whether this member may vote and be elected.
	Voice() bool
	// Applied returns the last log entry that is applied here, 0 for none, and Raft's term.
	Applied() (index, term uint64)
	// Floor returns the first log entry that Raft can look up here, and its term, when previous
	// is before it; it and all before it are applied. Otherwise it returns 0.
	Floor(previous uint64) (index, term uint64)
	// Hangs tells whether this member waits for its disk for so long that it must not be the
	// master: it sends no entries, heartbeats or requests for votes then.
	Hangs() bool
	// Heard tells of entries from the master of that term, and of what it said is committed.
	Heard(term, commitIndex uint64)
	// Keepalive tells whether a heartbeat of that term changes nothing: this member
	// follows that term's master already.
	Keepalive(term uint64) bool
	// Installing waits for the right to install a snapshot from another member; done
	// gives it back.
	Installing(ctx context.Context) (done func(), err error)
}

// Transport is a raft.Transport over gRPC, and the service that others call. Its
// methods may be called from any goroutine.
type Transport struct {
	opts    Options
	consume chan raft.RPC
	host    atomic.Pointer[Host]
	beat    atomic.Pointer[func(raft.RPC)]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	peers  map[raft.ServerID]*peer
	closed bool

	progress progress
	sent     atomic.Int64 // snapshots
	received atomic.Int64
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

var (
	errClosed  = errors.New("the transport of the Raft group is closed")
	errHangs   = errors.New("the disk of this member hangs, so it neither leads nor stands for election")
	errNoVoice = errors.New("this member has not caught up since it started without its data, and does not take part in elections until then")
)

// New makes a transport. It calls nobody before Raft asks it to.
func New(opts Options) (*Transport, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	t := &Transport{opts: opts, consume: make(chan raft.RPC), peers: make(map[raft.ServerID]*peer)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.progress.init()
	return t, nil
}

// Register makes the transport answer the calls of other members that arrive at s.
// Before an engine uses it, they are told to come back later.
func (t *Transport) Register(s grpc.ServiceRegistrar) { v1.RegisterRaftServiceServer(s, &server{t: t}) }

// ID returns this member's id.
func (t *Transport) ID() string { return t.opts.ID }

// ReplicaSet returns the name of the replica set.
func (t *Transport) ReplicaSet() string { return t.opts.ReplicaSet }

// Address returns where others reach this member.
func (t *Transport) Address() string { return t.opts.Address }

// MaxRequestBytes returns the limit of one request with entries.
func (t *Transport) MaxRequestBytes() int64 { return t.opts.MaxRequestBytes }

// Attach connects the transport to the engine that it is for. An engine calls it once,
// before it starts Raft.
func (t *Transport) Attach(h Host) { t.host.Store(&h) }

// attached returns the host, nil before Attach.
func (t *Transport) attached() Host {
	if h := t.host.Load(); h != nil {
		return *h
	}
	return nil
}

// hangs tells whether this member must keep silent.
func (t *Transport) hangs() bool {
	h := t.attached()
	return h != nil && h.Hangs()
}

// Consumer implements raft.Transport.
func (t *Transport) Consumer() <-chan raft.RPC { return t.consume }

// LocalAddr implements raft.Transport.
func (t *Transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.opts.Address) }

// EncodePeer implements raft.Transport. Raft compares candidates and masters by what
// this returns, and keeps it with its vote: so it is the id, which does not change with
// the address.
func (t *Transport) EncodePeer(id raft.ServerID, _ raft.ServerAddress) []byte { return []byte(id) }

// DecodePeer implements raft.Transport.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport.
func (t *Transport) SetHeartbeatHandler(fn func(raft.RPC)) { t.beat.Store(&fn) }

// Close ends all calls in both directions and all connections. Later ones fail.
func (t *Transport) Close() error {
	t.mu.Lock()
	peers := t.peers
	t.peers, t.closed = nil, true
	t.mu.Unlock()
	t.cancel()
	for _, p := range peers {
		p.drop()
	}
	return nil
}

// Snapshots returns how many snapshots were sent to and received from other members.
func (t *Transport) Snapshots() (sent, received int64) { return t.sent.Load(), t.received.Load() }

// sender is who this member says it is.
func (t *Transport) sender(to raft.ServerID) *v1.RaftSender {
	s := &v1.RaftSender{ReplicaSet: t.opts.ReplicaSet, From: t.opts.ID, To: string(to)}
	if h := t.attached(); h != nil {
		s.ClusterId = h.ClusterID()
	}
	return s
}

func header(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(id)}
}

// hand gives a message of another member to Raft. The channel gets the answer, unless
// the transport is closed first.
func (t *Transport) hand(ctx context.Context, command any, r io.Reader) (<-chan raft.RPCResponse, error) {
	ch := make(chan raft.RPCResponse, 1)
	select {
	case t.consume <- raft.RPC{Command: command, Reader: r, RespChan: ch}:
		return ch, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.ctx.Done():
		return nil, errClosed
	}
}
