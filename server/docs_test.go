package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rows returns the cells of the rows of a page's tables that begin with code.
func rows(text string) [][]string {
	var all [][]string
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		all = append(all, cells)
	}
	return all
}

func TestDocs_configurationListsEverySettingWithItsDefault(t *testing.T) {
	listed := map[string]string{}
	for _, cells := range rows(page(t, "configuration.md")) {
		if len(cells) != 3 || cells[2] == "" {
			t.Errorf("a row has not three cells: %v", cells)
			continue
		}
		listed[cells[0]] = cells[1]
	}
	for _, s := range Settings() {
		if got, ok := listed[s.Name]; !ok || got != s.Default {
			t.Errorf("%s: the page says %q, the default is %q", s.Name, got, s.Default)
		}
		delete(listed, s.Name)
	}
	for name := range listed {
		t.Errorf("%s is on the page and not a setting", name)
	}
}

func TestDocs_errorsListsEveryReason(t *testing.T) {
	all := reason.All()
	for _, cells := range rows(page(t, "errors.md")) {
		if len(cells) != 5 || cells[3] == "" || cells[4] == "" {
			t.Errorf("a row has not five cells: %v", cells)
			continue
		}
		i := slices.Index(all, cells[0])
		if i < 0 {
			t.Errorf("%s is on the page and not a reason, or twice", cells[0])
			continue
		}
		all = slices.Delete(all, i, i+1)
		code := reason.Code(cells[0])
		if want := rpccode.Code(code).String(); cells[1] != want {
			t.Errorf("%s: the page says %s, the code is %s", cells[0], cells[1], want)
		}
		status := fmt.Sprint(httpStatus(reason.From(reason.New(code, cells[0], nil, "x"))))
		if cells[0] == reason.UnknownMethod {
			status = "404 or 405" // the router's answers
		}
		if cells[2] != status {
			t.Errorf("%s: the page says %s, the HTTP status is %s", cells[0], cells[2], status)
		}
	}
	if len(all) > 0 {
		t.Errorf("not on the page: %v", all)
	}
}

// example is a piece of shell on a page, and the JSON that it is said to print.
type example struct {
	line          int
	command, want string
	from, to      int // where the JSON stands on the page, or would
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

func examples(text string) []example {
	var all []example
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		kind, body := text[m[2]:m[3]], text[m[4]:m[5]]
		switch kind {
		case "sh":
			all = append(all, example{line: strings.Count(text[:m[0]], "\n") + 1, command: body, from: m[1], to: m[1]})
		case "json":
			all[len(all)-1].want, all[len(all)-1].to = body, m[1]
		}
	}
	return all
}

// changing are the fields whose values differ from run to run.
var changing = regexp.MustCompile(`^(leaseToken|.*At|.*Deadline|serverTime|backlogAge|.*Rate|rangeId|syncMatchShare|loadedTasks|.*Share)$`)

// same compares what came with what the page shows: the same fields with the same
// values, except where values differ from run to run.
func same(path string, got, want any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v, not an object", path, got)
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				return fmt.Errorf("%s.%s came and is not on the page", path, k)
			}
		}
		for k, v := range w {
			gv, ok := g[k]
			if !ok {
				return fmt.Errorf("%s.%s is on the page and did not come", path, k)
			}
			if changing.MatchString(k) {
				continue
			}
			if err := same(path+"."+k, gv, v); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s is %v, the page has %d elements", path, got, len(w))
		}
		for i := range w {
			if err := same(fmt.Sprintf("%s[%d]", path, i), g[i], w[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if got != want {
		return fmt.Errorf("%s is %v, the page says %v", path, got, want)
	}
	return nil
}

// TestDocs_httpExamplesRun runs the examples of docs/http.md in one shell against
// a node, and compares what they print. With SWITCHYARD_UPDATE_DOCS=1 it writes
// the outputs into the page instead.
func TestDocs_httpExamplesRun(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("curl is missing; install it, this test runs the examples of docs/http.md")
	}
	s, stop := startReal(t, func(c *Config) { c.Memory = true; c.Matching.Partitions = 1 })
	defer func() {
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	text := page(t, "http.md")
	all := examples(text)
	script := "set -euo pipefail\n"
	for i, e := range all {
		script += fmt.Sprintf("echo '@@ %d'\n%s", i, strings.ReplaceAll(e.command, DefaultListen, s.Addr()))
	}
	cmd := exec.CommandContext(shortly(t), "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
	}
	parts := regexp.MustCompile(`(?m)^@@ \d+\n`).Split(string(out), -1)[1:]
	if len(parts) != len(all) {
		t.Fatalf("%d examples printed %d outputs:\n%s", len(all), len(parts), out)
	}
	update := os.Getenv("SWITCHYARD_UPDATE_DOCS") != ""
	for i, e := range slices.Backward(all) { // so that an update moves nothing that is still to come
		var got, want any
		if json.Unmarshal([]byte(parts[i]), &got) != nil {
			if e.want != "" {
				t.Errorf("line %d prints no JSON: %s", e.line, parts[i])
			}
			continue
		}
		if update {
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, []byte(parts[i]), "", "  "); err != nil {
				t.Fatal(err)
			}
			text = text[:e.from] + "\n\n```json\n" + strings.TrimSpace(pretty.String()) + "\n```" + text[e.to:]
			continue
		}
		if err := json.Unmarshal([]byte(e.want), &want); err != nil {
			t.Errorf("line %d: the page has no JSON for what it prints: %v\n%s", e.line, err, parts[i])
			continue
		}
		if err := same("answer", got, want); err != nil {
			t.Errorf("line %d: %v\nit printed %s", e.line, err, parts[i])
		}
	}
	if update {
		if err := os.WriteFile("../docs/http.md", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Every call of the API is among them, and succeeded.
	_, metrics := get(t, s, "/metrics")
	for _, methods := range [][]string{methodNames(v1.TaskService_ServiceDesc.Methods), methodNames(v1.QueueService_ServiceDesc.Methods)} {
		for _, m := range methods {
			if strings.Contains(metrics, fmt.Sprintf("switchyard_frontend_requests_total{code=\"OK\",method=%q,reason=\"\"} 0\n", m)) {
				t.Errorf("docs/http.md has no working example of %s", m)
			}
		}
	}
}

func methodNames(methods []grpc.MethodDesc) []string {
	var names []string
	for _, m := range methods {
		names = append(names, m.MethodName)
	}
	return names
}
