package httpclient

import (
	"io"
	"net/http"
	"testing"

	"github.com/switchyard-dev/switchyard/balance"
)

func TestTransport_countsARequestUntilItsBodyEnds(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	client, tr, _ := newClient(t, Config{Endpoints: urls(s)})
	resp, err := client.Get("http://catalog/")
	if err != nil {
		t.Fatal(err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 1 {
		t.Errorf("%d outstanding before the body was read", n)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if n := tr.Balancer().Stats().Outstanding; n != 0 {
		t.Errorf("%d outstanding after the end of the body", n)
	}
	resp.Body.Close()
	resp.Body.Close()
	if got := tr.Balancer().Stats().Results[balance.Success]; got != 1 {
		t.Errorf("%d successes", got)
	}
}
