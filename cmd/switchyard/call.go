package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard"
)

func newCallCommand(a *app) *cobra.Command {
	var headers []string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "call QUEUE KIND [PAYLOAD]",
		Short: "Hand a request to a worker and print its answer",
		Long: `Hand a request to a worker of a queue, wait for the answer and print it. A call
is never stored: it needs a worker that serves calls (the Go SDK has CallWorker),
and exits with 5 when none takes it, or none answers, within --wait. What the
worker says went wrong is printed, with exit code 1. A PAYLOAD of - is read from
standard input.`,
		Example: `  switchyard call prices quote '{"sku":"a-1"}'
  switchyard call images describe - --wait 30s < cat.jpg`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 3 {
				return nil
			}
			return exactArgs("QUEUE", "KIND")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			call := switchyard.Call{Kind: args[1], Timeout: wait}
			if wait <= 0 {
				return usageOf(c, fmt.Errorf("--wait must be more than 0, not %v", wait))
			}
			switch {
			case len(args) == 3 && args[2] == "-":
				payload, err := io.ReadAll(a.stdin)
				if err != nil {
					return fmt.Errorf("read standard input: %w", err)
				}
				call.Payload = payload
			case len(args) == 3:
				call.Payload = []byte(args[2])
			}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, "=")
				if !ok || name == "" {
					return usageOf(c, fmt.Errorf("--header %q is not NAME=VALUE", h))
				}
				if call.Headers == nil {
					call.Headers = map[string]string{}
				}
				call.Headers[name] = value
			}
			client, err := a.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			if err := a.reach(c.Context(), client); err != nil {
				return err
			}
			answer, err := client.Call(c.Context(), args[0], call)
			var failed *switchyard.CallError
			switch {
			case errors.As(err, &failed):
				return &exitError{code: exitFailed, err: fmt.Errorf("worker %s: %s", printable(failed.Identity, 80), failed.Text)}
			case err != nil:
				return err
			case a.json():
				return a.printJSON(map[string]string{"payload": string(answer)})
			}
			_, err = a.stdout.Write(answer)
			return err
		},
	}
	c.Flags().StringArrayVar(&headers, "header", nil, "`NAME=VALUE` that is carried along; may be given several times")
	c.Flags().DurationVar(&wait, "wait", 10*time.Second, "how long to wait for the answer, 60s at most")
	return c
}
