package balance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/go-kratos/kratos/v2/selector"
	core "github.com/switchyard-dev/switchyard/balance"
	simulate "github.com/switchyard-dev/switchyard/internal/simulate/balance"
)

// The peers read the wall clock. Inside of a synctest bubble that is a clock which
// sleeping moves; before each use it is moved to the simulation's time.
type bubble struct {
	start time.Time
	now   func() time.Duration
}

func (b *bubble) sync() {
	if wait := b.now() - time.Since(b.start); wait > 0 {
		time.Sleep(wait)
	}
}

// errorOf is what a gRPC client sees.
func errorOf(o core.Outcome) error {
	switch o {
	case core.Success:
		return nil
	case core.Ignored:
		return status.Error(codes.Canceled, "given up")
	default:
		return status.Error(codes.Unavailable, "failed")
	}
}

// grpcChooser is a client that uses one of grpc-go's policies.
type grpcChooser struct {
	bubble
	tb             testing.TB
	policy, config string
	balancers      *[]balancer.Balancer // to be closed
	cc             *clientConn
	subs           map[int]*subConn
	down           map[int]bool
}

func (c *grpcChooser) Servers(ids []int) {
	c.sync()
	cc, b := newGRPC(c.tb, c.policy, c.config, len(ids))
	c.cc = cc
	*c.balancers = append(*c.balancers, b)
}

func (c *grpcChooser) Pick([]int) (simulate.Choice, bool) {
	c.sync()
	r, err := c.cc.picker.Pick(pickInfo)
	if err != nil {
		return simulate.Choice{}, false
	}
	sub := r.SubConn.(*subConn)
	c.subs[sub.id] = sub
	return simulate.Choice{Server: sub.id, Done: func(o core.Outcome) {
		c.sync()
		if r.Done != nil {
			r.Done(balancer.DoneInfo{Err: errorOf(o), BytesSent: true, BytesReceived: o == core.Success})
		}
	}}, true
}

func (c *grpcChooser) Connected(id int, up bool) {
	sub := c.subs[id]
	if sub == nil || up != c.down[id] {
		return
	}
	c.sync()
	c.down[id] = !up
	state := connectivity.TransientFailure
	if up {
		state = connectivity.Ready
	}
	sub.setState(state)
}

// kratosChooser is a client that uses kratos' selector.
type kratosChooser struct {
	bubble
	s       selector.Selector
	servers []int
	down    map[int]bool
}

func (c *kratosChooser) Servers(ids []int) {
	c.sync()
	c.servers = ids
	c.s = newKratos(ids)
}

func (c *kratosChooser) Pick([]int) (simulate.Choice, bool) {
	c.sync()
	n, done, err := c.s.Select(context.Background())
	if err != nil {
		return simulate.Choice{}, false
	}
	id := 0
	if _, err := fmt.Sscanf(n.Address(), "server-%d:80", &id); err != nil {
		return simulate.Choice{}, false
	}
	return simulate.Choice{Server: id, Done: func(o core.Outcome) {
		c.sync()
		done(context.Background(), selector.DoneInfo{Err: errorOf(o), BytesSent: true, BytesReceived: o == core.Success})
	}}, true
}

// Connected: as under gRPC, where kratos chooses among ready connections only.
func (c *kratosChooser) Connected(id int, up bool) {
	if c.down[id] == !up {
		return
	}
	c.sync()
	c.down[id] = !up
	var ready []int
	for _, x := range c.servers {
		if !c.down[x] {
			ready = append(ready, x)
		}
	}
	applyKratos(c.s, ready)
}

// TestTail compares the peers with Switchyard's policies in the simulator. It is
// long and has no pass mark, so it runs only when asked for: BALANCE_TAIL says how
// many seeds to take the mean of.
func TestTail(t *testing.T) {
	seeds, err := strconv.Atoi(os.Getenv("BALANCE_TAIL"))
	if err != nil || seeds < 1 {
		t.Skip("set BALANCE_TAIL=3")
	}
	var policies []simulate.Policy
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var balancers []balancer.Balancer
		offset := time.Duration(0)
		newBubble := func(env simulate.Env) bubble {
			return bubble{start: start.Add(offset), now: env.Now}
		}
		for _, p := range grpcPolicies {
			policies = append(policies, simulate.Policy{Name: p.name, New: func(env simulate.Env) simulate.Chooser {
				return &grpcChooser{bubble: newBubble(env), tb: t, policy: p.policy, config: p.config, balancers: &balancers, subs: map[int]*subConn{}, down: map[int]bool{}}
			}})
		}
		policies = append(policies, simulate.Policy{Name: "kratos_p2c", New: func(env simulate.Env) simulate.Chooser {
			return &kratosChooser{bubble: newBubble(env), down: map[int]bool{}}
		}})
		for _, p := range simulate.Policies() {
			if p.Name == "stack" || p.Name == "p2c_least_loaded" || p.Name == "p2c_peak_ewma" {
				policies = append(policies, p)
			}
		}
		for _, w := range []simulate.World{simulate.Tail(), simulate.Healthy()} {
			for _, p := range policies {
				var runs []*simulate.Result
				for seed := uint64(1); seed <= uint64(seeds); seed++ {
					offset = time.Since(start)
					r, err := simulate.Run(w, p, seed)
					if err != nil {
						t.Fatal(err)
					}
					runs = append(runs, r)
				}
				for _, b := range balancers {
					b.Close() // some have goroutines
				}
				balancers = nil
				r := simulate.Average(runs)
				t.Log(w.Name, simulate.Row(r, ""))
				if r.Requests == 0 {
					t.Error(errors.New("nothing was simulated"))
				}
			}
		}
	})
}
