package storage

import (
	"context"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// heldView is a view of one moment that stays open until it is released. Its reader is
// for one goroutine at a time.
type heldView struct {
	engine.Reader
	release chan struct{}
	ended   chan error
}

// hold opens a view that lasts.
func (s *Storage) hold(ctx context.Context) (*heldView, error) {
	h := &heldView{release: make(chan struct{}), ended: make(chan error, 1)}
	opened := make(chan struct{})
	go func() {
		h.ended <- s.eng.View(ctx, func(r engine.Reader) error {
			h.Reader = r
			close(opened)
			<-h.release
			return nil
		})
	}()
	select {
	case <-opened:
		return h, nil
	case err := <-h.ended:
		return nil, err
	}
}

func (h *heldView) close() {
	if h != nil {
		close(h.release)
		<-h.ended
	}
}
