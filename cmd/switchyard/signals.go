package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interrupts returns two contexts: graceful ends at the first SIGINT or SIGTERM,
// now at the second. stop gives the signals back.
func interrupts(parent context.Context) (graceful, now context.Context, stop func()) {
	graceful, endGraceful := context.WithCancel(parent)
	now, endNow := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for _, end := range []context.CancelFunc{endGraceful, endNow} {
			select {
			case <-signals:
				end()
			case <-done:
				return
			}
		}
	}()
	return graceful, now, func() {
		signal.Stop(signals)
		close(done)
		endGraceful()
		endNow()
	}
}
