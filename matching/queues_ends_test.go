package matching

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// forgetful is a way to an owner on which the first answer about each kind of end is lost.
type forgetful struct {
	*Engine
	lost map[string]bool
}

func (f forgetful) lose(kind string) error {
	if f.lost[kind] {
		return nil
	}
	f.lost[kind] = true
	return reason.New(codes.Unavailable, reason.OutcomeUnknown, nil, "the answer is lost")
}

func (f forgetful) PartitionCompleteTasks(ctx context.Context, req *v1.PartitionCompleteTasksRequest) (*v1.PartitionCompleteTasksResponse, error) {
	resp, err := f.Engine.PartitionCompleteTasks(ctx, req)
	if lost := f.lose("complete"); err == nil && lost != nil {
		return nil, lost
	}
	return resp, err
}

func (f forgetful) PartitionReleaseTasks(ctx context.Context, req *v1.PartitionReleaseTasksRequest) (*v1.PartitionReleaseTasksResponse, error) {
	resp, err := f.Engine.PartitionReleaseTasks(ctx, req)
	if lost := f.lose("release"); err == nil && lost != nil {
		return nil, lost
	}
	return resp, err
}

func (f forgetful) PartitionFailTasks(ctx context.Context, req *v1.PartitionFailTasksRequest) (*v1.PartitionFailTasksResponse, error) {
	resp, err := f.Engine.PartitionFailTasks(ctx, req)
	if lost := f.lose("fail"); err == nil && lost != nil {
		return nil, lost
	}
	return resp, err
}

func (f forgetful) Owner(PartitionID) (v1.MatchingServiceServer, bool, error) { return f, true, nil }

// TestQueues_anEndThatGotThroughUnheardIsNoRefusal: a node repeats the end of a lease of which
// it does not know whether it got through. When it did, the repetition finds no lease, which
// does not mean that nothing was done.
func TestQueues_anEndThatGotThroughUnheardIsNoRefusal(t *testing.T) {
	way := &forgetful{lost: map[string]bool{}}
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Peers = way })
	way.Engine = f.Engine
	f.makeQueue("q", 1)
	f.addTo("q", 0, spec("1"), spec("2"), spec("3"), spec("4"))
	resp, err := f.PollTasks(f.ctx, pollRequest("q", 4, 10*time.Second))
	require.NoError(t, err)
	tasks := resp.GetTasks()
	require.Len(t, tasks, 4)
	completed, err := f.CompleteTasks(f.ctx, &v1.CompleteTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{tasks[0].GetLeaseToken()}})
	require.NoError(t, err)
	require.Equal(t, reason.TaskAlreadyCompleted, completed.GetResults()[0].GetError().GetReason())

	release := func() string {
		released, err := f.ReleaseTasks(f.ctx, &v1.ReleaseTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{tasks[1].GetLeaseToken()}})
		require.NoError(t, err)
		return released.GetResults()[0].GetError().GetReason()
	}
	require.Equal(t, reason.OutcomeUnknown, release())
	// When nothing is repeated, a refusal is one.
	require.Equal(t, reason.LeaseLost, release())

	failed, err := f.FailTasks(f.ctx, &v1.FailTasksRequest{Namespace: "default", Queue: "q", Failures: []*v1.FailTasksRequest_Failure{
		{LeaseToken: tasks[2].GetLeaseToken(), Error: "e"}, {LeaseToken: tasks[3].GetLeaseToken(), Error: "e", NotRetryable: true},
	}})
	require.NoError(t, err)
	for _, r := range failed.GetResults() {
		require.Equal(t, reason.OutcomeUnknown, r.GetError().GetReason())
	}
}
