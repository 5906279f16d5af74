package frontend

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// method numbers the calls; it indexes what is kept per call.
type method int

const (
	mAddTasks method = iota
	mPollTasks
	mCompleteTasks
	mFailTasks
	mExtendLeases
	mReleaseTasks
	mPollCalls
	mAnswerCalls
	mGetTask
	mCancelTask
	mCreateQueue
	mUpdateQueue
	mDeleteQueue
	mListQueues
	mDescribeQueue
	mPauseQueue
	mResumeQueue
	mPurgeQueue
	mListDeadTasks
	mRedriveDeadTasks
	mEndWorkerPolls
	mCall
	methodCount
)

var methodNames = [methodCount]string{
	"AddTasks", "PollTasks", "CompleteTasks", "FailTasks", "ExtendLeases", "ReleaseTasks",
	"PollCalls", "AnswerCalls", "GetTask", "CancelTask",
	"CreateQueue", "UpdateQueue", "DeleteQueue", "ListQueues", "DescribeQueue", "PauseQueue", "ResumeQueue",
	"PurgeQueue", "ListDeadTasks", "RedriveDeadTasks", "EndWorkerPolls", "Call",
}

// metrics counts and times calls. What a successful call touches is resolved
// once per method.
type metrics struct {
	requests *prometheus.CounterVec
	ok       [methodCount]prometheus.Counter
	duration [methodCount]prometheus.Observer
	items    [methodCount]prometheus.Observer
	faults   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, f *Frontend) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "switchyard_frontend_requests_total",
			Help: "Calls by method, gRPC code and reason (empty when the call succeeded).",
		}, []string{"method", "code", "reason"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "switchyard_frontend_item_faults_total",
			Help: "Items of batches that the frontend refused, by method.",
		}, []string{"method"}),
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "switchyard_frontend_request_duration_seconds",
		Help:    "How long calls took, waiting included.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 60},
	}, []string{"method"})
	items := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "switchyard_frontend_batch_items",
		Help:    "Items per call: tasks added or polled, leases completed, failed, extended or released, calls polled or answered.",
		Buckets: []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000},
	}, []string{"method"})
	for i := range methodCount {
		m.ok[i] = m.requests.WithLabelValues(methodNames[i], codes.OK.String(), "")
		m.duration[i] = duration.WithLabelValues(methodNames[i])
		if i <= mAnswerCalls {
			m.items[i] = items.WithLabelValues(methodNames[i])
			m.faults.WithLabelValues(methodNames[i])
		}
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.faults, duration, items,
		gauge("switchyard_frontend_requests_in_flight", "Calls other than polls in progress.", f.requests.Load),
		gauge("switchyard_frontend_polls_in_flight", "Polls in progress.", f.polls.Load),
		gauge("switchyard_frontend_bytes_in_flight", "Bytes of tasks on their way into the store.", f.bytes.Load),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// observe records the end of a call; code and reason are zero for success.
func (m *metrics) observe(i method, took time.Duration, code codes.Code, why string) {
	m.duration[i].Observe(took.Seconds())
	if code == codes.OK {
		m.ok[i].Inc()
		return
	}
	m.requests.WithLabelValues(methodNames[i], code.String(), why).Inc()
}
