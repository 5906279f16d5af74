package clientmetrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// Metrics is a prometheus.Collector. It is safe for concurrent use.
type Metrics struct {
	registry  *balance.Registry // nil: no balancers
	endpoints bool

	attempts, requests                 *prometheus.CounterVec // by class
	attemptSeconds, requestSeconds     *prometheus.HistogramVec
	requeuesPerRequest, retriesPerCall *prometheus.HistogramVec
	counts                             [retry.Counts]*prometheus.CounterVec
	all                                []prometheus.Collector

	mu      sync.Mutex
	budgets []*retry.Budget
	balance *prometheus.Desc
}

// Option changes what New makes.
type Option func(*Metrics)

// WithEndpoints adds metrics of each endpoint, which are many where endpoints are
// many.
func WithEndpoints() Option { return func(m *Metrics) { m.endpoints = true } }

const prefix = "switchyard_client_"

// seconds are the bounds of the latency histograms.
var seconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// perRequest are the bounds of the histograms of repeated attempts.
var perRequest = []float64{0, 1, 2, 3, 5, 10, 25}

// New makes the metrics of one client. client becomes the label of that name on all
// metrics of retries; registry lists the balancers to show and may be nil.
func New(client string, registry *balance.Registry, options ...Option) *Metrics {
	m := &Metrics{registry: registry}
	for _, o := range options {
		o(m)
	}
	labels := prometheus.Labels{"client": client}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help, ConstLabels: labels}, append([]string{"method"}, more...))
		m.all = append(m.all, v)
		return v
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, ConstLabels: labels, Buckets: buckets}, []string{"method"})
		m.all = append(m.all, v)
		return v
	}
	m.attempts = counter("attempts_total", "Attempts by what their outcome means for retries.", "class")
	m.requests = counter("requests_total", "Logical requests, each with all its attempts, by outcome.", "class")
	m.attemptSeconds = histogram("attempt_seconds", "Time of attempts.", seconds)
	m.requestSeconds = histogram("request_seconds", "Time of logical requests with all attempts and waits.", seconds)
	m.requeuesPerRequest = histogram("requeues_per_request", "Requeues that a logical request needed.", perRequest)
	m.retriesPerCall = histogram("retries_per_request", "Policy retries that a logical request needed.", perRequest)
	for c, help := range countHelp {
		m.counts[c] = counter(retry.Count(c).String()+"_total", help)
	}
	m.balance = prometheus.NewDesc(prefix+"retry_budget", "Retries that the budget allows now.", nil, labels)
	return m
}

var countHelp = [retry.Counts]string{
	retry.CountRequeues:             "Attempts after a refusal, or after a request that was not written.",
	retry.CountRetries:              "Attempts after a failure that the method's policy allows to repeat.",
	retry.CountConnects:             "Attempts after no connection could be had.",
	retry.CountBudgetExhausted:      "Retries held back by the budget or the end of their schedule.",
	retry.CountRequestLimit:         "Retries held back because the request had been sent as often as one may be.",
	retry.CountNoTime:               "Retries held back because the deadline left no time.",
	retry.CountNotRetryable:         "Failures that the server or the caller marked as not retryable.",
	retry.CountNoEndpoints:          "Requests for which there was nothing to send to.",
	retry.CountHedges:               "Backup requests sent.",
	retry.CountHedgesWon:            "Backup requests whose answer was used.",
	retry.CountHedgeBudgetExhausted: "Backup requests held back by a budget.",
}

// WatchBudget shows a budget. Several are added up.
func (m *Metrics) WatchBudget(b *retry.Budget) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.budgets = append(m.budgets, b)
}

// observer is the retry.Observer of one method, with its children looked up once.
type observer struct {
	attempts, requests             [8]prometheus.Counter
	attemptSeconds, requestSeconds prometheus.Observer
	requeues, retries              prometheus.Observer
	counts                         [retry.Counts]prometheus.Counter
}

// Method returns the observer of a method, for the Observe of the adapters. The
// name becomes the label "method".
func (m *Metrics) Method(name string) retry.Observer {
	o := &observer{
		attemptSeconds: m.attemptSeconds.WithLabelValues(name), requestSeconds: m.requestSeconds.WithLabelValues(name),
		requeues: m.requeuesPerRequest.WithLabelValues(name), retries: m.retriesPerCall.WithLabelValues(name),
	}
	for c := range o.attempts {
		class := retry.Class(c).String()
		o.attempts[c] = m.attempts.WithLabelValues(name, class)
		o.requests[c] = m.requests.WithLabelValues(name, class)
	}
	for c := range o.counts {
		o.counts[c] = m.counts[c].WithLabelValues(name)
	}
	return o
}

func (o *observer) Attempt(class retry.Class, latency time.Duration) {
	o.attempts[class&7].Inc()
	o.attemptSeconds.Observe(latency.Seconds())
}

func (o *observer) Logical(class retry.Class, latency time.Duration, tries retry.Tries) {
	o.requests[class&7].Inc()
	o.requestSeconds.Observe(latency.Seconds())
	o.requeues.Observe(float64(tries.Requeues))
	o.retries.Observe(float64(tries.Retries))
}

func (o *observer) Count(c retry.Count) {
	if c < retry.Counts {
		o.counts[c].Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(out)
	}
	out <- m.balance
	if m.registry == nil {
		return
	}
	for i := range balancerMetrics {
		out <- balancerMetrics[i].desc
	}
	out <- statusDesc
	out <- resultsDesc
	if m.endpoints {
		for i := range endpointMetrics {
			out <- endpointMetrics[i].desc
		}
		out <- endpointResultsDesc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(out)
	}
	m.mu.Lock()
	now, total := balance.SystemClock(), 0
	for _, b := range m.budgets {
		total += b.Balance(now)
	}
	watched := len(m.budgets) > 0
	m.mu.Unlock()
	if watched {
		out <- prometheus.MustNewConstMetric(m.balance, prometheus.GaugeValue, float64(total))
	}
	if m.registry != nil {
		collectBalancers(m.registry, out, m.endpoints)
	}
}
