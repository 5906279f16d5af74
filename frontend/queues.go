package frontend

import (
	"context"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// CreateQueue implements v1.QueueServiceServer.
func (f *Frontend) CreateQueue(ctx context.Context, req *v1.CreateQueueRequest) (resp *v1.CreateQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mCreateQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	if err := f.limits.checkConfig(req.Config); err != nil {
		return nil, err
	}
	return f.backend.CreateQueue(ctx, req)
}

// UpdateQueue implements v1.QueueServiceServer.
func (f *Frontend) UpdateQueue(ctx context.Context, req *v1.UpdateQueueRequest) (resp *v1.UpdateQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mUpdateQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	if err := f.limits.checkConfig(req.Config); err != nil {
		return nil, err
	}
	if err := checkMask(req.UpdateMask.GetPaths()); err != nil {
		return nil, err
	}
	return f.backend.UpdateQueue(ctx, req)
}

// DeleteQueue implements v1.QueueServiceServer.
func (f *Frontend) DeleteQueue(ctx context.Context, req *v1.DeleteQueueRequest) (resp *v1.DeleteQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mDeleteQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	return f.backend.DeleteQueue(ctx, req)
}

// ListQueues implements v1.QueueServiceServer.
func (f *Frontend) ListQueues(ctx context.Context, req *v1.ListQueuesRequest) (resp *v1.ListQueuesResponse, err error) {
	ctx, c, err := f.begin(ctx, mListQueues)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if req.Namespace == "" {
		req.Namespace = DefaultNamespace
	} else if err := f.limits.checkName(reason.InvalidNamespace, "namespace", req.Namespace); err != nil {
		return nil, err
	}
	if err := f.limits.page(&req.PageSize, req.PageToken); err != nil {
		return nil, err
	}
	return f.backend.ListQueues(ctx, req)
}

// DescribeQueue implements v1.QueueServiceServer.
func (f *Frontend) DescribeQueue(ctx context.Context, req *v1.DescribeQueueRequest) (resp *v1.DescribeQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mDescribeQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	return f.backend.DescribeQueue(ctx, req)
}

// PauseQueue implements v1.QueueServiceServer.
func (f *Frontend) PauseQueue(ctx context.Context, req *v1.PauseQueueRequest) (resp *v1.PauseQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mPauseQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	return f.backend.PauseQueue(ctx, req)
}

// ResumeQueue implements v1.QueueServiceServer.
func (f *Frontend) ResumeQueue(ctx context.Context, req *v1.ResumeQueueRequest) (resp *v1.ResumeQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mResumeQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	return f.backend.ResumeQueue(ctx, req)
}

// PurgeQueue implements v1.QueueServiceServer.
func (f *Frontend) PurgeQueue(ctx context.Context, req *v1.PurgeQueueRequest) (resp *v1.PurgeQueueResponse, err error) {
	ctx, c, err := f.begin(ctx, mPurgeQueue)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	return f.backend.PurgeQueue(ctx, req)
}

// ListDeadTasks implements v1.QueueServiceServer.
func (f *Frontend) ListDeadTasks(ctx context.Context, req *v1.ListDeadTasksRequest) (resp *v1.ListDeadTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mListDeadTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	if err := f.limits.page(&req.PageSize, req.PageToken); err != nil {
		return nil, err
	}
	return f.backend.ListDeadTasks(ctx, req)
}

// RedriveDeadTasks implements v1.QueueServiceServer.
func (f *Frontend) RedriveDeadTasks(ctx context.Context, req *v1.RedriveDeadTasksRequest) (resp *v1.RedriveDeadTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mRedriveDeadTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
		return nil, err
	}
	if len(req.Ids) > 0 {
		if err := f.limits.checkBatch("ids", len(req.Ids)); err != nil {
			return nil, err
		}
	}
	for i := range req.Ids {
		if err := checkID("ids", &req.Ids[i]); err != nil {
			return nil, err
		}
	}
	if req.Limit < 0 {
		return nil, invalid(reason.InvalidLimit, "limit", "limit is %d; it must not be negative, and 0 means all", req.Limit)
	}
	return f.backend.RedriveDeadTasks(ctx, req)
}
