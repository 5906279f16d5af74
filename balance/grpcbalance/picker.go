package grpcbalance

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/balancer"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

const (
	// tries is how many endpoints without a connection a pick passes over.
	tries = 8
	// maxAvoided is how many endpoints that refused the request a pick keeps away from.
	maxAvoided = 4
)

type picker struct{ lb *lb }

// Pick implements balancer.Picker.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	b := p.lb
	attempt := retry.AttemptOf(info.Ctx)
	if err := b.failing.Load(); err != nil {
		if attempt != nil {
			attempt.NoEndpoints()
		}
		return balancer.PickResult{}, *err
	}
	connected := b.ready.Load() > 0
	if !connected && !b.aperture.Load() {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable // all are connecting
	}
	core := b.core.Load()
	var avoid [maxAvoided + tries]*balance.Node
	n := 0
	if attempt != nil {
		for _, x := range attempt.Avoid {
			if node, ok := x.(*balance.Node); ok && n < maxAvoided {
				avoid[n] = node
				n++
			}
		}
	}
	for range tries {
		pick, err := core.PickAvoiding(avoid[:n])
		if err != nil {
			if attempt != nil {
				attempt.NoEndpoints()
			}
			if errors.Is(err, balance.ErrNoEndpoints) {
				err = fmt.Errorf("%w for %s", errNoEndpoints, b.target)
			}
			return balancer.PickResult{}, err
		}
		e := pick.Value().(*entry)
		l := e.link.Load()
		if l.ready.Load() {
			if attempt != nil {
				attempt.Chosen(pick.Node())
			}
			return balancer.PickResult{SubConn: l.sc, Done: done(pick, attempt)}, nil
		}
		pick.Done(balance.Ignored)
		e.connect()
		if !connected {
			break
		}
		avoid[n] = pick.Node()
		n++
	}
	if connected {
		b.kick()
	}
	return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
}

func done(pick balance.Pick, attempt *retry.Attempt) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		if attempt != nil && info.Err != nil && !info.BytesSent {
			attempt.NotSent()
		}
		pick.Done(outcomeOf(info))
	}
}
