package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/switchyard-dev/switchyard"
)

// app is what every command shares: where it reads and writes, and the global
// flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	address   string
	namespace string
	output    string
	timeout   time.Duration
}

const defaultTimeout = 15 * time.Second

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "switchyard",
		Short: "A durable task queue: server, client and worker in one",
		Long: `Switchyard is a durable task queue. This command runs the server, adds tasks,
works them off with any program, and looks after queues.

Exit codes: 0 done; 1 error; 2 wrong usage or argument; 3 not found; 4 refused;
5 server not reachable, overloaded or too slow; 6 done, but not for every task;
130 interrupted.`,
		Example: `  switchyard dev                               start a server, data in ./switchyard-data
  switchyard add thumbnails cat.jpg            add a task
  switchyard work thumbnails -- ./thumbnail.sh run a program per task
  switchyard queue list                        what waits where`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	asGroup(root)
	root.SetFlagErrorFunc(flagError)

	f := root.PersistentFlags()
	f.StringVar(&a.address, "address", envOr(a.getenv, "SWITCHYARD_ADDRESS", defaultAddress()), "`HOST:PORT` of the server (env SWITCHYARD_ADDRESS)")
	f.StringVarP(&a.namespace, "namespace", "n", envOr(a.getenv, "SWITCHYARD_NAMESPACE", switchyard.DefaultNamespace), "namespace of the queue (env SWITCHYARD_NAMESPACE)")
	f.VarP(newChoice(&a.output, "table", "json"), "output", "o", "`FORMAT` of the output: table or json")
	f.DurationVar(&a.timeout, "timeout", defaultTimeout, "how long one call to the server may take")

	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.timeout <= 0 {
			return usagef("--timeout must be more than 0, not %v", a.timeout)
		}
		return nil
	}

	root.AddGroup(
		&cobra.Group{ID: "server", Title: "Servers:"},
		&cobra.Group{ID: "tasks", Title: "Tasks:"},
		&cobra.Group{ID: "manage", Title: "Looking after queues:"},
		&cobra.Group{ID: "cluster", Title: "Looking after a cluster:"},
	)
	for group, cmds := range map[string][]*cobra.Command{
		"server":  {newDevCommand(a), newServerCommand(a), newCheckCommand(a)},
		"tasks":   {newAddCommand(a), newWorkCommand(a), newCallCommand(a), newTaskCommand(a)},
		"manage":  {newQueueCommand(a), newBenchCommand(a), newSimulateCommand(a)},
		"cluster": {newClusterCommand(a), newShardCommand(a)},
	} {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(newVersionCommand(a))
	return root
}

// json reports whether the output is for a program.
func (a *app) json() bool { return a.output == "json" }

func envOr(getenv func(string) string, name, fallback string) string {
	if v := getenv(name); v != "" {
		return v
	}
	return fallback
}

// asGroup makes a command that has only subcommands: without arguments it shows
// its help, and an unknown subcommand is an error that suggests the nearest.
func asGroup(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	// Flags that only the misspelt subcommand knows must not hide what is wrong.
	c.FParseErrWhitelist.UnknownFlags = true
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		if near := nearest(args[0], names); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		return usageOf(c, errors.New(text))
	}
}

// flagError words what is wrong with a flag and suggests the nearest one.
func flagError(c *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || missing.GetSpecifiedShortnames() != "" {
		return usageOf(c, err)
	}
	var names []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	}
	c.Flags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	text := fmt.Sprintf("unknown flag --%s", missing.GetSpecifiedName())
	if near := nearest(missing.GetSpecifiedName(), names); near != "" {
		text += fmt.Sprintf("; did you mean --%s?", near)
	}
	return usageOf(c, errors.New(text))
}

// nearest returns the name that s was most likely meant to be, or "".
func nearest(s string, names []string) string {
	slices.Sort(names)
	best, bestDistance := "", 1+max(1, len(s)/3)
	for _, n := range names {
		if len(s) >= 2 && strings.HasPrefix(n, s) {
			return n
		}
		if d := editDistance(s, n); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

// exactArgs asks for the named arguments, no more and no fewer.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usageOf(c, fmt.Errorf("missing argument %s", names[len(args)]))
		}
		if len(args) > len(names) {
			return usageOf(c, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}

// choice is a flag that takes one of a few words.
type choice struct {
	value   *string
	allowed []string
}

// newChoice makes the flag; the first word is its default.
func newChoice(value *string, allowed ...string) *choice {
	*value = allowed[0]
	return &choice{value: value, allowed: allowed}
}

func (c *choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("must be %s", strings.Join(c.allowed, " or "))
	}
	*c.value = s
	return nil
}

func (c *choice) Type() string { return "string" }
