package balance

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	core "github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// Chooser is a client's policy.
type Chooser interface {
	// Pick chooses a server for a try of a request. avoid lists the servers that
	// earlier tries went to; policies that know of no such thing ignore it.
	Pick(avoid []int) (Choice, bool)
	// Servers sets the servers, by number.
	Servers(ids []int)
	// Connected tells that the connection to a server is up or has been lost.
	Connected(id int, up bool)
}

// Choice is a server and what to call when the try is over.
type Choice struct {
	Server int
	Done   func(core.Outcome)
}

// connection is what a client has to a server.
type connection struct {
	state   connState
	tries   int
	round   int // which attempt to connect is the newest
	waiting []*attempt
}

type connState uint8

const (
	none connState = iota
	connecting
	up
	broken // lost or refused; it will be tried again
)

type client struct {
	sim     *sim
	id      int
	rand    *rand.Rand
	rate    float64
	stopped bool
	chooser Chooser
	conns   []connection
	open    int // connections that are up or being made

	retrier *retry.Retrier
	hedger  *retry.Hedger
}

// call is a logical request.
type call struct {
	client *client
	retry  retry.Call
	start  time.Duration
	avoid  []int
	over   bool
	live   []*attempt // of the current round: the original, and a backup
}

type attempt struct {
	call   *call
	seq    int
	choice Choice
	start  time.Duration
	backup bool
	over   bool
	sent   bool
}

func sortAttempts(list []*attempt) {
	slices.SortFunc(list, func(a, b *attempt) int { return cmp.Compare(a.seq, b.seq) })
}

func (c *client) run() {
	if c.rate <= 0 {
		return
	}
	c.sim.After(time.Duration(c.rand.ExpFloat64()/c.rate*float64(time.Second)), func() {
		if c.stopped {
			return
		}
		c.request()
		c.run()
	})
}

func (c *client) request() {
	k := &call{client: c, start: c.sim.Now}
	if c.retrier != nil {
		k.retry = c.retrier.Begin(c.sim.Now, retry.NoDeadline)
	}
	c.sim.requested()
	k.try()
}

// try starts an attempt and plans its backup.
func (k *call) try() {
	c := k.client
	if c.retrier != nil {
		k.retry.Attempt(c.sim.Now)
	}
	k.live = k.live[:0]
	first := k.send(false)
	if c.hedger == nil || first == nil {
		return
	}
	delay := c.hedger.Begin(c.sim.Now)
	if delay == retry.NoHedge {
		return
	}
	c.sim.After(delay, func() {
		if !first.over && c.hedger.Send(c.sim.Now) {
			c.sim.result.Hedges++
			k.send(true)
		}
	})
}

func (k *call) send(backup bool) *attempt {
	c := k.client
	choice, ok := c.chooser.Pick(k.avoid)
	if !ok {
		if !backup {
			k.end(false)
		}
		return nil
	}
	c.sim.attempts++
	a := &attempt{call: k, seq: c.sim.attempts, choice: choice, start: c.sim.Now, backup: backup}
	k.live = append(k.live, a)
	k.avoid = append(k.avoid, choice.Server)
	c.sim.attempted()
	conn := &c.conns[choice.Server]
	if conn.state == up {
		a.write()
		return a
	}
	conn.waiting = append(conn.waiting, a)
	switch conn.state {
	case none:
		c.connect(choice.Server)
	case broken:
		// As gRPC does without wait-for-ready: nothing is sent over what is down.
		c.sim.After(0, func() { c.refuseWaiting(choice.Server) })
	}
	return a
}

func (a *attempt) write() {
	v := a.call.client.sim.servers[a.choice.Server]
	a.sent = true
	v.inflight[a] = struct{}{}
	life := v.life
	v.sim.After(v.sim.world.Network, func() {
		if v.life == life {
			v.receive(a)
		}
	})
}

// connect opens a connection; what waits for it is sent or fails with it.
func (c *client) connect(id int) {
	conn := &c.conns[id]
	if conn.state == none || conn.state == broken {
		if conn.state == none {
			c.open++
		}
		conn.state = connecting
	} else {
		return
	}
	v := c.sim.servers[id]
	conn.round++
	round := conn.round
	c.sim.After(c.sim.world.Connect, func() {
		if conn.state != connecting || conn.round != round {
			return
		}
		if v.down() {
			conn.state = broken
			conn.tries++
			c.chooser.Connected(id, false)
			c.refuseWaiting(id)
			c.reconnect(id)
			return
		}
		conn.state, conn.tries = up, 0
		c.chooser.Connected(id, true)
		waiting := conn.waiting
		conn.waiting = nil
		for _, a := range waiting {
			if !a.over {
				a.write()
			}
		}
	})
}

// reconnect tries again with a wait that grows from about 1 s, as gRPC's does.
func (c *client) reconnect(id int) {
	conn := &c.conns[id]
	wait := time.Second
	for range min(conn.tries, 10) - 1 {
		wait = wait * 8 / 5
	}
	jitter := 0.8 + 0.4*c.rand.Float64()
	c.sim.After(time.Duration(float64(wait)*jitter), func() {
		if conn.state == broken {
			c.connect(id)
		}
	})
}

func (c *client) refuseWaiting(id int) {
	conn := &c.conns[id]
	waiting := conn.waiting
	conn.waiting = nil
	for _, a := range waiting {
		a.answered(core.Unreachable, true)
	}
}

func (c *client) connectionLost(id int) {
	conn := &c.conns[id]
	if conn.state != up {
		return
	}
	conn.state, conn.tries = broken, 1
	c.chooser.Connected(id, false)
	// The first try is at once; a server that is down refuses it.
	c.connect(id)
}

// release closes a connection that nobody uses.
func (c *client) release(id int) {
	if conn := &c.conns[id]; conn.state != none {
		*conn = connection{round: conn.round}
		c.open--
	}
}

// answered ends an attempt. local says that no answer came from the server.
func (a *attempt) answered(o core.Outcome, local bool) {
	if a.over {
		return
	}
	a.over = true
	k := a.call
	c := k.client
	now := c.sim.Now
	a.choice.Done(o)
	if k.over {
		return
	}
	if c.hedger != nil && o == core.Success {
		c.hedger.Record(now, now-a.start)
	}
	if o != core.Success && slices.ContainsFunc(k.live, func(x *attempt) bool { return !x.over }) {
		return // the other one decides
	}
	// Whatever else is under way is not needed any more.
	for _, x := range k.live {
		if !x.over {
			x.over = true
			x.choice.Done(core.Ignored)
			c.hedger.Record(now, now-x.start)
			delete(c.sim.servers[x.choice.Server].inflight, x)
		}
	}
	class := retry.Success
	switch {
	case o == core.Refused:
		class = retry.Requeueable
	case o == core.Unreachable:
		class = retry.Unconnected
	case o != core.Success:
		class = retry.Retryable
	}
	if c.retrier == nil {
		k.end(o == core.Success)
		return
	}
	if d := k.retry.Done(now, class, 0); d.Again() {
		c.sim.result.Retries++
		if d.Wait == 0 {
			k.try()
		} else {
			c.sim.After(d.Wait, k.try)
		}
		return
	}
	k.retry.End(now, class)
	k.end(o == core.Success)
}

func (k *call) end(ok bool) {
	k.over = true
	k.client.sim.ended(k, ok)
}
