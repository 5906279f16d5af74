package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func newQueueEndPollsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "end-polls QUEUE WORKER",
		Short: "End the waiting polls of a worker",
		Long: `End all waiting polls of a worker, by the name under which "queue describe" shows
it, in all partitions of a queue. Its new polls are refused for 30 seconds. Tasks
that it holds stay with it.`,
		Example: "  switchyard queue end-polls thumbnails host-7:4711",
		Args:    exactArgs("QUEUE", "WORKER"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.EndWorkerPolls(ctx, &v1.EndWorkerPollsRequest{Namespace: a.namespace, Queue: args[0], Identity: args[1]})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]int32{"ended": resp.GetEnded()})
				}
				_, err = fmt.Fprintf(a.stdout, "ended %s of %s\n", plural(int64(resp.GetEnded()), "poll"), printable(args[1], 80))
				return err
			})
		},
	}
}
