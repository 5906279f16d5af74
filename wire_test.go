package switchyard

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// marshal encodes v as gRPC does.
func marshal(t testing.TB, v any) []byte {
	t.Helper()
	out, err := newCodec().Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Free()
	return out.Materialize()
}

func unmarshal(data []byte, v any) error {
	return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, v)
}

// specOf is a task as the generated code has it.
func specOf(task Task, id string) *v1.TaskSpec {
	spec := &v1.TaskSpec{
		Id: id, Kind: task.Kind, Payload: task.Payload, Headers: task.Headers,
		TimeToLive: durationProto(task.TTL), MaxAttempts: int32(task.MaxAttempts),
		Retry: task.Retry.proto(), LeaseTime: durationProto(task.LeaseTime),
		Priority: int32(task.Priority), FairnessKey: task.FairnessKey, FairnessWeight: float32(task.FairnessWeight),
	}
	if at := task.runAt(); !at.IsZero() {
		spec.RunAt = timestamppb.New(at)
	}
	return spec
}

func checkAddRequest(t *testing.T, tasks ...Task) {
	t.Helper()
	want := &v1.AddTasksRequest{Namespace: "default", Queue: "emails"}
	request := addRequest{prefix: appendQueuePrefix(nil, "default", "emails")}
	for _, task := range tasks {
		want.Tasks = append(want.Tasks, specOf(task, task.ID))
		call := newAddCall(1)
		var err error
		if call.encoded, err = appendTask(call.encoded, &task, task.ID); err != nil {
			t.Fatal(err)
		}
		request.calls = append(request.calls, call)
	}
	got := new(v1.AddTasksRequest)
	if err := proto.Unmarshal(marshal(t, &request), got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("encoded\n%v\nwant\n%v", got, want)
	}
}

func TestAddRequest_isWhatTheGeneratedCodeReads(t *testing.T) {
	checkAddRequest(t,
		Task{ID: "a", Kind: "k"},
		Task{},
		Task{
			ID: NewID(), Kind: "welcome", Payload: []byte("payload"),
			Headers: map[string]string{"a": "1", "b": "", "": "x"},
			RunAt:   time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC), TTL: 1500 * time.Millisecond,
			MaxAttempts: 7, Retry: &RetryPolicy{InitialBackoff: time.Second, Multiplier: 1.5, Jitter: NoJitter},
			LeaseTime: time.Minute, Priority: 1, FairnessKey: "acme", FairnessWeight: 2.5,
		},
		Task{Kind: "old", RunAt: time.Unix(0, 0), TTL: -time.Nanosecond, MaxAttempts: -3, LeaseTime: -1500 * time.Millisecond, Priority: -2, FairnessWeight: -1},
		Task{Kind: "before 1970", RunAt: time.Unix(-5, 999)},
		Task{Kind: "empty retry", Retry: &RetryPolicy{}, Payload: bytes.Repeat([]byte("x"), 100_000)},
	)
}

func FuzzAddRequest(f *testing.F) {
	f.Add("id", "kind", []byte("payload"), "name", "value", int64(1), int64(2), 3, int64(4), 0.5)
	f.Fuzz(func(t *testing.T, id, kind string, payload []byte, name, value string, runAt, ttl int64, attempts int, lease int64, jitter float64) {
		task := Task{
			ID: id, Kind: kind, Payload: payload, Headers: map[string]string{name: value},
			TTL: time.Duration(ttl), MaxAttempts: attempts, LeaseTime: time.Duration(lease),
			Retry: &RetryPolicy{Jitter: jitter},
		}
		if runAt != 0 {
			task.RunAt = time.Unix(0, runAt)
		}
		if checkTask(&task, id) != nil || jitter != jitter {
			t.Skip()
		}
		checkAddRequest(t, task)
	})
}

func TestAppendTask_refusesWhatWouldSpoilASharedRequest(t *testing.T) {
	for name, c := range map[string]struct {
		task   Task
		reason string
	}{
		"id":       {Task{ID: "\xff", Kind: "k"}, reason.InvalidTaskID},
		"kind":     {Task{Kind: "\xff"}, reason.InvalidKind},
		"header":   {Task{Kind: "k", Headers: map[string]string{"a": "\xff"}}, reason.InvalidHeader},
		"name":     {Task{Kind: "k", Headers: map[string]string{"\xff": "a"}}, reason.InvalidHeader},
		"attempts": {Task{Kind: "k", MaxAttempts: 1 << 40}, reason.InvalidMaxAttempts},
		"priority": {Task{Kind: "k", Priority: 1 << 40}, reason.InvalidPriority},
		"fairness": {Task{Kind: "k", FairnessKey: "\xff"}, reason.InvalidFairness},
	} {
		before := []byte("before")
		after, err := appendTask(before, &c.task, c.task.ID)
		if Reason(err) != c.reason {
			t.Errorf("%s: error %v, want %s", name, err, c.reason)
		}
		if string(after) != "before" {
			t.Errorf("%s: the buffer was changed to %q", name, after)
		}
	}
}

func TestAddResponse_handsResultsToTheirCalls(t *testing.T) {
	response := &v1.AddTasksResponse{Results: []*v1.AddTasksResponse_Result{
		{Id: "1"},
		{Id: "2", AlreadyAdded: true},
		{Error: &v1.ItemError{Code: int32(codes.InvalidArgument), Reason: reason.InvalidKind, Message: "no"}},
		{Id: "4"},
	}}
	data := marshal(t, response)
	calls := []*addCall{newAddCall(1), newAddCall(2), newAddCall(0), newAddCall(1)}
	if err := unmarshal(data, &addResponse{calls}); err != nil {
		t.Fatal(err)
	}
	if o := calls[0].outcomes[0]; o.alreadyAdded || o.err != nil {
		t.Errorf("first: %+v", o)
	}
	if o := calls[1].outcomes[0]; !o.alreadyAdded || o.err != nil {
		t.Errorf("second: %+v", o)
	}
	if o := calls[1].outcomes[1]; Reason(o.err) != reason.InvalidKind {
		t.Errorf("third: %+v", o)
	}
	for _, calls := range [][]*addCall{{newAddCall(3)}, {newAddCall(5)}, {newAddCall(2), newAddCall(3)}, {}} {
		if err := unmarshal(data, &addResponse{calls}); !errors.Is(err, errResultCount) {
			t.Errorf("%d calls: error %v, want one about the number of results", len(calls), err)
		}
	}
}

func TestPollResponse_isWhatTheGeneratedCodeWrites(t *testing.T) {
	now := time.Unix(1_900_000_000, 5).UTC()
	for name, size := range map[string]int{"small": 10, "large": wholePollBytes} {
		t.Run(name, func(t *testing.T) {
			message := &v1.PollTasksResponse{
				ServerTime: timestamppb.New(now),
				Tasks: []*v1.LeasedTask{
					{
						Id: "id", Kind: "kind", Payload: bytes.Repeat([]byte("x"), size), Headers: map[string]string{"a": "1", "b": ""},
						Attempt: 2, MaxAttempts: 25, AddedAt: timestamppb.New(now.Add(-time.Hour)),
						LeaseDeadline: timestamppb.New(now.Add(30 * time.Second)), LeaseToken: []byte("token"), LastError: "oops", Priority: 2, FairnessKey: "acme",
					},
					{Kind: "bare", LeaseDeadline: timestamppb.New(now)},
				},
			}
			var response pollResponse
			data := marshal(t, message)
			if err := unmarshal(data, &response); err != nil {
				t.Fatal(err)
			}
			clear(data) // gRPC uses the buffer again
			if len(response.jobs) != 2 {
				t.Fatalf("%d jobs, want 2", len(response.jobs))
			}
			job, want := &response.jobs[0], message.Tasks[0]
			if job.ID != want.Id || job.Kind != want.Kind || !bytes.Equal(job.Payload, want.Payload) ||
				len(job.Headers) != 2 || job.Headers["a"] != "1" || job.Attempt != 2 || job.MaxAttempts != 25 ||
				!job.AddedAt.Equal(want.AddedAt.AsTime()) || string(job.token) != "token" || job.LastError != "oops" || job.Priority != 2 || job.FairnessKey != "acme" {
				t.Errorf("job %+v, want %v", job, want)
			}
			if response.left[0] != 30*time.Second || response.left[1] != 0 {
				t.Errorf("left of the leases: %v", response.left)
			}
			if cap(job.Payload) != len(job.Payload) {
				t.Error("appending to a payload would write over the rest of the message")
			}
		})
	}
}

func FuzzDecode_neverPanics(f *testing.F) {
	message, err := proto.Marshal(&v1.PollTasksResponse{Tasks: []*v1.LeasedTask{{
		Id: "id", Headers: map[string]string{"a": "b"}, AddedAt: timestamppb.Now(), LeaseDeadline: timestamppb.Now()}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message)
	f.Fuzz(func(t *testing.T, data []byte) {
		response := pollResponse{now: time.Now}
		_ = unmarshal(data, &response)
		_ = unmarshal(data, &addResponse{[]*addCall{newAddCall(1), newAddCall(2)}})
		_ = unmarshal(data, &itemsResponse{want: 2})
		if generated := new(v1.PollTasksResponse); proto.Unmarshal(data, generated) == nil && len(response.jobs) > len(generated.Tasks) {
			t.Fatalf("%d jobs, the generated code sees %d", len(response.jobs), len(generated.Tasks))
		}
	})
}

func TestTokensRequest_isWhatTheGeneratedCodeReads(t *testing.T) {
	request := &tokensRequest{
		prefix: appendQueuePrefix(nil, "default", "emails"),
		acks:   []ack{{token: []byte("one")}, {token: bytes.Repeat([]byte("x"), 300)}},
	}
	want := &v1.CompleteTasksRequest{Namespace: "default", Queue: "emails", LeaseTokens: [][]byte{request.acks[0].token, request.acks[1].token}}
	got := new(v1.CompleteTasksRequest)
	if err := proto.Unmarshal(marshal(t, request), got); err != nil || !proto.Equal(got, want) {
		t.Errorf("encoded %v (%v), want %v", got, err, want)
	}
	released := new(v1.ReleaseTasksRequest)
	if err := proto.Unmarshal(marshal(t, request), released); err != nil || len(released.LeaseTokens) != 2 || released.Queue != "emails" {
		t.Errorf("as a release: %v (%v)", released, err)
	}
}

func TestItemsResponse_knowsWhichItemFailed(t *testing.T) {
	data := marshal(t, &v1.CompleteTasksResponse{Results: []*v1.ItemResult{{}, {Error: &v1.ItemError{Reason: reason.LeaseLost}}, {}}})
	response := itemsResponse{want: 3}
	if err := unmarshal(data, &response); err != nil {
		t.Fatal(err)
	}
	if len(response.errs) != 3 || response.errs[0] != nil || !errors.Is(response.errs[1], ErrLeaseLost) || response.errs[2] != nil {
		t.Errorf("errors %v", response.errs)
	}
	for _, want := range []int{2, 4} {
		if err := unmarshal(data, &itemsResponse{want: want}); !errors.Is(err, errResultCount) {
			t.Errorf("for %d items: error %v", want, err)
		}
	}
	fine := itemsResponse{want: 2}
	if err := unmarshal(marshal(t, &v1.CompleteTasksResponse{Results: []*v1.ItemResult{{}, {}}}), &fine); err != nil || fine.errs != nil {
		t.Errorf("all well: %v, %v", fine.errs, err)
	}
}

func TestTaskStates_haveTheNumbersOfTheWire(t *testing.T) {
	for number, name := range v1.TaskState_name {
		state := taskStateOf(v1.TaskState(number))
		want := map[string]string{"TASK_STATE_UNSPECIFIED": "unknown", "TASK_STATE_DELAYED": "delayed", "TASK_STATE_READY": "ready",
			"TASK_STATE_LEASED": "leased", "TASK_STATE_RETRYING": "retrying", "TASK_STATE_DEAD": "dead",
			"TASK_STATE_COMPLETED": "completed", "TASK_STATE_CANCELLED": "cancelled", "TASK_STATE_EXPIRED": "expired"}[name]
		if state.String() != want {
			t.Errorf("%s is %q, want %q", name, state, want)
		}
	}
	if s := taskStateOf(99); s != TaskUnknown || TaskState(99).String() != "unknown" {
		t.Errorf("a state of the future is %v", s)
	}
}

func TestDurations_survive(t *testing.T) {
	for _, d := range []time.Duration{0, 1, -1, time.Second, -time.Second, 1500 * time.Millisecond, -1500 * time.Millisecond, 1<<63 - 1, -1 << 63} {
		s := durationSpan(d)
		if got := (&durationpb.Duration{Seconds: s.seconds, Nanos: int32(s.nanos)}).AsDuration(); got != d {
			t.Errorf("%v became %v", d, got)
		}
	}
}
