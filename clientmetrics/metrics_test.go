package clientmetrics

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

func newBalancer(t *testing.T, r *balance.Registry, addresses ...string) *balance.Balancer {
	t.Helper()
	b, err := balance.New(balance.Config{Name: "shop", Registry: r, Load: balance.PeakEWMA})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	var list []balance.Endpoint
	for _, a := range addresses {
		list = append(list, balance.Endpoint{Address: a})
	}
	if err := b.Update(list); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMetrics_showBalancers(t *testing.T) {
	var r balance.Registry
	// Two connections to one name are shown as one.
	one, two := newBalancer(t, &r, "a", "b"), newBalancer(t, &r, "a", "b")
	pick, err := one.Pick()
	if err != nil {
		t.Fatal(err)
	}
	other, err := two.Pick()
	if err != nil {
		t.Fatal(err)
	}
	pick.Done(balance.Refused)
	one.Nodes()[0].SetStatus(balance.Busy)
	m := New("c", &r, WithEndpoints())
	if err := testutil.CollectAndCompare(m, strings.NewReader(`
# HELP switchyard_client_balancer_load Outstanding requests.
# TYPE switchyard_client_balancer_load gauge
switchyard_client_balancer_load{balancer="shop",policy="p2c_peak_ewma"} 1
# HELP switchyard_client_balancer_endpoints Endpoints by status: open, busy (left alone for now) or closed.
# TYPE switchyard_client_balancer_endpoints gauge
switchyard_client_balancer_endpoints{balancer="shop",policy="p2c_peak_ewma",status="busy"} 1
switchyard_client_balancer_endpoints{balancer="shop",policy="p2c_peak_ewma",status="closed"} 0
switchyard_client_balancer_endpoints{balancer="shop",policy="p2c_peak_ewma",status="open"} 3
# HELP switchyard_client_balancer_results_total Ended requests by what they say about the endpoint.
# TYPE switchyard_client_balancer_results_total counter
switchyard_client_balancer_results_total{balancer="shop",outcome="failure",policy="p2c_peak_ewma"} 0
switchyard_client_balancer_results_total{balancer="shop",outcome="ignored",policy="p2c_peak_ewma"} 0
switchyard_client_balancer_results_total{balancer="shop",outcome="refused",policy="p2c_peak_ewma"} 1
switchyard_client_balancer_results_total{balancer="shop",outcome="success",policy="p2c_peak_ewma"} 0
switchyard_client_balancer_results_total{balancer="shop",outcome="unreachable",policy="p2c_peak_ewma"} 0
`), "switchyard_client_balancer_load", "switchyard_client_balancer_endpoints", "switchyard_client_balancer_results_total"); err != nil {
		t.Error(err)
	}
	other.Done(balance.Success)
	if n := testutil.CollectAndCount(m, "switchyard_client_endpoint_load"); n != 2 {
		t.Errorf("%d endpoints shown, want 2", n)
	}
	if n := testutil.CollectAndCount(New("c", &r), "switchyard_client_endpoint_load"); n != 0 {
		t.Errorf("%d endpoints shown though nobody asked", n)
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestMetrics_showRetries(t *testing.T) {
	m := New("c", nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	o := m.Method("/a/B")
	o.Attempt(retry.Requeueable, 3*time.Millisecond)
	o.Attempt(retry.Success, 2*time.Millisecond)
	o.Count(retry.CountRequeues)
	o.Count(retry.Counts) // unknown ones do no harm
	o.Logical(retry.Success, 5*time.Millisecond, retry.Tries{Requeues: 1})
	budget, err := retry.NewBudget(retry.DefaultBudget())
	if err != nil {
		t.Fatal(err)
	}
	m.WatchBudget(budget)
	for metric, want := range map[string]float64{
		`switchyard_client_attempts_total{class="requeueable",client="c",method="/a/B"}`: 1,
		`switchyard_client_attempts_total{class="success",client="c",method="/a/B"}`:     1,
		`switchyard_client_requests_total{class="success",client="c",method="/a/B"}`:     1,
		`switchyard_client_requeues_total{client="c",method="/a/B"}`:                     1,
		`switchyard_client_retry_budget{client="c"}`:                                     10,
	} {
		if got := value(t, reg, metric); got != want {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
}

// value finds a counter or gauge by its text.
func value(t *testing.T, g prometheus.Gatherer, metric string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			if f.GetName()+"{"+strings.Join(labels, ",")+"}" == metric {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("no metric %s", metric)
	return 0
}

// The page lists every metric, and no other.
func TestDocs_listAllMetrics(t *testing.T) {
	page, err := os.ReadFile("../docs/client.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, name := range regexp.MustCompile("`(switchyard_client_[a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		documented[name[1]] = true
	}
	var r balance.Registry
	out := make(chan *prometheus.Desc, 200)
	New("c", &r, WithEndpoints()).Describe(out)
	close(out)
	for d := range out {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if !documented[name] {
			t.Errorf("docs/client.md does not list %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/client.md lists %s, which does not exist", name)
	}
}
