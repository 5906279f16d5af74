package crashtest

import (
	"bufio"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

// docs/operations.md lists what /metrics of a working server has, name by name.
func TestMetrics_areDocumented(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	n.start()
	c := newClient(dial(t, n.addr), history.NewRecorder(), "metrics", "client")
	if _, err := c.add(t.Context(), []*switchyardv1.TaskSpec{newTask(10), newTask(10)}); err != nil {
		t.Fatal(err)
	}
	tasks, err := c.poll(t.Context(), 1, 5*time.Second, 0)
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d tasks, error %v", len(tasks), err)
	}
	if err := c.complete(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get("http://" + n.addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, found := string(page), map[string]bool{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, ok := strings.CutPrefix(lines.Text(), "# TYPE ")
		if !ok || !strings.HasPrefix(name, "switchyard_") {
			continue
		}
		name = strings.Fields(name)[0]
		found[name] = true
		if !strings.Contains(documented, "`"+name+"`") {
			t.Errorf("docs/operations.md does not explain %s", name)
		}
	}
	if len(found) < 5 {
		t.Errorf("only %d metrics found", len(found))
	}
	// These are there once a queue has several partitions.
	later := map[string]bool{
		"switchyard_matching_forwards_total": true, "switchyard_matching_force_loads_total": true,
		"switchyard_matching_queue_partitions": true, "switchyard_matching_partition_changes_total": true,
	}
	for _, part := range strings.Split(documented, "`") {
		if strings.HasPrefix(part, "switchyard_") && !found[part] && !later[part] {
			t.Errorf("docs/operations.md explains %s, which a server does not have", part)
		}
	}
}
