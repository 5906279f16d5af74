package membership

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	firstPause = 200 * time.Millisecond
	// maxVanished bounds how many vanished nodes are looked for, and maxVanishedFor how long.
	maxVanished    = 256
	maxVanishedFor = 24 * time.Hour
)

// vanished is a node that may come back into reach.
type vanished struct {
	address string
	at      time.Time
}

// keepJoining looks for nodes that should be in view and are not, until ctx is over. What
// the first round meets goes to first.
func (g *gossip) keepJoining(ctx context.Context, first chan<- error) {
	defer close(g.done)
	pause := min(firstPause, g.rejoin)
	for round := 0; ; round++ {
		err := g.joinOnce()
		if round == 0 {
			var refused *RefusedError
			if errors.As(err, &refused) && !refused.passes() {
				first <- err
				return
			}
			first <- nil
		}
		switch {
		case err == nil:
			pause = g.rejoin
		default:
			g.m.log.Warn("cluster: nodes can't be reached or refuse; trying on", "err", err, "in", pause)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, g.rejoin)
	}
}

// joinOnce asks everybody who is missing, all at the same time. It returns an error if
// somebody refused, or this node does not know anybody though it should.
func (g *gossip) joinOnce() error {
	targets := g.missing()
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = g.join(t) })
	}
	wg.Wait()
	for _, err := range errs {
		var refused *RefusedError
		if errors.As(err, &refused) {
			return err
		}
	}
	reached := len(targets) == 0 || slices.Contains(errs, nil)
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if reached {
		g.m.enter()
	}
	if !g.m.isIn {
		return errors.Join(errs...)
	}
	return nil
}

func (g *gossip) join(address string) error {
	_, err := g.list.Join([]string{address})
	if err == nil {
		return nil
	}
	// The library keeps only the text of what NotifyMerge said.
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusal != nil && strings.Contains(err.Error(), g.refusal.Error()) {
		return g.refusal
	}
	return err
}

// missing are the addresses of seeds and vanished nodes that are not in view.
func (g *gossip) missing() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	here := map[string]bool{g.self: true}
	for _, a := range g.address {
		here[a] = true
	}
	var out []string
	look := slices.Clone(g.seeds)
	for name, v := range g.vanished {
		if time.Since(v.at) > maxVanishedFor {
			delete(g.vanished, name)
			continue
		}
		look = append(look, v.address)
	}
	for _, a := range look {
		if !here[a] {
			here[a] = true
			out = append(out, a)
		}
	}
	return out
}

// came and went follow the addresses of nodes.
func (g *gossip) came(name, address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.address[name] = address
	delete(g.vanished, name)
}

func (g *gossip) went(name, address string, goodbye bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.address, name)
	delete(g.vanished, name)
	if goodbye {
		return
	}
	for other := range g.vanished {
		if len(g.vanished) < maxVanished {
			break
		}
		delete(g.vanished, other)
	}
	g.vanished[name] = vanished{address, now}
}
