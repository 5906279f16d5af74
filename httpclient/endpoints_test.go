package httpclient

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

func TestTransport_noEndpoints(t *testing.T) {
	client, tr, rec := newClient(t, Config{})
	if _, _, err := do(client, "GET", ""); !errors.Is(err, balance.ErrNoEndpoints) || rec.counts[retry.CountNoEndpoints] != 1 {
		t.Errorf("got %v", err)
	}
	s := start(t, nil)
	if err := tr.Update(urls(s)); err != nil {
		t.Fatal(err)
	}
	if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
		t.Error(code, err)
	}

	patient, tr, _ := newClient(t, Config{WaitForEndpoints: 10 * time.Second})
	done := make(chan error, 1)
	go func() { _, _, err := do(patient, "GET", ""); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	if err := tr.Update(urls(s)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	short, _, _ := newClient(t, Config{WaitForEndpoints: 20 * time.Millisecond})
	if _, _, err := do(short, "GET", ""); !errors.Is(err, balance.ErrNoEndpoints) {
		t.Errorf("got %v", err)
	}
	tr.Close()
	if _, _, err := do(patient, "GET", ""); !errors.Is(err, balance.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestTransport_changesUnderLoad(t *testing.T) {
	a, b, c := start(t, nil), start(t, nil), start(t, nil)
	client, tr, _ := newClient(t, Config{Endpoints: urls(a, b)})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if code, _, err := do(client, "POST", "x"); code != 200 || err != nil {
					t.Error(code, err)
					return
				}
			}
		})
	}
	for i := range 100 {
		sets := [][]Endpoint{urls(a, b), urls(b, c), urls(c, a)}
		if err := tr.Update(sets[i%3]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // let some requests through
	}
	close(stop)
	wg.Wait()
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding", n)
	}
}
