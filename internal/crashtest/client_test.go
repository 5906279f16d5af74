package crashtest

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

// client speaks the wire directly, one request at a time and without retries of
// its own, so that each record of the history is one request.
type client struct {
	name     string
	queue    string
	recorder *history.Recorder
	tasks    switchyardv1.TaskServiceClient
	queues   switchyardv1.QueueServiceClient
}

// callTimeout bounds every request; polls get it on top of their wait.
const callTimeout = 5 * time.Second

// dial connects to an address that may come and go.
func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	quick := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func newClient(conn *grpc.ClientConn, recorder *history.Recorder, queue, name string) *client {
	return &client{
		name: name, queue: queue, recorder: recorder,
		tasks:  switchyardv1.NewTaskServiceClient(conn),
		queues: switchyardv1.NewQueueServiceClient(conn),
	}
}

// outcomeOf says what an error of a request or of an item tells about its
// effect. Only codes by which the server refuses are taken as a no.
func outcomeOf(err error) history.Outcome {
	switch status.Code(err) {
	case codes.OK:
		return history.OK
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
		codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.ResourceExhausted:
		return history.Refused
	default:
		return history.Unknown
	}
}

// itemOutcome is outcomeOf for one item of a request that was answered.
func itemOutcome(item *switchyardv1.ItemError) (history.Outcome, string) {
	if item == nil {
		return history.OK, ""
	}
	if item.Reason == reason.TaskAlreadyCompleted {
		return history.Already, item.Reason
	}
	return outcomeOf(status.Error(codes.Code(item.Code), item.Message)), item.Reason
}

// newTask makes a task whose content tells its own checksum.
func newTask(size int) *switchyardv1.TaskSpec {
	id := uuid.Must(uuid.NewV7())
	payload := make([]byte, size)
	for i := 0; i < size; i += len(id) {
		copy(payload[i:], id[:])
	}
	return &switchyardv1.TaskSpec{Id: id.String(), Kind: "crash", Payload: payload, MaxAttempts: 1000}
}

func checksum(kind string, payload []byte) uint32 {
	sum := crc32.NewIEEE()
	sum.Write([]byte(kind))
	sum.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))))
	sum.Write(payload)
	return sum.Sum32() | 1 // 0 means "not taken"
}

// add sends one AddTasks request and returns the tasks whose fate is not known.
func (c *client) add(ctx context.Context, tasks []*switchyardv1.TaskSpec) (unknown []*switchyardv1.TaskSpec, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	records := make([]history.Record, len(tasks))
	start := c.recorder.Now()
	response, err := c.tasks.AddTasks(ctx, &switchyardv1.AddTasksRequest{Queue: c.queue, Tasks: tasks})
	end := c.recorder.Now()
	for i, task := range tasks {
		outcome, note := outcomeOf(err), reason.Of(err)
		if err == nil {
			result := response.Results[i]
			if outcome, note = itemOutcome(result.Error); outcome == history.OK && result.AlreadyAdded {
				outcome = history.Already
			}
		}
		if outcome == history.Unknown {
			unknown = append(unknown, task)
		}
		records[i] = history.Record{
			Op: history.Add, Outcome: outcome, Client: c.name, Task: task.Id, Start: start, End: end,
			Sum: checksum(task.Kind, task.Payload), Note: note,
		}
	}
	c.recorder.Record(records...)
	return unknown, err
}

// poll asks for tasks. lease 0 takes the tasks' own lease time.
func (c *client) poll(ctx context.Context, most int, wait, lease time.Duration) ([]*switchyardv1.LeasedTask, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
	defer cancel()
	request := &switchyardv1.PollTasksRequest{Queue: c.queue, Identity: c.name, MaxTasks: int32(most), Wait: durationpb.New(wait)}
	if lease > 0 {
		request.LeaseTime = durationpb.New(lease)
	}
	start := c.recorder.Now()
	response, err := c.tasks.PollTasks(ctx, request)
	end := c.recorder.Now()
	if err != nil {
		return nil, err
	}
	records := make([]history.Record, len(response.Tasks))
	for i, task := range response.Tasks {
		records[i] = history.Record{
			Op: history.Deliver, Outcome: history.OK, Client: c.name, Task: task.Id, Token: task.LeaseToken, Start: start, End: end,
			Deadline: task.LeaseDeadline.AsTime().UnixNano(), Attempt: task.Attempt, Sum: checksum(task.Kind, task.Payload),
		}
	}
	c.recorder.Record(records...)
	return response.Tasks, nil
}

// under records one request about leased tasks. send returns, for each task,
// the item's error and may fill in its record.
func (c *client) under(ctx context.Context, op history.Op, tasks []*switchyardv1.LeasedTask,
	send func(ctx context.Context, tokens [][]byte, records []history.Record) ([]*switchyardv1.ItemError, error)) error {
	if len(tasks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	records := make([]history.Record, len(tasks))
	tokens := make([][]byte, len(tasks))
	for i, task := range tasks {
		records[i] = history.Record{Op: op, Client: c.name, Task: task.Id, Token: task.LeaseToken}
		tokens[i] = task.LeaseToken
	}
	start := c.recorder.Now()
	items, err := send(ctx, tokens, records)
	end := c.recorder.Now()
	for i := range records {
		records[i].Start, records[i].End = start, end
		if err != nil {
			records[i].Outcome, records[i].Note = outcomeOf(err), reason.Of(err)
		} else {
			records[i].Outcome, records[i].Note = itemOutcome(items[i])
		}
		if op != history.Complete && records[i].Outcome == history.Already {
			records[i].Outcome = history.Refused // "it is completed" is a no to anything else
		}
		if records[i].Outcome != history.OK {
			records[i].Deadline, records[i].Dead = 0, false
		}
	}
	c.recorder.Record(records...)
	return err
}

func (c *client) complete(ctx context.Context, tasks []*switchyardv1.LeasedTask) error {
	return c.under(ctx, history.Complete, tasks, func(ctx context.Context, tokens [][]byte, _ []history.Record) ([]*switchyardv1.ItemError, error) {
		response, err := c.tasks.CompleteTasks(ctx, &switchyardv1.CompleteTasksRequest{Queue: c.queue, LeaseTokens: tokens})
		return itemErrors(response.GetResults()), err
	})
}

func (c *client) release(ctx context.Context, tasks []*switchyardv1.LeasedTask) error {
	return c.under(ctx, history.Release, tasks, func(ctx context.Context, tokens [][]byte, _ []history.Record) ([]*switchyardv1.ItemError, error) {
		response, err := c.tasks.ReleaseTasks(ctx, &switchyardv1.ReleaseTasksRequest{Queue: c.queue, LeaseTokens: tokens})
		return itemErrors(response.GetResults()), err
	})
}

func (c *client) fail(ctx context.Context, tasks []*switchyardv1.LeasedTask, retry time.Duration, forGood bool) error {
	return c.under(ctx, history.Fail, tasks, func(ctx context.Context, tokens [][]byte, records []history.Record) ([]*switchyardv1.ItemError, error) {
		request := &switchyardv1.FailTasksRequest{Queue: c.queue}
		for _, token := range tokens {
			request.Failures = append(request.Failures, &switchyardv1.FailTasksRequest_Failure{
				LeaseToken: token, Error: "on purpose", RetryDelay: durationpb.New(retry), NotRetryable: forGood})
		}
		response, err := c.tasks.FailTasks(ctx, request)
		items := make([]*switchyardv1.ItemError, len(response.GetResults()))
		for i, result := range response.GetResults() {
			items[i] = result.Error
			records[i].Dead = result.State == switchyardv1.TaskState_TASK_STATE_DEAD
			if result.RetryAt != nil {
				records[i].Deadline = result.RetryAt.AsTime().UnixNano()
			}
		}
		return items, err
	})
}

func (c *client) extend(ctx context.Context, tasks []*switchyardv1.LeasedTask, lease time.Duration) error {
	return c.under(ctx, history.Extend, tasks, func(ctx context.Context, tokens [][]byte, records []history.Record) ([]*switchyardv1.ItemError, error) {
		request := &switchyardv1.ExtendLeasesRequest{Queue: c.queue}
		for i, token := range tokens {
			records[i].LeaseTime = int64(lease)
			request.Extensions = append(request.Extensions, &switchyardv1.ExtendLeasesRequest_Extension{
				LeaseToken: token, LeaseTime: durationpb.New(lease)})
		}
		response, err := c.tasks.ExtendLeases(ctx, request)
		items := make([]*switchyardv1.ItemError, len(response.GetResults()))
		for i, result := range response.GetResults() {
			items[i] = result.Error
			if result.LeaseDeadline != nil {
				records[i].Deadline = result.LeaseDeadline.AsTime().UnixNano()
			}
		}
		return items, err
	})
}

func itemErrors(results []*switchyardv1.ItemResult) []*switchyardv1.ItemError {
	items := make([]*switchyardv1.ItemError, len(results))
	for i, result := range results {
		items[i] = result.Error
	}
	return items
}

// counts asks how many tasks the queue has.
func (c *client) counts(ctx context.Context) (*switchyardv1.QueueCounts, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := c.queues.DescribeQueue(ctx, &switchyardv1.DescribeQueueRequest{Queue: c.queue})
	if err != nil {
		return nil, err
	}
	return response.Counts, nil
}

// recordDead records every dead task as left in the queue and returns how many
// there are.
func (c *client) recordDead(ctx context.Context) (int, error) {
	n, token := 0, ""
	for {
		at := c.recorder.Now()
		page, err := c.deadPage(ctx, token)
		if err != nil {
			return n, err
		}
		for _, task := range page.Tasks {
			n++
			c.recorder.Record(history.Record{Op: history.Left, Outcome: history.OK, Client: c.name, Task: task.Id, Start: at, End: at, Note: "dead"})
		}
		if token = page.NextPageToken; token == "" {
			return n, nil
		}
	}
}

func (c *client) deadPage(ctx context.Context, token string) (*switchyardv1.ListDeadTasksResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.queues.ListDeadTasks(ctx, &switchyardv1.ListDeadTasksRequest{Queue: c.queue, PageSize: 1000, PageToken: token})
}
