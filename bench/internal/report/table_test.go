package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/bench/internal/scenario"
)

func results(sys string, round int, drain float64, p50 float64) Run {
	return Run{System: sys, Mode: "fsync", Round: round, Version: "1", Results: []scenario.Result{
		{Scenario: "drain", Rate: drain}, {Scenario: "serial", P50: p50, P99: 2 * p50},
	}}
}

func TestTable_showsMediansAndRatios(t *testing.T) {
	f := &File{Runs: []Run{
		results("switchyard", 1, 50_000, 90), results("switchyard", 2, 70_000, 110), results("switchyard", 3, 60_000, 100),
		results("nats", 1, 10_000, 200), results("rabbitmq", 1, 40_000, 400),
	}}
	var b strings.Builder
	f.Table(&b)
	for _, want := range []string{
		"| 60,000/s | 10,000/s | 40,000/s | 6.00× (1.50× with RabbitMQ) |",
		"| 100 µs / 200 µs | 200 µs / 400 µs | 400 µs / 800 µs | 0.50× / 0.50× |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestTable_showsFailures(t *testing.T) {
	f := &File{Runs: []Run{{System: "nats", Mode: "fsync", Round: 1, Results: []scenario.Result{{Scenario: "drain", Error: "lost work"}}}}}
	var b strings.Builder
	f.Table(&b)
	if !strings.Contains(b.String(), "| failed |") || !strings.Contains(b.String(), "failed: lost work") {
		t.Errorf("the failure does not show in\n%s", b.String())
	}
}

func TestWriteInto_replacesOnlyWhatIsBetweenTheMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("before\n"+beginMark+"old\n"+endMark+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := &File{Runs: []Run{results("nats", 1, 10_000, 200)}}
	for range 2 { // writing again changes nothing more
		if err := f.WriteInto(path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	if strings.Contains(s, "old") || !strings.HasPrefix(s, "before\n") || !strings.HasSuffix(s, "\nafter\n") || strings.Count(s, "10,000/s") != 1 {
		t.Errorf("wrote\n%s", s)
	}
	if err := os.WriteFile(path, []byte("no marks"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteInto(path); err == nil {
		t.Error("a file without marks was accepted")
	}
}
