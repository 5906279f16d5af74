package matchingrpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const (
	// CallTimeout bounds a call whose context has no deadline.
	CallTimeout = time.Minute
	// PollTimeout bounds a poll, and an offer, whose context has no deadline.
	PollTimeout = 5 * time.Minute
)

// Client reaches the partitions of another node. It is safe for concurrent use and
// does not own its connection.
type Client struct {
	v1.UnimplementedMatchingServiceServer
	client v1.MatchingServiceClient
}

// NewClient makes a client over a connection to a node's internal port.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{client: v1.NewMatchingServiceClient(conn)}
}

// call makes one call within a deadline and gives its error its reason back.
func call[Req, Resp any](ctx context.Context, timeout time.Duration, fn func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (resp Resp, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	resp, err = fn(ctx, req)
	if err != nil {
		var none Resp
		return none, reason.From(err)
	}
	return resp, nil
}

// PartitionAddTasks implements v1.MatchingServiceServer.
func (c *Client) PartitionAddTasks(ctx context.Context, req *v1.PartitionAddTasksRequest) (*v1.PartitionAddTasksResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionAddTasks, req)
}

// PartitionPollTasks implements v1.MatchingServiceServer.
func (c *Client) PartitionPollTasks(ctx context.Context, req *v1.PartitionPollTasksRequest) (*v1.PartitionPollTasksResponse, error) {
	return call(ctx, PollTimeout, c.client.PartitionPollTasks, req)
}

// PartitionCompleteTasks implements v1.MatchingServiceServer.
func (c *Client) PartitionCompleteTasks(ctx context.Context, req *v1.PartitionCompleteTasksRequest) (*v1.PartitionCompleteTasksResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionCompleteTasks, req)
}

// PartitionFailTasks implements v1.MatchingServiceServer.
func (c *Client) PartitionFailTasks(ctx context.Context, req *v1.PartitionFailTasksRequest) (*v1.PartitionFailTasksResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionFailTasks, req)
}

// PartitionExtendLeases implements v1.MatchingServiceServer.
func (c *Client) PartitionExtendLeases(ctx context.Context, req *v1.PartitionExtendLeasesRequest) (*v1.PartitionExtendLeasesResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionExtendLeases, req)
}

// PartitionReleaseTasks implements v1.MatchingServiceServer.
func (c *Client) PartitionReleaseTasks(ctx context.Context, req *v1.PartitionReleaseTasksRequest) (*v1.PartitionReleaseTasksResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionReleaseTasks, req)
}

// PartitionGetTask implements v1.MatchingServiceServer.
func (c *Client) PartitionGetTask(ctx context.Context, req *v1.PartitionGetTaskRequest) (*v1.PartitionGetTaskResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionGetTask, req)
}

// PartitionCancelTask implements v1.MatchingServiceServer.
func (c *Client) PartitionCancelTask(ctx context.Context, req *v1.PartitionCancelTaskRequest) (*v1.PartitionCancelTaskResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionCancelTask, req)
}

// OfferTasks implements v1.MatchingServiceServer.
func (c *Client) OfferTasks(ctx context.Context, req *v1.OfferTasksRequest) (*v1.OfferTasksResponse, error) {
	return call(ctx, PollTimeout, c.client.OfferTasks, req)
}

// CancelPoll implements v1.MatchingServiceServer.
func (c *Client) CancelPoll(ctx context.Context, req *v1.CancelPollRequest) (*v1.CancelPollResponse, error) {
	return call(ctx, CallTimeout, c.client.CancelPoll, req)
}

// CancelWorkerPolls implements v1.MatchingServiceServer.
func (c *Client) CancelWorkerPolls(ctx context.Context, req *v1.CancelWorkerPollsRequest) (*v1.CancelWorkerPollsResponse, error) {
	return call(ctx, CallTimeout, c.client.CancelWorkerPolls, req)
}

// ForceLoadPartition implements v1.MatchingServiceServer.
func (c *Client) ForceLoadPartition(ctx context.Context, req *v1.ForceLoadPartitionRequest) (*v1.ForceLoadPartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.ForceLoadPartition, req)
}

// ForceUnloadPartition implements v1.MatchingServiceServer.
func (c *Client) ForceUnloadPartition(ctx context.Context, req *v1.ForceUnloadPartitionRequest) (*v1.ForceUnloadPartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.ForceUnloadPartition, req)
}

// ConfigurePartition implements v1.MatchingServiceServer.
func (c *Client) ConfigurePartition(ctx context.Context, req *v1.ConfigurePartitionRequest) (*v1.ConfigurePartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.ConfigurePartition, req)
}

// PublishCounts implements v1.MatchingServiceServer.
func (c *Client) PublishCounts(ctx context.Context, req *v1.PublishCountsRequest) (*v1.PublishCountsResponse, error) {
	return call(ctx, CallTimeout, c.client.PublishCounts, req)
}

// DropPartition implements v1.MatchingServiceServer.
func (c *Client) DropPartition(ctx context.Context, req *v1.DropPartitionRequest) (*v1.DropPartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.DropPartition, req)
}

// DescribePartition implements v1.MatchingServiceServer.
func (c *Client) DescribePartition(ctx context.Context, req *v1.DescribePartitionRequest) (*v1.DescribePartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.DescribePartition, req)
}

// PurgePartition implements v1.MatchingServiceServer.
func (c *Client) PurgePartition(ctx context.Context, req *v1.PurgePartitionRequest) (*v1.PurgePartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.PurgePartition, req)
}

// ListPartitionDeadTasks implements v1.MatchingServiceServer.
func (c *Client) ListPartitionDeadTasks(ctx context.Context, req *v1.ListPartitionDeadTasksRequest) (*v1.ListPartitionDeadTasksResponse, error) {
	return call(ctx, CallTimeout, c.client.ListPartitionDeadTasks, req)
}

// RedrivePartition implements v1.MatchingServiceServer.
func (c *Client) RedrivePartition(ctx context.Context, req *v1.RedrivePartitionRequest) (*v1.RedrivePartitionResponse, error) {
	return call(ctx, CallTimeout, c.client.RedrivePartition, req)
}

// PartitionCall implements v1.MatchingServiceServer.
func (c *Client) PartitionCall(ctx context.Context, req *v1.PartitionCallRequest) (*v1.PartitionCallResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionCall, req)
}

// PartitionPollCalls implements v1.MatchingServiceServer.
func (c *Client) PartitionPollCalls(ctx context.Context, req *v1.PartitionPollCallsRequest) (*v1.PartitionPollCallsResponse, error) {
	return call(ctx, PollTimeout, c.client.PartitionPollCalls, req)
}

// PartitionAnswerCalls implements v1.MatchingServiceServer.
func (c *Client) PartitionAnswerCalls(ctx context.Context, req *v1.PartitionAnswerCallsRequest) (*v1.PartitionAnswerCallsResponse, error) {
	return call(ctx, CallTimeout, c.client.PartitionAnswerCalls, req)
}
