package frontend

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func FuzzParseID_agreesWithTheLibrary(f *testing.F) {
	for _, s := range []string{"", "01968d5c-1f2a-7b3c-8d4e-5f6a7b8c9d0e", "01968D5C-1f2a-7b3c-8d4e-5f6a7b8c9d0e",
		"00000000-0000-0000-0000-000000000000", "01968d5c-1f2a-7b3c-8d4e-5f6a7b8c9d0g", "01968d5c01f2a07b3c08d4e05f6a7b8c9d0e",
		strings.Repeat("-", 36), strings.Repeat("0", 36)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok, upper := parseID(s)
		id, err := uuid.Parse(s)
		want := err == nil && len(s) == 36 && id != uuid.Nil
		if ok != want {
			t.Fatalf("%q: %v, the library says %v", s, ok, want)
		}
		if ok && upper != (strings.ToLower(s) != s) {
			t.Fatalf("%q: upper %v", s, upper)
		}
		lower := s
		if checkID("id", &lower) == nil && lower != id.String() {
			t.Fatalf("%q became %q", s, lower)
		}
	})
}

func FuzzCut_keepsCharactersWhole(f *testing.F) {
	f.Add("aé€😀", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 0 || n > 1<<20 {
			return
		}
		c := cut(s, n)
		if len(c) > n || !strings.HasPrefix(s, c) || (utf8.ValidString(s) && !utf8.ValidString(c)) {
			t.Fatalf("cut(%q, %d) = %q", s, n, c)
		}
	})
}

func someTasks(n int) []*v1.TaskSpec {
	tasks := make([]*v1.TaskSpec, n)
	for i := range tasks {
		tasks[i] = &v1.TaskSpec{Id: fmt.Sprintf("01968d5c-1f2a-7b3c-8d4e-%012x", i), Kind: "send-mail", Payload: make([]byte, 256)}
	}
	return tasks
}

func TestCheckTask_rightTaskAllocatesNothing(t *testing.T) {
	l, now, task := DefaultLimits(), time.Now(), someTasks(1)[0]
	task.Headers = map[string]string{"a": "b"}
	if n := testing.AllocsPerRun(100, func() {
		if err := l.checkTask(task, now); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCheckTask(b *testing.B) {
	l, now, tasks := DefaultLimits(), time.Now(), someTasks(1000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := l.checkTask(tasks[i%len(tasks)], now); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func TestCheckTask_priorityAndFairness(t *testing.T) {
	l, now := DefaultLimits(), time.Now()
	for name, c := range map[string]struct {
		change func(*v1.TaskSpec)
		want   string
	}{
		"none":               {func(*v1.TaskSpec) {}, ""},
		"all":                {func(s *v1.TaskSpec) { s.Priority, s.FairnessKey, s.FairnessWeight = 1, strings.Repeat("k", 64), 0.5 }, ""},
		"priority above 5":   {func(s *v1.TaskSpec) { s.Priority = 9 }, ""},
		"negative priority":  {func(s *v1.TaskSpec) { s.Priority = -1 }, reason.InvalidPriority},
		"long key":           {func(s *v1.TaskSpec) { s.FairnessKey = strings.Repeat("k", 65) }, reason.InvalidFairness},
		"negative weight":    {func(s *v1.TaskSpec) { s.FairnessWeight = -1 }, reason.InvalidFairness},
		"weight that is NaN": {func(s *v1.TaskSpec) { s.FairnessWeight = float32(math.NaN()) }, reason.InvalidFairness},
		"infinite weight":    {func(s *v1.TaskSpec) { s.FairnessWeight = float32(math.Inf(1)) }, reason.InvalidFairness},
	} {
		task := someTasks(1)[0]
		c.change(task)
		if got := reason.Of(l.checkTask(task, now)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestCheckConfig_ratesAndFairnessKeys(t *testing.T) {
	l := DefaultLimits()
	rate := func(r float64) *float64 { return &r }
	many := make([]*v1.FairnessKey, 1001)
	for i := range many {
		many[i] = &v1.FairnessKey{Key: fmt.Sprint(i), Weight: 1}
	}
	for name, c := range map[string]struct {
		config *v1.QueueConfig
		want   string
	}{
		"right":         {&v1.QueueConfig{RateLimit: rate(0), KeyRateLimit: rate(0.5), FairnessKeys: many[:1000]}, ""},
		"negative rate": {&v1.QueueConfig{RateLimit: rate(-1)}, reason.InvalidRateLimit},
		"NaN":           {&v1.QueueConfig{KeyRateLimit: rate(math.NaN())}, reason.InvalidRateLimit},
		"of a key":      {&v1.QueueConfig{FairnessKeys: []*v1.FairnessKey{{Key: "a", RateLimit: rate(-1)}}}, reason.InvalidRateLimit},
		"too many keys": {&v1.QueueConfig{FairnessKeys: many}, reason.InvalidFairness},
		"twice":         {&v1.QueueConfig{FairnessKeys: []*v1.FairnessKey{{Key: "a"}, {Key: "a"}}}, reason.InvalidFairness},
		"long key":      {&v1.QueueConfig{FairnessKeys: []*v1.FairnessKey{{Key: strings.Repeat("k", 65)}}}, reason.InvalidFairness},
		"weight":        {&v1.QueueConfig{FairnessKeys: []*v1.FairnessKey{{Key: "a", Weight: -1}}}, reason.InvalidFairness},
	} {
		if got := reason.Of(l.checkConfig(c.config)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
