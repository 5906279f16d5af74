package examples_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/server"
)

// startNode runs a server with its data in memory and returns its address.
func startNode(t *testing.T) string {
	t.Helper()
	config := server.DefaultConfig()
	config.Listen, config.Memory = "127.0.0.1:0", true
	node, err := server.New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return node.Addr()
}

// runExample builds an example, runs it and returns the lines of its standard
// output.
func runExample(t *testing.T, name string, args ...string) []string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", binary, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr strings.Builder
	if args == nil {
		args = []string{"-address", startNode(t)}
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines) // handlers run at the same time
	return lines
}

func TestHello(t *testing.T) {
	lines := runExample(t, "hello")
	for i, want := range []string{
		`^added [0-9a-f-]{36} for (Ann|Ben|Cleo)$`, `^added`, `^added`,
		`^hello, Ann!$`, `^hello, Ben!$`, `^hello, Cleo!$`,
	} {
		if len(lines) != 6 || !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Fatalf("line %d is not like %s:\n%s", i, want, strings.Join(lines, "\n"))
		}
	}
}

func TestTyped(t *testing.T) {
	got := runExample(t, "typed")
	want := []string{
		"charged Ann 1250 cents at attempt 1",
		"charged Ben 300 cents at attempt 2",
		`dead: {"customer":"Cleo","cents":-5}: cannot charge -5 cents`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBands(t *testing.T) {
	got := runExample(t, "bands", "-bands", "60")
	want := []string{
		"Band 7 plays jazz since 1957", "each of three replica sets has 20 buckets",
		"folk: 20 bands", "folk: 40 bands", "jazz: 20 bands", "jazz: 40 bands", "polka: 20 bands", "polka: 40 bands",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The programs in the guide must compile.
func TestGuide_programsCompile(t *testing.T) {
	guide, err := os.ReadFile("../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := 0
	for i, block := range strings.Split(string(guide), "```go\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "package main\n") {
			continue // a fragment
		}
		programs++
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
			t.Errorf("block %d: %v\n%s", i+1, err, out)
		}
	}
	if programs < 2 {
		t.Errorf("%d programs found", programs)
	}
}
