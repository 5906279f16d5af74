package grpcbalance

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/serviceconfig"

	"github.com/switchyard-dev/switchyard/balance"
)

var logger = grpclog.Component("switchyard_balance")

// Options are a policy's options in the service config. All are optional; what is
// not there has the default of package balance, which explains the meaning too.
// Durations are texts such as "10s" or "1.5s".
//
// For all policies:
//
//	name            text: the balancer's name in metrics; otherwise the target
//	panic           "10%", "30%", "40%", "50%" (default), "majority", "always"
//	failureAccrual  {"off": true} or any of
//	                {"consecutive": 5, "successRate": 0.8, "window": "30s",
//	                 "minRequests": 5, "sentence": "5s", "maxSentence": "300s"};
//	                "consecutive": 0 or "successRate": 0 switches off that half
//
// For all but switchyard_heap and switchyard_round_robin:
//
//	successBias     number, 0 to 4
//
// For the peak_ewma policies:
//
//	decay           duration
//	readsDecay      true or false
//
// For the p2c policies:
//
//	weightClasses   true or false
//
// For the aperture policies:
//
//	min             whole number
//	low, high       numbers
//	smooth, idle    durations
//	lazy, fixed, forgetSize, keepOrder  true or false
//	peer            {"id": 3, "total": 20}; otherwise what SetPeer said
//
// Fields of other names are ignored with a warning in grpc-go's log, as gRPC asks
// of policies.
type Options struct {
	serviceconfig.LoadBalancingConfig

	text   string // to see whether two are the same
	config balance.Config
}

// kind is one of the policies.
type kind struct {
	name   string
	policy balance.Policy
	load   balance.LoadMetric
}

var kinds = []kind{
	{"switchyard_p2c_least_loaded", balance.P2C{}, balance.LeastLoaded},
	{"switchyard_p2c_peak_ewma", balance.P2C{}, balance.PeakEWMA},
	{"switchyard_aperture", balance.Aperture{}, balance.LeastLoaded},
	{"switchyard_aperture_peak_ewma", balance.Aperture{}, balance.PeakEWMA},
	{"switchyard_heap", balance.Heap{}, balance.LeastLoaded},
	{"switchyard_round_robin", balance.RoundRobin{}, balance.LeastLoaded},
}

// field reads one field of the options.
type field func(json.RawMessage) error

func into[T any](target *T, what string) field {
	return func(raw json.RawMessage) error {
		if string(raw) == "null" || json.Unmarshal(raw, target) != nil {
			return fmt.Errorf("is %s; it must be %s", raw, what)
		}
		return nil
	}
}

func duration(target *time.Duration) field {
	return func(raw json.RawMessage) error {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			if d, err := time.ParseDuration(text); err == nil {
				*target = d
				return nil
			}
		}
		return fmt.Errorf(`is %s; it must be a duration such as "10s"`, raw)
	}
}

var panicModes = map[string]balance.PanicMode{
	"10%": balance.PanicAt10Percent, "30%": balance.PanicAt30Percent, "40%": balance.PanicAt40Percent,
	"50%": balance.PanicAt50Percent, "majority": balance.PanicAtMajority, "always": balance.PanicAlways,
}

func panicMode(target *balance.PanicMode) field {
	return func(raw json.RawMessage) error {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			if mode, ok := panicModes[text]; ok {
				*target = mode
				return nil
			}
		}
		return fmt.Errorf(`is %s; it must be "10%%", "30%%", "40%%", "50%%", "majority" or "always"`, raw)
	}
}

// accrual are the fields of failureAccrual.
type accrual struct {
	off                   bool
	consecutive           int
	successRate           float64
	window                time.Duration
	minRequests           int
	sentence, maxSentence time.Duration
}

func defaultAccrual() accrual {
	return accrual{
		consecutive: 5, successRate: 0.8, window: 30 * time.Second, minRequests: 5,
		sentence: 5 * time.Second, maxSentence: 300 * time.Second,
	}
}

func (a *accrual) parse(raw json.RawMessage) error {
	if err := parseObject(raw, "failureAccrual.", map[string]field{
		"off":         into(&a.off, "true or false"),
		"consecutive": into(&a.consecutive, "a whole number"),
		"successRate": into(&a.successRate, "a number"),
		"window":      duration(&a.window),
		"minRequests": into(&a.minRequests, "a whole number"),
		"sentence":    duration(&a.sentence),
		"maxSentence": duration(&a.maxSentence),
	}); err != nil {
		return err
	}
	switch {
	case a.consecutive < 0:
		return fmt.Errorf("consecutive is %d; it must not be negative", a.consecutive)
	case !(a.successRate >= 0 && a.successRate <= 1):
		return fmt.Errorf("successRate is %v; it must be between 0 and 1", a.successRate)
	case a.window < time.Second || a.window > time.Hour:
		return fmt.Errorf("window is %v; it must be between 1s and 1h", a.window)
	case a.minRequests < 0:
		return fmt.Errorf("minRequests is %d; it must not be negative", a.minRequests)
	case a.sentence <= 0 || a.maxSentence < a.sentence:
		return fmt.Errorf("sentence is %v and maxSentence %v; they need 0 < sentence ≤ maxSentence", a.sentence, a.maxSentence)
	}
	return nil
}

func (a *accrual) policy() balance.NewFailurePolicy {
	if a.off {
		return nil
	}
	sentence := balance.JitteredSentence(a.sentence, a.maxSentence)
	var list []balance.NewFailurePolicy
	if a.successRate > 0 {
		list = append(list, balance.SuccessRateWithin(a.successRate, a.window, a.minRequests, sentence))
	}
	if a.consecutive > 0 {
		list = append(list, balance.ConsecutiveFailures(a.consecutive, sentence))
	}
	if len(list) == 0 {
		return nil
	}
	return balance.AnyOf(list...)
}

func parseObject(raw json.RawMessage, prefix string, fields map[string]field) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return errors.New("is not an object")
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names) // so that the same text gives the same error
	for _, name := range names {
		read, ok := fields[name]
		if !ok {
			logger.Warningf("service config: unknown field %q ignored", prefix+name)
			continue
		}
		if err := read(object[name]); err != nil {
			return fmt.Errorf("field %q %w", prefix+name, err)
		}
	}
	return nil
}

// maxName is the largest length of a balancer's name, in bytes.
const maxName = 200

// parse reads the options of a policy.
func (k kind) parse(raw json.RawMessage) (*Options, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	c := balance.Config{Load: k.load}
	accrual := defaultAccrual()
	fields := map[string]field{
		"name":           into(&c.Name, "a text"),
		"panic":          panicMode(&c.Panic),
		"failureAccrual": accrual.parse,
	}
	if k.load == balance.PeakEWMA {
		fields["decay"] = duration(&c.Decay)
		fields["readsDecay"] = into(&c.ReadsDecay, "true or false")
	}
	var p2c balance.P2C
	var aperture balance.Aperture
	switch k.policy.(type) {
	case balance.P2C:
		fields["successBias"] = into(&c.SuccessBias, "a number")
		fields["weightClasses"] = into(&p2c.WeightClasses, "true or false")
	case balance.Aperture:
		fields["successBias"] = into(&c.SuccessBias, "a number")
		fields["min"] = into(&aperture.Min, "a whole number")
		fields["low"] = into(&aperture.Low, "a number")
		fields["high"] = into(&aperture.High, "a number")
		fields["smooth"] = duration(&aperture.Smooth)
		fields["idle"] = duration(&aperture.Idle)
		fields["lazy"] = into(&aperture.Lazy, "true or false")
		fields["fixed"] = into(&aperture.Fixed, "true or false")
		fields["forgetSize"] = into(&aperture.ForgetSize, "true or false")
		fields["keepOrder"] = into(&aperture.KeepOrder, "true or false")
		fields["peer"] = func(raw json.RawMessage) error {
			aperture.Peer.ID, aperture.Peer.Total = math.MinInt, 0
			if err := parseObject(raw, "peer.", map[string]field{
				"id": into(&aperture.Peer.ID, "a whole number"), "total": into(&aperture.Peer.Total, "a whole number"),
			}); err != nil {
				return err
			}
			if aperture.Peer.Total < 1 || aperture.Peer.ID < 0 || aperture.Peer.ID >= aperture.Peer.Total {
				return fmt.Errorf(`is %s; it must be {"id": I, "total": T} with 0 ≤ I < T`, raw)
			}
			return nil
		}
	}
	if err := parseObject(raw, "", fields); err != nil {
		return nil, fmt.Errorf("%s: %w", k.name, err)
	}
	switch k.policy.(type) {
	case balance.P2C:
		c.Policy = p2c
	case balance.Aperture:
		c.Policy = aperture
	default:
		c.Policy = k.policy
	}
	if len(c.Name) > maxName {
		return nil, fmt.Errorf("%s: field \"name\" has %d bytes; at most %d are allowed", k.name, len(c.Name), maxName)
	}
	c.Accrual = accrual.policy()
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("%s: %s", k.name, strings.TrimPrefix(err.Error(), "balance: "))
	}
	return &Options{text: string(raw), config: c}, nil
}
