package switchyard

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func (f *fakeServer) GetTask(ctx context.Context, r *v1.GetTaskRequest) (*v1.GetTaskResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	task, err := f.find(r.Queue, r.Id)
	if err != nil {
		return nil, err
	}
	return &v1.GetTaskResponse{Task: task.info(r.Namespace, r.Queue)}, nil
}

func (task *fakeTask) info(namespace, queue string) *v1.Task {
	return &v1.Task{
		Id: task.spec.Id, Namespace: namespace, Queue: queue, Kind: task.spec.Kind, Payload: task.spec.Payload,
		Headers: task.spec.Headers, State: task.state, Attempt: task.attempt, MaxAttempts: task.maxAttempts(),
		AddedAt: timestamppb.New(task.added), LastError: task.lastErr, WorkerIdentity: task.worker,
	}
}

func (f *fakeServer) find(queue, id string) (*fakeTask, error) {
	q, err := f.queue(queue, false)
	if err != nil {
		return nil, err
	}
	if task := q.tasks[id]; task != nil {
		return task, nil
	}
	return nil, reason.New(codes.NotFound, reason.TaskNotFound, nil, "task %s is not known", id)
}

func (f *fakeServer) CancelTask(ctx context.Context, r *v1.CancelTaskRequest) (*v1.CancelTaskResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	task, err := f.find(r.Queue, r.Id)
	switch {
	case err != nil:
		return nil, err
	case task.state == v1.TaskState_TASK_STATE_COMPLETED:
		return nil, reason.New(codes.FailedPrecondition, reason.TaskAlreadyCompleted, nil, "task %s is completed", r.Id)
	case task.state == v1.TaskState_TASK_STATE_CANCELLED:
		return nil, reason.New(codes.FailedPrecondition, reason.TaskCancelled, nil, "task %s is cancelled", r.Id)
	}
	was := task.state
	task.state = v1.TaskState_TASK_STATE_CANCELLED
	f.queues[r.Queue].remove(task)
	return &v1.CancelTaskResponse{State: was}, nil
}

func (f *fakeServer) CreateQueue(ctx context.Context, r *v1.CreateQueueRequest) (*v1.CreateQueueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queues[r.Queue] != nil {
		return nil, reason.New(codes.AlreadyExists, reason.QueueAlreadyExists, nil, "queue %q exists", r.Queue)
	}
	q, _ := f.queue(r.Queue, true)
	q.config = r.Config
	return &v1.CreateQueueResponse{Queue: q.info(r.Namespace, r.Queue)}, nil
}

func (q *fakeQueue) info(namespace, name string) *v1.Queue {
	return &v1.Queue{Namespace: namespace, Name: name, Config: q.config, Paused: q.paused}
}

func (f *fakeServer) DescribeQueue(ctx context.Context, r *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q, err := f.queue(r.Queue, false)
	if err != nil {
		return nil, err
	}
	return &v1.DescribeQueueResponse{Queue: q.info(r.Namespace, r.Queue)}, nil
}

func (f *fakeServer) DeleteQueue(ctx context.Context, r *v1.DeleteQueueRequest) (*v1.DeleteQueueResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.queue(r.Queue, false); err != nil {
		return nil, err
	}
	delete(f.queues, r.Queue)
	return &v1.DeleteQueueResponse{}, nil
}
