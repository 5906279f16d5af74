package loadgen_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/loadgen"
	"github.com/switchyard-dev/switchyard/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient starts a server in memory and returns a client of it.
func newClient(t *testing.T) *switchyard.Client {
	t.Helper()
	cfg := server.DefaultConfig()
	cfg.Memory, cfg.Listen = true, "127.0.0.1:0"
	s, err := server.New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client, err := switchyard.Dial(s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		stop()
		require.NoError(t, <-done)
	})
	return client
}

func requireNoQueues(t *testing.T, client *switchyard.Client) {
	t.Helper()
	resp, err := client.QueueService().ListQueues(t.Context(), &v1.ListQueuesRequest{})
	require.NoError(t, err)
	require.Empty(t, resp.GetQueues(), "the run left its queue behind")
}

func TestRun_everyScenarioAccountsForItsTasks(t *testing.T) {
	client := newClient(t)
	for _, scenario := range loadgen.Scenarios() {
		t.Run(string(scenario), func(t *testing.T) {
			run, err := loadgen.New(client, loadgen.Options{
				Scenario: scenario, Count: 250, Duration: time.Minute, Concurrency: 4, Batch: 100, Rate: 2000,
			})
			require.NoError(t, err)
			report, err := run.Start(t.Context())
			require.NoError(t, err)
			require.Equal(t, int64(250), report.Added)
			require.False(t, report.Interrupted)
			require.Zero(t, report.Redelivered)
			require.Positive(t, report.Rate())
			switch scenario {
			case loadgen.Add:
				require.Equal(t, int64(250), report.Add.Count)
			case loadgen.Batch:
				require.Equal(t, int64(3), report.Add.Count, "100 + 100 + 50")
			case loadgen.Drain:
				require.Equal(t, int64(250), report.Completed)
				require.Equal(t, int64(250), report.Tasks)
			case loadgen.Mixed, loadgen.Latency:
				require.Equal(t, int64(250), report.Completed)
				require.Equal(t, int64(250), report.Delivery.Count)
			}
			requireNoQueues(t, client)
		})
	}
}

func TestRun_endsEarlyWithWhatWasMeasured(t *testing.T) {
	client := newClient(t)
	for _, scenario := range []loadgen.Scenario{loadgen.Add, loadgen.Mixed} {
		run, err := loadgen.New(client, loadgen.Options{Scenario: scenario, Duration: time.Hour, Concurrency: 2})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for run.Added() < 20 {
				time.Sleep(time.Millisecond)
			}
		}()
		report, err := run.Start(ctx)
		require.NoError(t, err)
		require.True(t, report.Interrupted)
		require.GreaterOrEqual(t, report.Added, int64(20))
		requireNoQueues(t, client)
	}
}

func TestRun_stopsAtTheFirstRefusal(t *testing.T) {
	client := newClient(t)
	run, err := loadgen.New(client, loadgen.Options{Scenario: loadgen.Mixed, Duration: time.Hour, Concurrency: 2, PayloadBytes: 2 << 20})
	require.NoError(t, err)
	_, err = run.Start(t.Context())
	require.True(t, errors.Is(err, switchyard.ErrPayloadTooLarge), "got %v", err)
	requireNoQueues(t, client)
}

func TestOptions_refuseWhatMakesNoSense(t *testing.T) {
	for _, o := range []loadgen.Options{
		{}, {Scenario: "fast"}, {Scenario: loadgen.Add, Duration: -1}, {Scenario: loadgen.Add, Count: -1},
		{Scenario: loadgen.Add, Concurrency: loadgen.MaxConcurrency + 1}, {Scenario: loadgen.Add, PayloadBytes: 15},
		{Scenario: loadgen.Batch, Batch: loadgen.MaxBatch + 1}, {Scenario: loadgen.Latency, Rate: -1},
	} {
		_, err := loadgen.New(nil, o)
		require.Error(t, err, "%+v", o)
	}
}
