package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Commands that remove things for good, and the ones around dead tasks.

func newQueuePurgeCommand(a *app) *cobra.Command {
	var yes, dead bool
	c := &cobra.Command{
		Use:   "purge QUEUE",
		Short: "Remove all waiting tasks of a queue",
		Long: `Remove all waiting tasks of a queue: ready, delayed and waiting for a retry, and
the dead ones with --include-dead. Tasks in the hands of workers stay. What is
removed does not come back: on a terminal the command asks first, elsewhere it
wants --yes.`,
		Example: `  switchyard queue purge thumbnails
  switchyard queue purge thumbnails --include-dead --yes`,
		Args: exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			what := "all waiting tasks"
			if dead {
				what += " and all dead ones"
			}
			if err := a.confirm(yes, fmt.Sprintf("Remove %s of queue %q in namespace %q?", what, args[0], a.namespace)); err != nil {
				return err
			}
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.PurgeQueue(ctx, &v1.PurgeQueueRequest{Namespace: a.namespace, Queue: args[0], IncludeDead: dead})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]int64{"purged": resp.GetPurged()})
				}
				_, err = fmt.Fprintf(a.stdout, "removed %s from queue %s\n", plural(resp.GetPurged(), "task"), args[0])
				return err
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&dead, "include-dead", false, "remove dead tasks too")
	return c
}

func newQueueDeleteCommand(a *app) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use:     "delete QUEUE",
		Aliases: []string{"rm"},
		Short:   "Delete a queue",
		Long: `Delete a queue. One that still has tasks is refused unless --force is given; then
its tasks go with it. On a terminal the command asks first, elsewhere it wants
--yes.`,
		Example: `  switchyard queue delete thumbnails
  switchyard queue delete thumbnails --force --yes`,
		Args: exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			with := ""
			if force {
				with = " with all its tasks"
			}
			if err := a.confirm(yes, fmt.Sprintf("Delete queue %q in namespace %q%s?", args[0], a.namespace, with)); err != nil {
				return err
			}
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				_, err := conn.queues.DeleteQueue(ctx, &v1.DeleteQueueRequest{Namespace: a.namespace, Queue: args[0], Force: force})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]string{"deleted": args[0]})
				}
				_, err = fmt.Fprintf(a.stdout, "deleted queue %s\n", args[0])
				return err
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&force, "force", false, "delete its tasks too")
	return c
}

// confirm asks before something is removed for good.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return &exitError{code: exitRefused, err: fmt.Errorf("this removes things for good and there is no terminal to ask on: give --yes")}
	}
	return a.ask(question, "nothing was removed")
}

func newQueueDeadCommand(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "dead QUEUE",
		Short: "List the dead tasks of a queue",
		Long: `List the dead tasks of a queue, the longest dead first: those that failed their
last attempt or were marked not retryable. "queue redrive" makes them ready
again, "task cancel" and "queue purge --include-dead" remove them.`,
		Example: `  switchyard queue dead thumbnails
  switchyard queue dead thumbnails --limit 0 -o json | jq -r .[].last_error | sort | uniq -c`,
		Args: exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 0 {
				return usageOf(c, fmt.Errorf("--limit must not be negative"))
			}
			return a.withConn(func(conn *conn) error { return a.listDead(c.Context(), conn, args[0], limit) })
		},
	}
	c.Flags().IntVar(&limit, "limit", 100, "list at most so many; 0 for all")
	return c
}

func (a *app) listDead(ctx context.Context, conn *conn, queue string, limit int) error {
	array := &arrayWriter{out: a.stdout}
	t := a.newTable()
	shown, token := 0, ""
	for {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-shown)
		}
		call, cancel := context.WithTimeout(ctx, a.timeout)
		resp, err := conn.queues.ListDeadTasks(call, &v1.ListDeadTasksRequest{Namespace: a.namespace, Queue: queue, PageSize: int32(size), PageToken: token})
		cancel()
		if err != nil {
			return err
		}
		for _, task := range resp.GetTasks() {
			if a.json() {
				if err := array.add(viewTask(task)); err != nil {
					return err
				}
			} else {
				if shown == 0 {
					t.row("ID", "KIND", "ATTEMPTS", "DEAD SINCE", "LAST ERROR")
				}
				t.row(task.GetId(), printable(task.GetKind(), 40), fmt.Sprintf("%d/%d", task.GetAttempt(), task.GetMaxAttempts()),
					viewTimeText(viewTime(task.GetDeadAt())), printable(task.GetLastError(), 100))
			}
			shown++
		}
		token = resp.GetNextPageToken()
		if token == "" || (limit > 0 && shown >= limit) {
			break
		}
		if !a.json() {
			if err := t.flush(); err != nil {
				return err
			}
		}
	}
	if a.json() {
		return array.close()
	}
	if err := t.flush(); err != nil {
		return err
	}
	switch {
	case shown == 0:
		fmt.Fprintf(a.stderr, "Queue %s has no dead tasks.\n", queue)
	case token != "":
		fmt.Fprintf(a.stderr, "There are more; --limit 0 lists all.\n")
	}
	return nil
}

func newQueueRedriveCommand(a *app) *cobra.Command {
	var limit int64
	c := &cobra.Command{
		Use:   "redrive QUEUE [ID...]",
		Short: "Make dead tasks ready again",
		Long: `Make dead tasks ready again, with all their attempts: those named, or all, the
longest dead first.`,
		Example: `  switchyard queue redrive thumbnails
  switchyard queue redrive thumbnails --limit 10
  switchyard queue redrive thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactArgs("QUEUE")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.RedriveDeadTasks(ctx, &v1.RedriveDeadTasksRequest{Namespace: a.namespace, Queue: args[0], Ids: args[1:], Limit: limit})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]int64{"redriven": resp.GetRedriven()})
				}
				_, err = fmt.Fprintf(a.stdout, "made %s of queue %s ready again\n", plural(resp.GetRedriven(), "dead task"), args[0])
				return err
			})
		},
	}
	c.Flags().Int64Var(&limit, "limit", 0, "at most so many; 0 for all")
	return c
}
