package frontend

import (
	"context"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// CreateQueue implements v1.QueueServiceServer.
func (f *Frontend) CreateQueue(ctx context.Context, req *v1.CreateQueueRequest) (*v1.CreateQueueResponse, error) {
	return serve(ctx, f, mCreateQueue, req, f.backend.CreateQueue, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		return f.limits.checkConfig(req.Config)
	})
}

// UpdateQueue implements v1.QueueServiceServer.
func (f *Frontend) UpdateQueue(ctx context.Context, req *v1.UpdateQueueRequest) (*v1.UpdateQueueResponse, error) {
	return serve(ctx, f, mUpdateQueue, req, f.backend.UpdateQueue, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		if err := f.limits.checkConfig(req.Config); err != nil {
			return err
		}
		return checkMask(req.UpdateMask.GetPaths())
	})
}

// DeleteQueue implements v1.QueueServiceServer.
func (f *Frontend) DeleteQueue(ctx context.Context, req *v1.DeleteQueueRequest) (*v1.DeleteQueueResponse, error) {
	return serve(ctx, f, mDeleteQueue, req, f.backend.DeleteQueue, func() error {
		return f.limits.address(&req.Namespace, req.Queue)
	})
}

// ListQueues implements v1.QueueServiceServer.
func (f *Frontend) ListQueues(ctx context.Context, req *v1.ListQueuesRequest) (*v1.ListQueuesResponse, error) {
	return serve(ctx, f, mListQueues, req, f.backend.ListQueues, func() error {
		if err := f.limits.namespace(&req.Namespace); err != nil {
			return err
		}
		return f.limits.page(&req.PageSize, req.PageToken)
	})
}

// DescribeQueue implements v1.QueueServiceServer.
func (f *Frontend) DescribeQueue(ctx context.Context, req *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error) {
	return serve(ctx, f, mDescribeQueue, req, f.backend.DescribeQueue, func() error {
		return f.limits.address(&req.Namespace, req.Queue)
	})
}

// PauseQueue implements v1.QueueServiceServer.
func (f *Frontend) PauseQueue(ctx context.Context, req *v1.PauseQueueRequest) (*v1.PauseQueueResponse, error) {
	return serve(ctx, f, mPauseQueue, req, f.backend.PauseQueue, func() error {
		return f.limits.address(&req.Namespace, req.Queue)
	})
}

// ResumeQueue implements v1.QueueServiceServer.
func (f *Frontend) ResumeQueue(ctx context.Context, req *v1.ResumeQueueRequest) (*v1.ResumeQueueResponse, error) {
	return serve(ctx, f, mResumeQueue, req, f.backend.ResumeQueue, func() error {
		return f.limits.address(&req.Namespace, req.Queue)
	})
}

// PurgeQueue implements v1.QueueServiceServer.
func (f *Frontend) PurgeQueue(ctx context.Context, req *v1.PurgeQueueRequest) (*v1.PurgeQueueResponse, error) {
	return serve(ctx, f, mPurgeQueue, req, f.backend.PurgeQueue, func() error {
		return f.limits.address(&req.Namespace, req.Queue)
	})
}

// ListDeadTasks implements v1.QueueServiceServer.
func (f *Frontend) ListDeadTasks(ctx context.Context, req *v1.ListDeadTasksRequest) (*v1.ListDeadTasksResponse, error) {
	return serve(ctx, f, mListDeadTasks, req, f.backend.ListDeadTasks, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		return f.limits.page(&req.PageSize, req.PageToken)
	})
}

// RedriveDeadTasks implements v1.QueueServiceServer.
func (f *Frontend) RedriveDeadTasks(ctx context.Context, req *v1.RedriveDeadTasksRequest) (*v1.RedriveDeadTasksResponse, error) {
	return serve(ctx, f, mRedriveDeadTasks, req, f.backend.RedriveDeadTasks, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		if len(req.Ids) > 0 {
			if err := f.limits.checkBatch("ids", len(req.Ids)); err != nil {
				return err
			}
		}
		for i := range req.Ids {
			if err := checkID("ids", &req.Ids[i]); err != nil {
				return err
			}
		}
		if req.Limit < 0 {
			return invalid(reason.InvalidLimit, "limit", "limit is %d; it must not be negative, and 0 means all", req.Limit)
		}
		return nil
	})
}

// EndWorkerPolls implements v1.QueueServiceServer.
func (f *Frontend) EndWorkerPolls(ctx context.Context, req *v1.EndWorkerPollsRequest) (*v1.EndWorkerPollsResponse, error) {
	return serve(ctx, f, mEndWorkerPolls, req, f.backend.EndWorkerPolls, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		if req.Identity == "" {
			return invalid(reason.InvalidIdentity, "identity", "the identity is missing: say whose polls are to end")
		}
		return f.limits.checkIdentity(req.Identity)
	})
}
