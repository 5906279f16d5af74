package httpclient

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/switchyard-dev/switchyard/balance"
)

func TestTransport_spreadsRequests(t *testing.T) {
	host := make(chan string, 1000)
	h := func(_ http.ResponseWriter, r *http.Request) { host <- r.Host }
	a, b, c := start(t, h), start(t, h), start(t, h)
	client, tr, rec := newClient(t, Config{Service: "catalog", Endpoints: urls(a, b, c)})
	for range 300 {
		if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		if h := <-host; h != "catalog" {
			t.Fatalf("the server sees host %q", h)
		}
	}
	for i, s := range []*server{a, b, c} {
		if n := s.calls.Load(); n < 50 {
			t.Errorf("server %d got %d of 300", i, n)
		}
	}
	if s := tr.Balancer().Stats(); s.Outstanding != 0 || s.Results[balance.Success] != 300 || s.Name != "catalog" {
		t.Errorf("outstanding %d, results %v, name %q", s.Outstanding, s.Results, s.Name)
	}
	if len(rec.logical) != 300 {
		t.Errorf("%d logical requests counted", len(rec.logical))
	}
}

func TestTransport_otherHostsGoToTheBase(t *testing.T) {
	outside := start(t, nil)
	inside := start(t, http.RedirectHandler(outside.URL+"/x", http.StatusFound).ServeHTTP)
	client, _, _ := newClient(t, Config{Service: "catalog", Endpoints: urls(inside)})
	if code, _, err := do(client, "GET", ""); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	if outside.calls.Load() != 1 {
		t.Errorf("the redirection was followed %d times", outside.calls.Load())
	}
}

func answer503(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }
func nack(w http.ResponseWriter, _ *http.Request)      { Refuse(w, "full") }

func TestTransport_upgrades(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	})
	_, tr, _ := newClient(t, Config{Endpoints: urls(s)})
	r, _ := http.NewRequest("GET", "http://catalog/", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the body of an upgraded connection cannot be written")
	}
	if _, err := io.WriteString(conn, "hi\n"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, conn); err != nil || out.String() != "hi\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func BenchmarkTransport(b *testing.B) {
	tr, err := New(Config{Endpoints: []Endpoint{{URL: "a"}, {URL: "b"}}, Base: instant{}})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	r, _ := http.NewRequest("GET", "http://catalog/", nil)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}

type instant struct{}

func (instant) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
}
