package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func newTaskCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "task",
		Short: "Look at and cancel single tasks",
		Example: `  switchyard task get thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10
  switchyard task cancel thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10`,
	}
	asGroup(c)
	c.AddCommand(newTaskGetCommand(a), newTaskCancelCommand(a))
	return c
}

func newTaskGetCommand(a *app) *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use:   "get QUEUE ID",
		Short: "Show a task",
		Long: `Show a task: its state, attempts, last error and payload. A task that has ended
is known for 10 minutes after it was added; a dead one as long as it is kept.`,
		Example: `  switchyard task get thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10
  switchyard task get thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10 --payload > payload.bin`,
		Args: exactArgs("QUEUE", "ID"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.tasks.GetTask(ctx, &v1.GetTaskRequest{Namespace: a.namespace, Queue: args[0], Id: args[1]})
				if err != nil {
					return err
				}
				switch {
				case payload:
					_, err = a.stdout.Write(resp.GetTask().GetPayload())
					return err
				case a.json():
					return a.printJSON(viewTask(resp.GetTask()))
				}
				return a.printTask(resp.GetTask())
			})
		},
	}
	c.Flags().BoolVar(&payload, "payload", false, "write the payload as it is and nothing else")
	return c
}

func (a *app) printTask(task *v1.Task) error {
	v := viewTask(task)
	t := a.newTable()
	t.field("Task", v.ID)
	t.field("Queue", v.Queue)
	t.field("Namespace", v.Namespace)
	t.field("Kind", printable(v.Kind, 255))
	t.field("State", v.State)
	if v.Attempt != nil {
		t.field("Attempt", fmt.Sprintf("%d of %d", *v.Attempt, v.MaxAttempts))
	}
	t.field("Added", viewTimeText(v.AddedAt))
	t.field("Runs at", viewTimeText(v.RunAt))
	t.field("Leased until", viewTimeText(v.LeaseDeadline))
	t.field("Worker", printable(v.Worker, 255))
	t.field("Last error", printable(v.LastError, 1000))
	t.field("Dead since", viewTimeText(v.DeadAt))
	if v.Priority != 0 && v.Priority != usualPriority {
		t.field("Priority", count(v.Priority))
	}
	if v.FairnessKey != "" {
		t.field("Fairness key", fmt.Sprintf("%s, weight %g", printable(v.FairnessKey, 80), v.FairnessWeight))
	}
	t.field("Expires", viewTimeText(v.ExpiresAt))
	for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
		t.field("Header", printable(name, 255)+": "+printable(v.Headers[name], 1000))
	}
	if v.Payload != nil || v.PayloadBase64 != nil {
		t.field("Payload", fmt.Sprintf("%s  %s", plural(len(task.GetPayload()), "byte"), printable(strings.TrimRight(string(task.GetPayload()), "\n"), 300)))
	}
	return t.flush()
}

func newTaskCancelCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel QUEUE ID",
		Short: "Remove a task that has not ended",
		Long: `Remove a task that has not ended, whatever state it is in. A worker that holds it
learns so when it reports back.`,
		Example: "  switchyard task cancel thumbnails 01976f0e-7d3c-7b1e-a8d4-0f6c1f3b2a10",
		Args:    exactArgs("QUEUE", "ID"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.tasks.CancelTask(ctx, &v1.CancelTaskRequest{Namespace: a.namespace, Queue: args[0], Id: args[1]})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]string{"id": args[1], "was": stateName(resp.GetState())})
				}
				_, err = fmt.Fprintf(a.stdout, "cancelled task %s, which was %s\n", args[1], stateName(resp.GetState()))
				return err
			})
		},
	}
}
