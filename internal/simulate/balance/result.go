package balance

import (
	"time"
)

// Result is what happened in a run.
type Result struct {
	World, Policy string

	// After the warm-up.
	Requests, Failures int // logical requests that ended, and that failed
	Attempts           int
	Retries, Hedges    int // of the whole run
	P50, P90, P99      time.Duration
	P999, Max, Mean    time.Duration
	// Connections is the average number of open connections of all clients
	// together, and Mesh that number as a share of every client with every server.
	Connections, Mesh float64
	// PerServer counts the attempts that reached each server. Busiest and Idlest are
	// the most and the fewest, over the mean.
	PerServer       []int
	Busiest, Idlest float64

	Steps []Step
}

// Step is half a second.
type Step struct {
	Requests, Attempts, Failures int
	P50, P99                     time.Duration
	Connections                  int
	Aperture                     float64 // average size; 0 for policies without
}

// Success is the share of requests that succeeded.
func (r *Result) Success() float64 {
	if r.Requests == 0 {
		return 0
	}
	return 1 - float64(r.Failures)/float64(r.Requests)
}

// Extra is how many attempts there were beyond one per request, as a share.
func (r *Result) Extra() float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Attempts)/float64(r.Requests) - 1
}

func (s *sim) finish() {
	r := s.result
	h := &s.latency
	r.P50, r.P90, r.P99, r.P999 = h.quantile(0.5), h.quantile(0.9), h.quantile(0.99), h.quantile(0.999)
	r.Max, r.Mean = h.max, h.mean()
	measured, all := 0, 0.0
	for i := range s.steps {
		r.Steps[i].P50, r.Steps[i].P99 = s.steps[i].quantile(0.5), s.steps[i].quantile(0.99)
		if at := time.Duration(i) * tick; at >= s.world.Warmup && at > 0 && at < s.world.Duration {
			measured++
			all += float64(r.Steps[i].Connections)
		}
	}
	if measured > 0 {
		r.Connections = all / float64(measured)
		r.Mesh = r.Connections / float64(len(s.clients)*len(s.servers))
	}
	total, most, least := 0, 0, -1
	for _, v := range s.servers {
		r.PerServer = append(r.PerServer, v.received)
		total += v.received
		most = max(most, v.received)
		if least < 0 || v.received < least {
			least = v.received
		}
	}
	if total > 0 {
		mean := float64(total) / float64(len(s.servers))
		r.Busiest, r.Idlest = float64(most)/mean, float64(least)/mean
	}
}

// Average is the mean of several runs' figures; quantiles are averaged too. It
// has no steps but those of the first.
func Average(runs []*Result) *Result {
	n := time.Duration(len(runs))
	out := *runs[0]
	out.Requests, out.Failures, out.Attempts, out.Retries, out.Hedges = 0, 0, 0, 0, 0
	out.P50, out.P90, out.P99, out.P999, out.Max, out.Mean = 0, 0, 0, 0, 0, 0
	out.Connections, out.Mesh, out.Busiest, out.Idlest = 0, 0, 0, 0
	for _, r := range runs {
		out.Requests += r.Requests
		out.Failures += r.Failures
		out.Attempts += r.Attempts
		out.Retries += r.Retries
		out.Hedges += r.Hedges
		out.P50 += r.P50 / n
		out.P90 += r.P90 / n
		out.P99 += r.P99 / n
		out.P999 += r.P999 / n
		out.Max = max(out.Max, r.Max)
		out.Mean += r.Mean / n
		out.Connections += r.Connections / float64(n)
		out.Mesh += r.Mesh / float64(n)
		out.Busiest += r.Busiest / float64(n)
		out.Idlest += r.Idlest / float64(n)
	}
	return &out
}
