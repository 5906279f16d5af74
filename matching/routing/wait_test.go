package routing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPollTurn_isShortWhereThereIsNoBacklogAndDoubles(t *testing.T) {
	for _, c := range []struct {
		backlog int64
		turn    int
		left    time.Duration
		want    time.Duration
	}{
		{0, 0, time.Minute, EmptyWait},
		{0, 1, time.Minute, 2 * EmptyWait},
		{0, 4, time.Minute, 16 * EmptyWait},
		{0, 1000, time.Minute, ChooseAgain},
		{32, 0, time.Minute, BacklogWait},
		{32, 1, time.Minute, 2 * BacklogWait},
		{32, 1000, time.Minute, ChooseAgain},
		{32, 1, 100 * time.Millisecond, 100 * time.Millisecond},
		{0, 0, time.Millisecond, time.Millisecond},
		{0, 0, 0, 0},
	} {
		require.Equal(t, c.want, PollTurn(c.backlog, c.turn, c.left), "%+v", c)
	}
}
