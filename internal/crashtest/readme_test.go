package crashtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// step is a command of README's tour with what it is said to print.
type step struct {
	command string
	output  string
}

// tour reads the ```console blocks of README: a line that begins with "$ " is a
// command (with its here-document, if any), the lines after it are its output.
func tour(t *testing.T) []step {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	inside, heredoc := false, ""
	for line := range strings.Lines(string(text)) {
		last := len(steps) - 1
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.HasPrefix(line, "```console")
		case !inside:
		case heredoc != "":
			steps[last].command += line
			if strings.TrimSpace(line) == heredoc {
				heredoc = ""
			}
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{command: line[2:]})
			if _, word, ok := strings.Cut(line, "<<'"); ok {
				heredoc, _, _ = strings.Cut(word, "'")
			}
		default:
			steps[last].output += line
		}
	}
	return steps
}

// What differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	stands  string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d`), "DATE"},
	{regexp.MustCompile(`[\d,.]+/s\b`), "RATE"},
	{regexp.MustCompile(`\b\d[\d.]*(ms|µs|s)\b`), "TIME"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// comparable takes away what differs from run to run, and the order of lines,
// because two streams are shown as one.
func comparable(output string) []string {
	for _, v := range volatile {
		output = v.pattern.ReplaceAllString(output, v.stands)
	}
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func TestReadme_tourPrintsWhatItSays(t *testing.T) {
	processTest(t)
	dir := t.TempDir()
	n := newNode(t, "") // its data go where `switchyard dev` puts them
	t.Setenv("PATH", filepath.Dir(program)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("SWITCHYARD_ADDRESS", n.addr)
	steps := tour(t)
	if len(steps) < 10 {
		t.Fatalf("only %d commands found in README", len(steps))
	}
	here := func(s string) string { return strings.ReplaceAll(s, "127.0.0.1:7480", n.addr) }
	for _, s := range steps {
		command := strings.TrimSpace(s.command)
		var said string
		switch {
		case command == "switchyard dev":
			n.launchIn(dir, "dev", "--listen", n.addr)
			if err := n.waitReady(startTimeout); err != nil {
				t.Fatalf("%v:\n%s", err, n.output)
			}
			waitFor(t, "the banner", func() error { return n.said("Ctrl-C") })
			said = strings.ReplaceAll(n.output.String(), "--address "+n.addr+" ", "")
		case strings.HasPrefix(command, "kill -9"):
			n.kill()
			continue
		default:
			run := exec.CommandContext(t.Context(), "sh", "-c", here(s.command))
			run.Dir = dir
			out, _ := run.CombinedOutput() // exit codes other than 0 are part of the tour
			said = string(out)
		}
		if s.output == "" && command == "switchyard dev" {
			continue // shown once
		}
		if got, want := comparable(said), comparable(here(s.output)); !slices.Equal(got, want) {
			t.Errorf("$ %s\nprints\n%s\nREADME says\n%s", command, said, s.output)
		}
	}
}
