package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// World is everything but the policy: servers, clients and what happens to them.
type World struct {
	Name, About string
	Clients     int // 1 to 10,000
	Servers     int // 1 to 10,000
	Workers     int // requests a server works on at once
	Queue       int // requests that wait in a server; more are refused

	// Service time: lognormal with this mean and sigma; sigma 0 is constant.
	Mean  time.Duration
	Sigma float64
	// Load is the offered load as a share of what all servers can do when healthy.
	Load float64
	// Shares are the relative loads of the clients; nil means equal.
	Shares []float64

	Network time.Duration // one way
	Connect time.Duration // to open a connection

	Duration time.Duration
	// Warmup is left out of the results.
	Warmup time.Duration
	Faults []Fault
	// Resize changes the number of servers or clients at a time.
	Resize []Resize
}

// Fault is what is wrong with a server during a time. To 0 means for ever.
type Fault struct {
	Server   int
	From, To time.Duration
	// Slow multiplies service times; 0 means 1.
	Slow float64
	// Failing makes the server answer with an error after this time, without work.
	Failing time.Duration
	// FailShare is the share of requests that fail so; 0 means all.
	FailShare float64
	// Down cuts connections and refuses new ones.
	Down bool
	// Cold, after To, multiplies service times by a factor that falls to 1 over 10 s.
	Cold float64
}

// Resize is a change of numbers at a time; -1 leaves one as it is.
type Resize struct {
	At               time.Duration
	Servers, Clients int
}

// Tail is the world in which tail latency is compared: 20 clients, 50 servers, 70 %
// load, and one server each that is slow, that fails fast, and that goes away and
// comes back cold.
func Tail() World {
	w := Healthy()
	w.Name, w.About = "tail", "one server ten times slower, one that fails after 0.5 ms, one gone from 20 s to 23 s and back cold"
	w.Faults = []Fault{
		{Server: 7, Slow: 10},
		{Server: 19, Failing: 500 * time.Microsecond},
		{Server: 31, From: 20 * time.Second, To: 23 * time.Second, Down: true, Cold: 5},
	}
	return w
}

// Healthy is Tail without faults.
func Healthy() World {
	return World{
		Name: "healthy", About: "all servers are fine",
		Clients: 20, Servers: 50, Workers: 4, Queue: 32, Mean: 10 * time.Millisecond, Sigma: 0.7, Load: 0.7,
		Network: 100 * time.Microsecond, Connect: time.Millisecond, Duration: 45 * time.Second,
	}
}

// Quarter is Healthy with one client that has a quarter of all load.
func Quarter() World {
	w := Healthy()
	w.Name, w.About = "quarter", "one of the clients has a quarter of all load"
	w.Shares = make([]float64, w.Clients)
	for i := range w.Shares {
		w.Shares[i] = 0.75 / float64(w.Clients-1)
	}
	w.Shares[3] = 0.25
	w.Duration, w.Warmup = 60*time.Second, 20*time.Second
	return w
}

// Deploy replaces servers, one after the other, and adds clients.
func Deploy() World {
	w := Healthy()
	w.Name, w.About = "deploy", "each server is away for 1 s, one every 0.5 s, and comes back cold; 20 more clients come at 30 s"
	w.Load = 0.5
	for i := range w.Servers {
		from := 5*time.Second + time.Duration(i)*500*time.Millisecond
		w.Faults = append(w.Faults, Fault{Server: i, From: from, To: from + time.Second, Down: true, Cold: 3})
	}
	w.Resize = []Resize{{At: 30 * time.Second, Servers: -1, Clients: 40}}
	return w
}

// Flapping has servers that come and go.
func Flapping() World {
	w := Healthy()
	w.Name, w.About = "flapping", "five servers go away for 1 s out of every 4 s"
	w.Load = 0.6
	for i := range 5 {
		for t := time.Duration(i) * 700 * time.Millisecond; t < w.Duration; t += 4 * time.Second {
			w.Faults = append(w.Faults, Fault{Server: 10 * i, From: t + 2*time.Second, To: t + 3*time.Second, Down: true})
		}
	}
	return w
}

// Storm has servers that fail half of their requests for 30 s.
func Storm() World {
	w := Healthy()
	w.Name, w.About = "storm", "from 10 s to 40 s all servers fail half of their requests"
	w.Load, w.Clients, w.Duration = 0.5, 100, 50*time.Second
	for i := range w.Servers {
		w.Faults = append(w.Faults, Fault{Server: i, From: 10 * time.Second, To: 40 * time.Second, Failing: 2 * time.Millisecond, FailShare: 0.5})
	}
	return w
}

// Many is thousands of clients and servers.
func Many() World {
	w := Healthy()
	w.Name, w.About = "many", "2,000 clients and 1,000 servers"
	w.Clients, w.Servers, w.Load = 2000, 1000, 0.5
	w.Duration = 5 * time.Second
	return w
}

// Grow has servers and clients that become more and fewer.
func Grow() World {
	w := Healthy()
	w.Name, w.About = "grow", "50 servers become 80 at 10 s and 40 at 30 s; 20 clients become 60 at 20 s"
	w.Load = 0.5
	w.Resize = []Resize{{10 * time.Second, 80, -1}, {20 * time.Second, -1, 60}, {30 * time.Second, 40, -1}}
	return w
}

// Worlds are all that are named.
func Worlds() []World {
	return []World{Tail(), Healthy(), Quarter(), Deploy(), Grow(), Flapping(), Storm(), Many()}
}

// Check returns an error that names the first field out of range.
func (w World) Check() error {
	for _, f := range []struct {
		name       string
		v, lo, top int
	}{
		{"clients", w.Clients, 1, 10_000}, {"servers", w.Servers, 1, 10_000}, {"workers", w.Workers, 1, 1000}, {"queue", w.Queue, 0, 1_000_000},
	} {
		if f.v < f.lo || f.v > f.top {
			return fmt.Errorf("%s must be between %d and %d, not %d", f.name, f.lo, f.top, f.v)
		}
	}
	switch {
	case w.Mean < 10*time.Microsecond || w.Mean > time.Minute:
		return fmt.Errorf("mean must be between 10µs and 1m, not %v", w.Mean)
	case !(w.Sigma >= 0 && w.Sigma <= 3):
		return fmt.Errorf("sigma must be between 0 and 3, not %v", w.Sigma)
	case !(w.Load > 0 && w.Load <= 10):
		return fmt.Errorf("load must be above 0 and at most 10, not %v", w.Load)
	case w.Duration < 100*time.Millisecond || w.Duration > time.Hour:
		return fmt.Errorf("duration must be between 100ms and 1h, not %v", w.Duration)
	case w.Warmup < 0 || w.Warmup >= w.Duration:
		return fmt.Errorf("warmup must be between 0 and the duration, not %v", w.Warmup)
	case w.Network < 0 || w.Connect < 0:
		return fmt.Errorf("network and connect times must not be negative")
	case w.Shares != nil && len(w.Shares) != w.Clients:
		return fmt.Errorf("there are %d shares for %d clients", len(w.Shares), w.Clients)
	}
	for _, f := range w.Faults {
		if f.Server < 0 || f.Server >= w.Servers {
			return fmt.Errorf("fault of server %d; there are only %d", f.Server, w.Servers)
		}
	}
	return nil
}

// Requests is about how many requests a run makes.
func (w World) Requests() int {
	return int(w.rate() * w.Duration.Seconds())
}

// rate is the requests per second of all clients.
func (w World) rate() float64 {
	return w.Load * float64(w.Servers*w.Workers) / w.Mean.Seconds()
}

// service draws a service time.
func (w *World) service(r *rand.Rand) time.Duration {
	if w.Sigma == 0 {
		return w.Mean
	}
	mu := math.Log(float64(w.Mean)) - w.Sigma*w.Sigma/2
	return time.Duration(math.Exp(mu + w.Sigma*r.NormFloat64()))
}
