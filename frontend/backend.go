package frontend

import (
	"context"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Backend does what the API promises. Requests that reach it are checked: names,
// ids, durations and sizes are within the limits, batches are neither empty nor
// too large and have no nil items, the namespace is set, task ids are set and in
// lower case, polls have a number and a wait and calls a timeout, lists have a page size. Fields
// that fall back to the queue's configuration may still be empty.
//
// A backend returns one result per item, in order, and errors with a reason of
// package api/reason. It must be safe for concurrent use and must return soon
// after ctx is done. It owns the request: payloads may be kept without a copy.
type Backend interface {
	AddTasks(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error)
	PollTasks(context.Context, *v1.PollTasksRequest) (*v1.PollTasksResponse, error)
	CompleteTasks(context.Context, *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error)
	FailTasks(context.Context, *v1.FailTasksRequest) (*v1.FailTasksResponse, error)
	ExtendLeases(context.Context, *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error)
	ReleaseTasks(context.Context, *v1.ReleaseTasksRequest) (*v1.ReleaseTasksResponse, error)
	GetTask(context.Context, *v1.GetTaskRequest) (*v1.GetTaskResponse, error)
	CancelTask(context.Context, *v1.CancelTaskRequest) (*v1.CancelTaskResponse, error)

	Call(context.Context, *v1.CallRequest) (*v1.CallResponse, error)
	PollCalls(context.Context, *v1.PollCallsRequest) (*v1.PollCallsResponse, error)
	AnswerCalls(context.Context, *v1.AnswerCallsRequest) (*v1.AnswerCallsResponse, error)

	CreateQueue(context.Context, *v1.CreateQueueRequest) (*v1.CreateQueueResponse, error)
	UpdateQueue(context.Context, *v1.UpdateQueueRequest) (*v1.UpdateQueueResponse, error)
	DeleteQueue(context.Context, *v1.DeleteQueueRequest) (*v1.DeleteQueueResponse, error)
	ListQueues(context.Context, *v1.ListQueuesRequest) (*v1.ListQueuesResponse, error)
	DescribeQueue(context.Context, *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error)
	PauseQueue(context.Context, *v1.PauseQueueRequest) (*v1.PauseQueueResponse, error)
	ResumeQueue(context.Context, *v1.ResumeQueueRequest) (*v1.ResumeQueueResponse, error)
	PurgeQueue(context.Context, *v1.PurgeQueueRequest) (*v1.PurgeQueueResponse, error)
	ListDeadTasks(context.Context, *v1.ListDeadTasksRequest) (*v1.ListDeadTasksResponse, error)
	RedriveDeadTasks(context.Context, *v1.RedriveDeadTasksRequest) (*v1.RedriveDeadTasksResponse, error)
	EndWorkerPolls(context.Context, *v1.EndWorkerPollsRequest) (*v1.EndWorkerPollsResponse, error)
}
