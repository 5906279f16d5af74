package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// scenario is one kind of trouble in the middle of a move from a to b.
type scenario struct {
	name    string
	members int // at least
	set     string
	master  bool // else a replica
}

var scenarios = []scenario{
	{"destination", 1, "b", true},
	{"source", 1, "a", true},
	{"replica of the destination", 3, "b", false},
	{"replica of the source", 3, "a", false},
}

// downFor is how long the dead stay dead.
const downFor = 3 * time.Second

const troubleHead = `| members | killed | writes back after | longest without a write | slowest read | failed calls | alert, after | the move |
|---|---|---|---|---|---|---|---|
`

func troubles(ctx context.Context, opts options, members []int, mib int) error {
	fmt.Print(troubleHead)
	for _, n := range members {
		for _, sc := range scenarios {
			if n < sc.members {
				continue
			}
			for range opts.runs {
				if err := trouble(ctx, opts, n, mib, sc); err != nil {
					return fmt.Errorf("%s of %d: %w", sc.name, n, err)
				}
			}
		}
	}
	return nil
}

// alert is what the router's Info first says about a set.
type alert struct {
	after time.Duration
	text  string
}

func trouble(ctx context.Context, opts options, members, mib int, sc scenario) error {
	opts.anyReplica = true
	b, err := open(ctx, opts, members, mib)
	if err != nil {
		return err
	}
	defer b.close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	victim, err := b.victim(ctx, sc)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	var sentAt time.Time
	go func() {
		err := b.send(ctx, "b")
		sentAt = time.Now()
		sent <- err
	}()
	if err := b.halfWay(ctx, mib); err != nil {
		return err
	}
	victim.Kill()
	killed := time.Now()
	alerts := make(chan alert, 1)
	watching, stopWatching := context.WithCancel(ctx)
	go func() { alerts <- b.firstAlert(watching, sc.set, killed) }()
	defer stopWatching()
	if err := sleep(ctx, downFor); err != nil {
		return err
	}
	restarted := time.Now()
	if err := victim.Start(ctx); err != nil {
		return err
	}
	fate := "completed"
	if err := <-sent; err != nil {
		fate = "undone"
		fmt.Fprintf(os.Stderr, "  %d members, %s: %v\n", members, sc.name, err)
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	settled := time.Now()
	if err := sleep(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	stopWatching()
	a := <-alerts
	from, note := killed, ""
	if members == 1 && sc.set == "a" {
		from, note = restarted, " (of its restart)"
	}
	f := b.load.between(killed, time.Now())
	back := "never"
	if first, ok := b.load.firstWriteAfter(from); ok {
		back = round(first.Sub(from)).String() + note
	}
	if f.firstError != nil {
		text := f.firstError.Error()
		fmt.Fprintf(os.Stderr, "  %d members, %s: failures: %s\n", members, sc.name, text[:min(len(text), 500)])
	}
	fmt.Printf("| %d | %s | %s | %v | %v | %d | %v: %s | %s; call over after %v, nothing left after %v |\n", members, sc.name, back, round(f.gap), round(f.stall),
		f.failedWrites+f.failedRds, round(a.after), a.text, fate, round(sentAt.Sub(killed)), round(settled.Sub(killed)))
	return nil
}

// victim chooses whom to kill.
func (b *bench) victim(ctx context.Context, sc scenario) (*localsets.Member, error) {
	master, err := b.cluster.Master(ctx, sc.set)
	if err != nil || sc.master {
		return master, err
	}
	for _, m := range b.cluster.Members(sc.set) {
		if m != master {
			return m, nil
		}
	}
	return nil, fmt.Errorf("replica set %s has no replica", sc.set)
}

// halfWay waits until the destination has half of the rows.
func (b *bench) halfWay(ctx context.Context, mib int) error {
	rows := uint64(b.load.rows / 2)
	for {
		for _, m := range b.cluster.Members("b") {
			if m.Storage.Status().State == engine.Master && m.Storage.BucketRow(bucket).Taken.Rows >= rows {
				return nil
			}
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%d MiB are never half-way: %w", mib, err)
		}
	}
}

// firstAlert asks the router until it says that something is wrong with a set.
func (b *bench) firstAlert(ctx context.Context, set string, since time.Time) alert {
	for ctx.Err() == nil {
		for _, a := range b.router.Info(ctx).Alerts {
			if a.ReplicaSet == set && a.Level > router.Green {
				return alert{time.Since(since), fmt.Sprintf("%v %v", a.Level, a.Code)}
			}
		}
		_ = sleep(ctx, 50*time.Millisecond)
	}
	return alert{time.Since(since), strings.ToUpper("none")}
}
