package frontend

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

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
