package switchyard

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// Middleware puts something around a Handler.
type Middleware func(Handler) Handler

// wrap puts middleware around a handler, the first one outermost.
func wrap(handler Handler, middleware []Middleware) Handler {
	for i := len(middleware) - 1; i >= 0; i-- {
		handler = middleware[i](handler)
	}
	return handler
}

// Logging logs each attempt when it ends: at level info if it completed, as a
// warning otherwise.
func Logging(logger *slog.Logger) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, job *Job) error {
			start := time.Now()
			err := next.HandleTask(ctx, job)
			attrs := []slog.Attr{
				slog.String("queue", job.Queue),
				slog.String("kind", job.Kind),
				slog.String("id", job.ID),
				slog.Int("attempt", job.Attempt),
				slog.Duration("took", time.Since(start)),
			}
			if err == nil {
				logger.LogAttrs(ctx, slog.LevelInfo, "task completed", attrs...)
			} else {
				logger.LogAttrs(ctx, slog.LevelWarn, "task failed", append(attrs, slog.Any("error", err))...)
			}
			return err
		})
	}
}

// Recover turns a panic of the handler into a *PanicError, so that middleware
// outside of it sees an error. Workers recover by themselves as the last resort.
func Recover() Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, job *Job) (err error) {
			defer func() {
				if value := recover(); value != nil {
					err = newPanicError(value)
				}
			}()
			return next.HandleTask(ctx, job)
		})
	}
}

func newPanicError(value any) *PanicError {
	return &PanicError{Value: value, Stack: cut(string(debug.Stack()), maxStack)}
}

// Timeout bounds how long a handler may take for one attempt: its context ends
// then. A handler that returns an error afterwards has failed with a text that
// says so.
func Timeout(limit time.Duration) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, job *Job) error {
			bounded, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			err := next.HandleTask(bounded, job)
			if err != nil && bounded.Err() == context.DeadlineExceeded && ctx.Err() == nil {
				return fmt.Errorf("took longer than %v: %w", limit, err)
			}
			return err
		})
	}
}
