package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// runCopied runs an example as a user would who copies it into a module of their
// own, and returns what it prints.
func runCopied(t *testing.T, name string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(name, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	// The same versions as here, so that nothing is fetched.
	mine := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(mod), "module example.com/copied") +
		"\nrequire github.com/switchyard-dev/switchyard v0.0.0\nreplace github.com/switchyard-dev/switchyard => " + root + "\n"
	for file, content := range map[string]string{"main.go": string(text), "go.mod": mine, "go.sum": string(sum)} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", "program", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := exec.CommandContext(ctx, filepath.Join(dir, "program"))
	var stderr strings.Builder
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("standard error: %s", stderr.String())
	}
	return string(out)
}

func TestGRPCClient_worksCopiedOut(t *testing.T) {
	out := runCopied(t, "grpcclient")
	if !regexp.MustCompile(`(?m)^600 calls, 0 failed$[\s\S]*^server 2 got [1-9]\d* requests$\n^p2c: 3 endpoints, 3 open, [1-9]\d* refusals$`).MatchString(out) {
		t.Errorf("got\n%s", out)
	}
}

func TestHTTPClient_worksCopiedOut(t *testing.T) {
	out := runCopied(t, "httpclient")
	if !regexp.MustCompile(`(?m)^300 requests, 0 failed$\n(^server \d got [1-9]\d* requests$\n?){3}`).MatchString(out) {
		t.Errorf("got\n%s", out)
	}
}
