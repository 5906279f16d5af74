package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"switchyard": main})
}

// patience bounds every wait of a script.
const patience = 30 * time.Second

// TestScripts runs the program as its users do, against real servers.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			// With the race detector every program waits a second at its end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   cmdExits,
			"await":   cmdAwait,
			"readenv": cmdReadEnv,
			"until":   cmdUntil,
			"flip":    cmdFlip,
			"mark":    cmdMark,
			"within":  cmdWithin,
		},
	})
}

// exits CODE PROGRAM ARGS... runs a program that must end with the exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("the exit code is %d, not %s", code, args[0])
	}
}

// await FILE waits until a file with something in it exists.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(ts.MkAbs(args[0])); err == nil && info.Size() > 0 {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s did not come within %v", args[0], patience)
		}
	}
}

// readenv NAME FILE sets a variable to what a file (or stdout) holds.
func cmdReadEnv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: readenv NAME FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// until PATTERN PROGRAM ARGS... runs a program until its output matches.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN PROGRAM ARGS...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no output matched %s within %v", args[0], patience)
		}
	}
}

// flip FILE OFFSET turns one bit of a file over.
func cmdFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	offset, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_RDWR, 0)
	ts.Check(err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, offset)
	ts.Check(err)
	b[0] ^= 1
	_, err = f.WriteAt(b, offset)
	ts.Check(errors.Join(err, f.Close()))
}

// mark sets the start that within measures from.
func cmdMark(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv("MARK", time.Now().Format(time.RFC3339Nano))
}

// within DURATION fails when more time has passed since mark.
func cmdWithin(ts *testscript.TestScript, neg bool, args []string) {
	start, err := time.Parse(time.RFC3339Nano, ts.Getenv("MARK"))
	ts.Check(err)
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	took := time.Since(start)
	ts.Logf("took %v", took)
	if took > limit {
		ts.Fatalf("it took %v, more than %v", took, limit)
	}
}

func TestExplain_unreachableServer(t *testing.T) {
	var stderr bytes.Buffer
	code := run([]string{"queue", "list", "--address", "127.0.0.1:1"}, strings.NewReader(""), &bytes.Buffer{}, &stderr)
	require.Equal(t, exitUnavailable, code)
	require.Equal(t, "switchyard: cannot reach a server at 127.0.0.1:1: connection refused; start one with: switchyard dev\n", stderr.String())
}

func TestNearest_suggestsWhatWasMeant(t *testing.T) {
	names := []string{"add", "work", "queue", "bench", "version"}
	for typed, want := range map[string]string{
		"ad": "add", "wrok": "work", "quue": "queue", "qu": "queue", "vresion": "version", "xyz": "", "": "", "deployment": "",
	} {
		require.Equal(t, want, nearest(typed, names), "typed %q", typed)
	}
}

func TestPrintable_cannotHarmATerminal(t *testing.T) {
	require.Equal(t, `a\u001b[31mb\nc\td\xff`, printable("a\x1b[31mb\nc\td\xff", 100))
	require.Equal(t, "äö…", printable("äöü", 2))
	require.Equal(t, `\u202eevil`, printable("\u202eevil", 100))
}

func TestCount_groupsDigits(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 100000: "100,000"} {
		require.Equal(t, want, count(n))
	}
}

func TestHelp_everyCommandShowsExamples(t *testing.T) {
	a := &app{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, getenv: func(string) string { return "" }}
	root := newRootCommand(a)
	commands, doc := 0, readDoc(t)
	for todo := root.Commands(); len(todo) > 0; todo = todo[1:] {
		c := todo[0]
		todo = append(todo, c.Commands()...)
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		commands++
		require.NotEmpty(t, c.Example, "%s has no example", c.CommandPath())
		require.NotEmpty(t, c.Short, "%s has no summary", c.CommandPath())
		if !strings.Contains(doc, "`"+c.CommandPath()) && !strings.Contains(doc, "`"+c.Name()+"`") {
			t.Errorf("docs/cli.md does not know %q", c.CommandPath())
		}
	}
	require.Greater(t, commands, 15)
}

func readDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	require.NoError(t, err)
	return string(text)
}
