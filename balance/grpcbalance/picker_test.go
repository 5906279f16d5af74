package grpcbalance

import (
	"errors"
	"testing"

	"google.golang.org/grpc/balancer"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

func TestDone_tellsWhatWasNotWritten(t *testing.T) {
	core, err := balance.New(balance.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := core.Update([]balance.Endpoint{{Address: "a"}}); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		info    balancer.DoneInfo
		unsent  bool
		outcome balance.Outcome
	}{
		"answered":               {balancer.DoneInfo{BytesSent: true}, false, balance.Success},
		"never began":            {balancer.DoneInfo{}, false, balance.Ignored},
		"failed, written":        {balancer.DoneInfo{Err: broken, BytesSent: true}, false, balance.Failure},
		"failed, nothing was":    {balancer.DoneInfo{Err: broken}, true, balance.Failure},
		"refused, nothing known": {balancer.DoneInfo{Err: broken, BytesSent: true, Trailer: map[string][]string{retry.SignalKey: {"nack"}}}, false, balance.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			before := core.Stats().Results
			pick, err := core.Pick()
			if err != nil {
				t.Fatal(err)
			}
			a := &retry.Attempt{}
			done(pick, a)(c.info)
			before[c.outcome]++
			if after := core.Stats().Results; after != before || a.Unsent() != c.unsent {
				t.Errorf("outcomes %v, want %v; unsent %v, want %v", after, before, a.Unsent(), c.unsent)
			}
		})
	}
}
