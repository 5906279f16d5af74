package routing

import (
	"testing"
	"time"
)

func TestPollWait_isShortOnlyWhereThereIsNoBacklog(t *testing.T) {
	if d := PollWait(32, time.Minute); d != time.Minute {
		t.Errorf("%v at a partition with backlog", d)
	}
	if d := PollWait(0, time.Minute); d != EmptyWait {
		t.Errorf("%v at a partition without", d)
	}
	if d := PollWait(0, 0); d != 0 {
		t.Errorf("%v for a poll that does not wait", d)
	}
}
