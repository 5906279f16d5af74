package frontend_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const someID = "01968d5c-1f2a-7b3c-8d4e-5f6a7b8c9d0e"

func ns(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// Each bad task fails alone, with its reason, between two right ones.
func TestAddTasks_badTaskFailsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		task *v1.TaskSpec
		want string
	}{
		"nil task":            {nil, reason.InvalidRequest},
		"no kind":             {&v1.TaskSpec{}, reason.InvalidKind},
		"long kind":           {&v1.TaskSpec{Kind: strings.Repeat("k", 256)}, reason.InvalidKind},
		"kind with newline":   {&v1.TaskSpec{Kind: "a\nb"}, reason.InvalidKind},
		"id not a uuid":       {&v1.TaskSpec{Kind: "k", Id: "17"}, reason.InvalidTaskID},
		"id in braces":        {&v1.TaskSpec{Kind: "k", Id: "{" + someID + "}"}, reason.InvalidTaskID},
		"id of zeros":         {&v1.TaskSpec{Kind: "k", Id: "00000000-0000-0000-0000-000000000000"}, reason.InvalidTaskID},
		"id with a g":         {&v1.TaskSpec{Kind: "k", Id: strings.Replace(someID, "d", "g", 1)}, reason.InvalidTaskID},
		"payload too large":   {&v1.TaskSpec{Kind: "k", Payload: make([]byte, 1<<20+1)}, reason.PayloadTooLarge},
		"header without name": {&v1.TaskSpec{Kind: "k", Headers: map[string]string{"": "v"}}, reason.InvalidHeader},
		"header with NUL":     {&v1.TaskSpec{Kind: "k", Headers: map[string]string{"a\x00": "v"}}, reason.InvalidHeader},
		"headers too large":   {&v1.TaskSpec{Kind: "k", Headers: map[string]string{"a": strings.Repeat("v", 16<<10)}}, reason.InvalidHeader},
		"too many headers":    {&v1.TaskSpec{Kind: "k", Headers: manyHeaders(65)}, reason.InvalidHeader},
		"run_at too far":      {&v1.TaskSpec{Kind: "k", RunAt: timestamppb.New(time.Now().AddDate(1, 0, 2))}, reason.InvalidTime},
		"run_at malformed":    {&v1.TaskSpec{Kind: "k", RunAt: &timestamppb.Timestamp{Nanos: -1}}, reason.InvalidTime},
		"run_at year 10000":   {&v1.TaskSpec{Kind: "k", RunAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}}, reason.InvalidTime},
		"negative ttl":        {&v1.TaskSpec{Kind: "k", TimeToLive: ns(-1)}, reason.InvalidDuration},
		"zero ttl":            {&v1.TaskSpec{Kind: "k", TimeToLive: ns(0)}, reason.InvalidDuration},
		"ttl of ages":         {&v1.TaskSpec{Kind: "k", TimeToLive: &durationpb.Duration{Seconds: math.MaxInt64}}, reason.InvalidDuration},
		"ttl malformed":       {&v1.TaskSpec{Kind: "k", TimeToLive: &durationpb.Duration{Seconds: 1, Nanos: -1}}, reason.InvalidDuration},
		"negative attempts":   {&v1.TaskSpec{Kind: "k", MaxAttempts: -1}, reason.InvalidMaxAttempts},
		"too many attempts":   {&v1.TaskSpec{Kind: "k", MaxAttempts: 1001}, reason.InvalidMaxAttempts},
		"lease too short":     {&v1.TaskSpec{Kind: "k", LeaseTime: ns(99 * time.Millisecond)}, reason.InvalidDuration},
		"lease too long":      {&v1.TaskSpec{Kind: "k", LeaseTime: ns(12*time.Hour + 1)}, reason.InvalidDuration},
		"multiplier NaN":      {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{Multiplier: math.NaN()}}, reason.InvalidRetryPolicy},
		"multiplier too low":  {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{Multiplier: 0.9}}, reason.InvalidRetryPolicy},
		"jitter over 1":       {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{Jitter: proto.Float64(1.1)}}, reason.InvalidRetryPolicy},
		"jitter NaN":          {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{Jitter: proto.Float64(math.NaN())}}, reason.InvalidRetryPolicy},
		"backoff of zero":     {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{InitialBackoff: ns(0)}}, reason.InvalidRetryPolicy},
		"backoffs swapped":    {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{InitialBackoff: ns(time.Minute), MaxBackoff: ns(time.Second)}}, reason.InvalidRetryPolicy},
		"max backoff of ages": {&v1.TaskSpec{Kind: "k", Retry: &v1.RetryPolicy{MaxBackoff: ns(366 * 24 * time.Hour)}}, reason.InvalidRetryPolicy},
	} {
		t.Run(name, func(t *testing.T) {
			b := &recorder{}
			f := newFrontend(t, b, nil)
			resp, err := f.AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{
				{Kind: "first", Id: someID}, c.task, {Kind: "last"},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if len(b.adds) != 1 || len(b.adds[0].Tasks) != 2 || b.adds[0].Tasks[1].Kind != "last" {
				t.Fatalf("the backend got %v", b.adds)
			}
			if len(resp.Results) != 3 {
				t.Fatalf("%d results", len(resp.Results))
			}
			if resp.Results[0].Error != nil || resp.Results[0].Id != someID || resp.Results[2].Error != nil {
				t.Errorf("the right tasks: %v", resp.Results)
			}
			got := resp.Results[1]
			if got.Error.GetReason() != c.want || got.Error.GetMessage() == "" || got.Error.GetCode() == 0 {
				t.Errorf("error %v, want %s", got.Error, c.want)
			}
			if got.Id != c.task.GetId() {
				t.Errorf("id %q", got.Id)
			}
		})
	}
}

func manyHeaders(n int) map[string]string {
	h := map[string]string{}
	for i := range n {
		h[strings.Repeat("x", i+1)] = ""
	}
	return h
}

func TestAddTasks_allBadNeverReachesTheBackend(t *testing.T) {
	b := &recorder{}
	resp, err := newFrontend(t, b, nil).AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{}, nil}})
	if err != nil || len(b.adds) != 0 || len(resp.Results) != 2 {
		t.Fatalf("%v, %v, %d requests", resp, err, len(b.adds))
	}
	for _, r := range resp.Results {
		if r.Error == nil {
			t.Error("a bad task has no error")
		}
	}
}

func TestAddTasks_takesEverythingAtItsLimit(t *testing.T) {
	b := &recorder{}
	task := &v1.TaskSpec{
		Id: strings.ToUpper(someID), Kind: strings.Repeat("k", 255), Payload: make([]byte, 1<<20),
		Headers: map[string]string{"name": strings.Repeat("v", 16<<10-4)}, RunAt: timestamppb.New(time.Now().Add(364 * 24 * time.Hour)),
		TimeToLive: ns(time.Millisecond), MaxAttempts: 1000, LeaseTime: ns(100 * time.Millisecond),
		Retry: &v1.RetryPolicy{InitialBackoff: ns(time.Millisecond), MaxBackoff: ns(365 * 24 * time.Hour), Multiplier: 1, Jitter: proto.Float64(1)},
	}
	resp, err := newFrontend(t, b, nil).AddTasks(t.Context(), &v1.AddTasksRequest{
		Namespace: strings.Repeat("n", 255), Queue: "a.B_9~-", Tasks: []*v1.TaskSpec{task}})
	if err != nil || resp.Results[0].Error != nil {
		t.Fatalf("%v, %v", resp, err)
	}
	if b.adds[0].Tasks[0].Id != someID {
		t.Errorf("the id is not in lower case: %s", b.adds[0].Tasks[0].Id)
	}
}

func TestAddTasks_fillsInNamespaceAndID(t *testing.T) {
	b := &recorder{}
	resp, err := newFrontend(t, b, nil).AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{Kind: "k"}, {Kind: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	if b.adds[0].Namespace != "default" {
		t.Errorf("namespace %q", b.adds[0].Namespace)
	}
	first, second := resp.Results[0].Id, resp.Results[1].Id
	if len(first) != 36 || first[14] != '7' || first >= second {
		t.Errorf("ids %q and %q are not ordered UUIDs of version 7", first, second)
	}
}

func TestRequests_badRequestFailsAsAWhole(t *testing.T) {
	f := newFrontend(t, &recorder{}, func(l *frontendLimits) { l.BatchItems = 3; l.RequestBytes = 2 << 20 })
	ctx := t.Context()
	task := &v1.TaskSpec{Kind: "k"}
	big := &v1.TaskSpec{Kind: "k", Payload: make([]byte, 1<<20)}
	add := func(namespace, queue string, tasks ...*v1.TaskSpec) func() error {
		return func() error {
			_, err := f.AddTasks(ctx, &v1.AddTasksRequest{Namespace: namespace, Queue: queue, Tasks: tasks})
			return err
		}
	}
	poll := func(req *v1.PollTasksRequest) func() error {
		return func() error { req.Queue = "q"; _, err := f.PollTasks(ctx, req); return err }
	}
	for name, c := range map[string]struct {
		call func() error
		want string
	}{
		"no queue":             {add("", "", task), reason.InvalidQueueName},
		"long queue":           {add("", strings.Repeat("q", 256), task), reason.InvalidQueueName},
		"reserved queue":       {add("", "_q", task), reason.InvalidQueueName},
		"queue with a slash":   {add("", "a/b", task), reason.InvalidQueueName},
		"queue with a colon":   {add("", "a:b", task), reason.InvalidQueueName},
		"queue with an umlaut": {add("", "käse", task), reason.InvalidQueueName},
		"queue with bad UTF-8": {add("", "a\xff", task), reason.InvalidQueueName},
		"bad namespace":        {add("a b", "q", task), reason.InvalidNamespace},
		"no tasks":             {add("", "q"), reason.BatchEmpty},
		"too many tasks":       {add("", "q", task, task, task, task), reason.BatchTooLarge},
		"too many bytes":       {add("", "q", big, big, big), reason.RequestTooLarge},
		"poll: negative tasks": {poll(&v1.PollTasksRequest{MaxTasks: -1}), reason.InvalidMaxTasks},
		"poll: too many tasks": {poll(&v1.PollTasksRequest{MaxTasks: 1001}), reason.InvalidMaxTasks},
		"poll: long wait":      {poll(&v1.PollTasksRequest{Wait: ns(61 * time.Second)}), reason.InvalidDuration},
		"poll: negative wait":  {poll(&v1.PollTasksRequest{Wait: ns(-1)}), reason.InvalidDuration},
		"poll: short lease":    {poll(&v1.PollTasksRequest{LeaseTime: ns(1)}), reason.InvalidDuration},
		"poll: long identity":  {poll(&v1.PollTasksRequest{Identity: strings.Repeat("i", 256)}), reason.InvalidIdentity},
		"complete: none":       {func() error { _, err := f.CompleteTasks(ctx, &v1.CompleteTasksRequest{Queue: "q"}); return err }, reason.BatchEmpty},
		"release: none":        {func() error { _, err := f.ReleaseTasks(ctx, &v1.ReleaseTasksRequest{Queue: "q"}); return err }, reason.BatchEmpty},
		"fail: no queue":       {func() error { _, err := f.FailTasks(ctx, &v1.FailTasksRequest{}); return err }, reason.InvalidQueueName},
		"extend: none":         {func() error { _, err := f.ExtendLeases(ctx, &v1.ExtendLeasesRequest{Queue: "q"}); return err }, reason.BatchEmpty},
		"get: bad id":          {func() error { _, err := f.GetTask(ctx, &v1.GetTaskRequest{Queue: "q", Id: "x"}); return err }, reason.InvalidTaskID},
		"cancel: no id":        {func() error { _, err := f.CancelTask(ctx, &v1.CancelTaskRequest{Queue: "q"}); return err }, reason.InvalidTaskID},
		"create: no queue":     {func() error { _, err := f.CreateQueue(ctx, &v1.CreateQueueRequest{}); return err }, reason.InvalidQueueName},
		"create: bad attempts": {func() error {
			_, err := f.CreateQueue(ctx, &v1.CreateQueueRequest{Queue: "q", Config: &v1.QueueConfig{MaxAttempts: -2}})
			return err
		}, reason.InvalidMaxAttempts},
		"update: bad retry": {func() error {
			_, err := f.UpdateQueue(ctx, &v1.UpdateQueueRequest{Queue: "q", Config: &v1.QueueConfig{Retry: &v1.RetryPolicy{Multiplier: -1}}})
			return err
		}, reason.InvalidRetryPolicy},
		"update: bad mask": {func() error {
			_, err := f.UpdateQueue(ctx, &v1.UpdateQueueRequest{Queue: "q", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"retry", "name"}}})
			return err
		}, reason.InvalidUpdateMask},
		"list: negative page": {func() error { _, err := f.ListQueues(ctx, &v1.ListQueuesRequest{PageSize: -1}); return err }, reason.InvalidPageSize},
		"list: bad namespace": {func() error { _, err := f.ListQueues(ctx, &v1.ListQueuesRequest{Namespace: "_x"}); return err }, reason.InvalidNamespace},
		"dead: huge page": {func() error {
			_, err := f.ListDeadTasks(ctx, &v1.ListDeadTasksRequest{Queue: "q", PageSize: 1001})
			return err
		}, reason.InvalidPageSize},
		"dead: huge token": {func() error {
			_, err := f.ListDeadTasks(ctx, &v1.ListDeadTasksRequest{Queue: "q", PageToken: strings.Repeat("t", 5000)})
			return err
		}, reason.InvalidPageToken},
		"redrive: bad id": {func() error {
			_, err := f.RedriveDeadTasks(ctx, &v1.RedriveDeadTasksRequest{Queue: "q", Ids: []string{"x"}})
			return err
		}, reason.InvalidTaskID},
		"redrive: too many ids": {func() error {
			_, err := f.RedriveDeadTasks(ctx, &v1.RedriveDeadTasksRequest{Queue: "q", Ids: make([]string, 4)})
			return err
		}, reason.BatchTooLarge},
		"redrive: negative": {func() error {
			_, err := f.RedriveDeadTasks(ctx, &v1.RedriveDeadTasksRequest{Queue: "q", Limit: -1})
			return err
		}, reason.InvalidLimit},
		"purge: no queue":     {func() error { _, err := f.PurgeQueue(ctx, &v1.PurgeQueueRequest{}); return err }, reason.InvalidQueueName},
		"pause: no queue":     {func() error { _, err := f.PauseQueue(ctx, &v1.PauseQueueRequest{}); return err }, reason.InvalidQueueName},
		"resume: no queue":    {func() error { _, err := f.ResumeQueue(ctx, &v1.ResumeQueueRequest{}); return err }, reason.InvalidQueueName},
		"delete: no queue":    {func() error { _, err := f.DeleteQueue(ctx, &v1.DeleteQueueRequest{}); return err }, reason.InvalidQueueName},
		"describe: bad queue": {func() error { _, err := f.DescribeQueue(ctx, &v1.DescribeQueueRequest{Queue: " "}); return err }, reason.InvalidQueueName},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			if got := reason.Of(err); got != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "%!") {
				t.Errorf("badly formatted: %v", err)
			}
		})
	}
}

func TestTokens_badOneFailsAlone(t *testing.T) {
	b := &recorder{}
	f := newFrontend(t, b, nil)
	good, empty, huge := []byte("token"), []byte(nil), make([]byte, 1000)
	tokens := func() [][]byte { return [][]byte{empty, good, huge, good} }
	check := func(name string, errs []*v1.ItemError, reached int) {
		t.Helper()
		if reached != 2 {
			t.Errorf("%s: the backend got %d items", name, reached)
		}
		for i, e := range errs {
			want := ""
			if i%2 == 0 {
				want = reason.InvalidLeaseToken
			}
			if e.GetReason() != want {
				t.Errorf("%s: item %d: %v", name, i, e)
			}
		}
	}
	var errs []*v1.ItemError
	completed, err := f.CompleteTasks(t.Context(), &v1.CompleteTasksRequest{Queue: "q", LeaseTokens: tokens()})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range completed.Results {
		errs = append(errs, r.Error)
	}
	check("complete", errs, len(b.ends[0].LeaseTokens))

	released, err := f.ReleaseTasks(t.Context(), &v1.ReleaseTasksRequest{Queue: "q", LeaseTokens: tokens()})
	if err != nil {
		t.Fatal(err)
	}
	errs = nil
	for _, r := range released.Results {
		errs = append(errs, r.Error)
	}
	check("release", errs, len(b.releases[0].LeaseTokens))

	extend, fail := &v1.ExtendLeasesRequest{Queue: "q"}, &v1.FailTasksRequest{Queue: "q"}
	for _, token := range tokens() {
		extend.Extensions = append(extend.Extensions, &v1.ExtendLeasesRequest_Extension{LeaseToken: token})
		fail.Failures = append(fail.Failures, &v1.FailTasksRequest_Failure{LeaseToken: token})
	}
	extended, err := f.ExtendLeases(t.Context(), extend)
	if err != nil {
		t.Fatal(err)
	}
	errs = nil
	for _, r := range extended.Results {
		errs = append(errs, r.Error)
	}
	check("extend", errs, len(b.extends[0].Extensions))
	failed, err := f.FailTasks(t.Context(), fail)
	if err != nil {
		t.Fatal(err)
	}
	errs = nil
	for _, r := range failed.Results {
		errs = append(errs, r.Error)
	}
	check("fail", errs, len(b.fails[0].Failures))
}

func TestFailTasks_errorTextIsCutAtACharacter(t *testing.T) {
	b := &recorder{}
	text := strings.Repeat("é", 3000) // 6000 bytes
	_, err := newFrontend(t, b, func(l *frontendLimits) { l.ErrorBytes = 4095 }).FailTasks(t.Context(), &v1.FailTasksRequest{
		Queue: "q", Failures: []*v1.FailTasksRequest_Failure{{LeaseToken: []byte("t"), Error: text}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.fails[0].Failures[0].Error; got != strings.Repeat("é", 2047) {
		t.Errorf("%d bytes", len(got))
	}
}

func TestLists_fillInPageSize(t *testing.T) {
	b := &recorder{}
	if _, err := newFrontend(t, b, nil).ListQueues(t.Context(), &v1.ListQueuesRequest{}); err != nil {
		t.Fatal(err)
	}
	if b.lists[0].PageSize != 100 || b.lists[0].Namespace != "default" {
		t.Errorf("the backend got %v", b.lists[0])
	}
}
