package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// client makes no connection outlive its test.
func client(t testing.TB) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func do(t testing.TB, s *Server, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func get(t testing.TB, s *Server, path string) (int, string) {
	t.Helper()
	return do(t, s, http.MethodGet, path, "")
}

const queuePath = "/v1/namespaces/default/queues/q"

func TestHTTP_wayOfATask(t *testing.T) {
	s := start(t, newTinyCore(), nil)
	code, body := do(t, s, "POST", queuePath+"/tasks:add", `{"tasks":[{"kind":"k","payload":"aGVsbG8="},{"kind":""}]}`)
	var added struct {
		Results []struct {
			ID    string
			Error struct{ Reason string }
		}
	}
	if err := json.Unmarshal([]byte(body), &added); code != 200 || err != nil || len(added.Results) != 2 || added.Results[1].Error.Reason != reason.InvalidKind {
		t.Fatalf("%d %s", code, body)
	}
	code, body = do(t, s, "POST", queuePath+"/tasks:poll", `{"maxTasks":2,"wait":"0s"}`)
	var polled struct {
		Tasks []struct{ ID, Payload, LeaseToken string }
	}
	if err := json.Unmarshal([]byte(body), &polled); code != 200 || err != nil || len(polled.Tasks) != 1 || polled.Tasks[0].Payload != "aGVsbG8=" {
		t.Fatalf("%d %s", code, body)
	}
	code, body = do(t, s, "POST", queuePath+"/tasks:complete", fmt.Sprintf(`{"lease_tokens":[%q]}`, polled.Tasks[0].LeaseToken))
	if code != 200 || strings.Contains(body, "reason") {
		t.Fatalf("%d %s", code, body)
	}
	// Empty lists and numbers are written, so that a reader need not guess.
	if code, body = do(t, s, "POST", queuePath+"/tasks:poll", `{"wait":"0s"}`); code != 200 || !strings.Contains(body, `"tasks":[]`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestHTTP_badInput(t *testing.T) {
	s := start(t, newTinyCore(), func(c *Config) { c.Limits.PayloadBytes = 1000; c.Limits.RequestBytes = 2000 })
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"not JSON":         {"POST", queuePath + "/tasks:add", `{`, 400, reason.InvalidRequest},
		"wrong UTF-8":      {"POST", queuePath + "/tasks:add", "{\"tasks\":[{\"kind\":\"\xff\"}]}", 400, reason.InvalidRequest},
		"unknown field":    {"POST", queuePath + "/tasks:add", `{"taks":[]}`, 400, reason.InvalidRequest},
		"two documents":    {"POST", queuePath + "/tasks:add", `{"tasks":[]}{}`, 400, reason.InvalidRequest},
		"bad base64":       {"POST", queuePath + "/tasks:add", `{"tasks":[{"payload":"*"}]}`, 400, reason.InvalidRequest},
		"bad duration":     {"POST", queuePath + "/tasks:poll", `{"wait":"soon"}`, 400, reason.InvalidRequest},
		"no tasks":         {"POST", queuePath + "/tasks:add", `{}`, 400, reason.BatchEmpty},
		"no body":          {"POST", queuePath + "/tasks:add", ``, 400, reason.BatchEmpty},
		"huge body":        {"POST", queuePath + "/tasks:add", strings.Repeat(" ", 200_000), 413, reason.RequestTooLarge},
		"bad name":         {"POST", "/v1/namespaces/default/queues/_x/tasks:add", `{}`, 400, reason.InvalidQueueName},
		"bad query":        {"GET", "/v1/namespaces/default/queues?pageSize=x", "", 400, reason.InvalidRequest},
		"unknown queue":    {"GET", "/v1/namespaces/default/queues/nope", "", 404, reason.QueueNotFound},
		"unknown path":     {"GET", "/v1/nothing", "", 404, reason.UnknownMethod},
		"unknown page":     {"GET", "/nothing", "", 404, reason.UnknownMethod},
		"wrong method":     {"PUT", queuePath + "/tasks:add", `{}`, 405, reason.UnknownMethod},
		"pprof off":        {"GET", "/debug/pprof/", "", 404, reason.UnknownMethod},
		"profile off":      {"GET", "/debug/pprof/profile", "", 404, reason.UnknownMethod},
		"bad task id":      {"GET", queuePath + "/tasks/17", "", 400, reason.InvalidTaskID},
		"malformed escape": {"GET", "/v1/namespaces/default/queues/%20", "", 400, reason.InvalidQueueName},
	} {
		t.Run(name, func(t *testing.T) {
			code, text := do(t, s, c.method, c.path, c.body)
			var body errorBody
			if err := json.Unmarshal([]byte(text), &body); err != nil {
				t.Fatalf("%d %s", code, text)
			}
			if code != c.status || body.Status != c.status || body.Reason != c.want || body.Message == "" || body.Code == "" {
				t.Errorf("%d %s", code, text)
			}
		})
	}
}

func TestHTTP_pages(t *testing.T) {
	s := start(t, newTinyCore(), func(c *Config) { c.Pprof = true })
	do(t, s, "POST", queuePath+"/tasks:add", `{"tasks":[{"kind":"k"}]}`)
	for path, want := range map[string]string{
		"/healthz":      "alive",
		"/readyz":       "ready",
		"/metrics":      `switchyard_frontend_requests_total{code="OK",method="AddTasks",reason=""} 1`,
		"/openapi.json": `"title": "Switchyard"`,
		"/debug/pprof/": "goroutine",
	} {
		if code, body := get(t, s, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	if _, body := get(t, s, "/metrics"); !strings.Contains(body, "go_goroutines") || !strings.Contains(body, "process_open_fds") {
		t.Error("metrics of Go and the process are missing")
	}
}

func TestHTTP_vanishedClientEndsItsPoll(t *testing.T) {
	core := newTinyCore()
	s := start(t, core, nil)
	ctx, cancel := context.WithCancel(shortly(t))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.Addr()+queuePath+"/tasks:poll", strings.NewReader(`{"wait":"60s"}`))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := client(t).Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	<-core.polling
	cancel()
	<-done
	waitFor(t, func() bool { return s.frontend.InFlight() == 0 })
}

func TestHTTP_bodyThatNeverComesIsNotInTheWayOfStopping(t *testing.T) {
	s, stop := startUntil(t, newTinyCore(), func(c *Config) { c.ShutdownTimeout = 100 * time.Millisecond })
	conn := dial(t, s.Addr())
	fmt.Fprintf(conn, "POST %s/tasks:add HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", queuePath)
	// The server asks for the body once the handler reads it.
	if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
}
