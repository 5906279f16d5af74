package switchyard

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// trace returns middleware that writes its name around the handler's run.
func trace(log *[]string, name string) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, job *Job) error {
			*log = append(*log, name+">")
			defer func() { *log = append(*log, "<"+name) }()
			return next.HandleTask(ctx, job)
		})
	}
}

func TestMux_choosesByKind(t *testing.T) {
	mux := NewMux()
	if err := mux.HandleTask(t.Context(), &Job{Kind: "a"}); err == nil || !strings.Contains(err.Error(), `no handler for the kind "a"`) {
		t.Errorf("empty mux: %v", err)
	}
	var got string
	mux.HandleFunc("a", func(_ context.Context, job *Job) error { got = "a"; return nil })
	mux.HandleFunc("b", func(_ context.Context, job *Job) error { got = "b"; return nil })
	for _, kind := range []string{"a", "b", "a"} {
		if err := mux.HandleTask(t.Context(), &Job{Kind: kind}); err != nil || got != kind {
			t.Errorf("%s: ran %s, %v", kind, got, err)
		}
	}
	err := mux.HandleTask(t.Context(), &Job{Kind: "c"})
	if err == nil || !strings.Contains(err.Error(), `no handler for the kind "c"`) {
		t.Errorf("unknown kind: %v", err)
	}
	var order *handlerError
	if errors.As(err, &order) {
		t.Error("an unknown kind must be retried: another worker may know it")
	}
	mux.Fallback(HandlerFunc(func(_ context.Context, job *Job) error { got = "fallback"; return nil }))
	if err := mux.HandleTask(t.Context(), &Job{Kind: "c"}); err != nil || got != "fallback" {
		t.Errorf("fallback: ran %s, %v", got, err)
	}
	if kinds := mux.Kinds(); !slices.Equal(kinds, []string{"a", "b"}) {
		t.Errorf("kinds %v", kinds)
	}
}

func TestMux_middlewareGoesAroundAllHandlersWhateverTheOrder(t *testing.T) {
	var log []string
	handler := func(context.Context, *Job) error { log = append(log, "run"); return nil }
	mux := NewMux()
	mux.HandleFunc("before", handler)
	mux.Use(trace(&log, "1"))
	mux.Use(trace(&log, "2"))
	mux.HandleFunc("after", handler)
	mux.Fallback(HandlerFunc(handler))
	for _, kind := range []string{"before", "after", "other"} {
		log = nil
		if err := mux.HandleTask(t.Context(), &Job{Kind: kind}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"1>", "2>", "run", "<2", "<1"}; !slices.Equal(log, want) {
			t.Errorf("%s: %v, want %v", kind, log, want)
		}
	}
}

func TestMux_mistakesInTheProgramPanic(t *testing.T) {
	nothing := HandlerFunc(func(context.Context, *Job) error { return nil })
	for name, f := range map[string]func(*Mux){
		"twice":      func(m *Mux) { m.Handle("a", nothing); m.Handle("a", nothing) },
		"no kind":    func(m *Mux) { m.Handle("", nothing) },
		"no handler": func(m *Mux) { m.Handle("a", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			mux := NewMux()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
				mux.Kinds() // the mux is not locked for good
			}()
			f(mux)
		})
	}
}

func TestMux_changesWhileItRuns(t *testing.T) {
	mux := NewMux()
	mux.HandleFunc("a", func(context.Context, *Job) error { return nil })
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 100 {
				mux.HandleFunc(fmt.Sprint(i, "-", n), func(context.Context, *Job) error { return nil })
				if err := mux.HandleTask(context.Background(), &Job{Kind: "a"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

type greeting struct {
	Name string `json:"name"`
	Age  int    `json:"age"`
}

type xmlCodec struct{}

func (xmlCodec) Marshal(v any) ([]byte, error)      { return xml.Marshal(v) }
func (xmlCodec) Unmarshal(data []byte, v any) error { return xml.Unmarshal(data, v) }

func TestTyped_payloadsGoThroughTheCodec(t *testing.T) {
	want := greeting{"Ann", 7}
	var got greeting
	mux := NewMux()
	take := func(_ context.Context, _ *Job, value greeting) error { got = value; return nil }
	Handle(mux, "json", take)
	HandleWith(mux, "xml", xmlCodec{}, take)

	task, err := NewTask("json", want)
	if err != nil || task.Kind != "json" || string(task.Payload) != `{"name":"Ann","age":7}` {
		t.Fatalf("%+v, %v", task, err)
	}
	if err := mux.HandleTask(t.Context(), &Job{Kind: task.Kind, Payload: task.Payload}); err != nil || got != want {
		t.Errorf("JSON: %+v, %v", got, err)
	}
	got = greeting{}
	if task, err = NewTaskWith(xmlCodec{}, "xml", want); err != nil {
		t.Fatal(err)
	}
	if err := mux.HandleTask(t.Context(), &Job{Kind: task.Kind, Payload: task.Payload}); err != nil || got != want {
		t.Errorf("XML: %+v, %v", got, err)
	}
}

func TestTyped_whatCannotBeEncodedOrDecoded(t *testing.T) {
	if _, err := NewTask("k", make(chan int)); err == nil || !strings.Contains(err.Error(), `kind "k"`) {
		t.Errorf("encode: %v", err)
	}
	client := dialFake(t, startFake(t))
	if _, err := AddJSON(t.Context(), client, "q", "k", make(chan int)); err == nil {
		t.Error("AddJSON: no error")
	}
	mux := NewMux()
	Handle(mux, "k", func(context.Context, *Job, greeting) error { t.Error("ran"); return nil })
	err := mux.HandleTask(t.Context(), &Job{Kind: "k", Payload: []byte("{")})
	var order *handlerError
	if !errors.As(err, &order) || !order.notRetryable || !strings.Contains(err.Error(), "greeting") {
		t.Errorf("decode: %v", err)
	}
}

func TestAddJSON_adds(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	result, err := AddJSON(t.Context(), client, "q", "greet", greeting{"Ann", 7})
	if err != nil {
		t.Fatal(err)
	}
	if spec := f.queues["q"].tasks[result.ID].spec; spec.Kind != "greet" || string(spec.Payload) != `{"name":"Ann","age":7}` {
		t.Errorf("stored %v", spec)
	}
}

func TestLogging_tellsHowAttemptsEnd(t *testing.T) {
	var out bytes.Buffer
	handler := wrap(HandlerFunc(func(_ context.Context, job *Job) error {
		if job.Attempt == 2 {
			return errors.New("boom")
		}
		return nil
	}), []Middleware{Logging(slog.New(slog.NewTextHandler(&out, nil)))})
	for attempt := 1; attempt <= 2; attempt++ {
		err := handler.HandleTask(t.Context(), &Job{ID: "the-id", Queue: "q", Kind: "k", Attempt: attempt})
		if (err != nil) != (attempt == 2) {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{`level=INFO msg="task completed" queue=q kind=k id=the-id attempt=1 took=`, `level=WARN msg="task failed" queue=q kind=k id=the-id attempt=2 took=`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %q, want %q", lines[i], want)
		}
	}
	if !strings.HasSuffix(lines[1], "error=boom") {
		t.Errorf("line %q", lines[1])
	}
}

func TestRecover_turnsAPanicIntoAnError(t *testing.T) {
	cause := errors.New("the cause")
	for _, value := range []any{cause, "text"} {
		handler := wrap(HandlerFunc(func(context.Context, *Job) error { panic(value) }), []Middleware{Recover()})
		err := handler.HandleTask(t.Context(), &Job{})
		var panicked *PanicError
		if !errors.As(err, &panicked) || panicked.Value != value || !strings.Contains(panicked.Stack, "goroutine") {
			t.Errorf("error %v", err)
		}
		if value == error(cause) && !errors.Is(err, cause) {
			t.Error("the panic's error is hidden")
		}
	}
}

func TestTimeout_boundsAHandler(t *testing.T) {
	wait := HandlerFunc(func(ctx context.Context, _ *Job) error { <-ctx.Done(); return ctx.Err() })
	err := wrap(wait, []Middleware{Timeout(time.Millisecond)}).HandleTask(t.Context(), &Job{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "took longer than 1ms") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wrap(wait, []Middleware{Timeout(time.Hour)}).HandleTask(ctx, &Job{}); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "longer") {
		t.Errorf("cancelled from outside: %v", err)
	}
}

func TestOutcomes_nilStaysNil(t *testing.T) {
	if NotRetryable(nil) != nil || RetryAfter(time.Second, nil) != nil {
		t.Error("success became an error")
	}
	boom := errors.New("boom")
	if !errors.Is(NotRetryable(boom), boom) || NotRetryable(boom).Error() != "boom" {
		t.Error("the error is hidden")
	}
}

func TestCut_keepsWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 5, "abc"}, {"abc", 3, "abc"}, {"abc", 2, "ab"}, {"aé", 2, "a"}, {"é", 1, ""}, {"a\xffb", 10, "a\uFFFDb"},
	} {
		if got := cut(c.in, c.n); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
