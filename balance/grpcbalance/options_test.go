package grpcbalance

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/switchyard-dev/switchyard/balance"
)

func kindOf(t *testing.T, name string) kind {
	t.Helper()
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	t.Fatalf("no policy %s", name)
	return kind{}
}

func TestOptions_errorsNameTheField(t *testing.T) {
	for _, c := range []struct{ policy, options, want string }{
		{"switchyard_heap", `[]`, "switchyard_heap: is not an object"},
		{"switchyard_heap", `null`, "switchyard_heap: is not an object"},
		{"switchyard_heap", `{"name": 5}`, `field "name" is 5; it must be a text`},
		{"switchyard_heap", `{"name": null}`, `field "name" is null`},
		{"switchyard_heap", `{"name": "` + strings.Repeat("x", 201) + `"}`, `field "name" has 201 bytes`},
		{"switchyard_heap", `{"panic": "20%"}`, `field "panic" is "20%"; it must be`},
		{"switchyard_heap", `{"failureAccrual": 3}`, `field "failureAccrual" is not an object`},
		{"switchyard_heap", `{"failureAccrual": {"window": "x"}}`, `field "failureAccrual" field "failureAccrual.window" is "x"`},
		{"switchyard_heap", `{"failureAccrual": {"consecutive": -1}}`, `consecutive is -1`},
		{"switchyard_heap", `{"failureAccrual": {"successRate": 2}}`, `successRate is 2`},
		{"switchyard_heap", `{"failureAccrual": {"window": "0s"}}`, `window is 0s`},
		{"switchyard_heap", `{"failureAccrual": {"minRequests": -1}}`, `minRequests is -1`},
		{"switchyard_heap", `{"failureAccrual": {"sentence": "10m"}}`, `sentence is 10m0s and maxSentence 5m0s`},
		{"switchyard_p2c_peak_ewma", `{"decay": 10}`, `field "decay" is 10; it must be a duration`},
		{"switchyard_p2c_peak_ewma", `{"decay": "1ns"}`, `switchyard_p2c_peak_ewma: decay is 1ns`},
		{"switchyard_p2c_peak_ewma", `{"readsDecay": "yes"}`, `field "readsDecay" is "yes"`},
		{"switchyard_p2c_least_loaded", `{"successBias": 9}`, `success bias is 9`},
		{"switchyard_aperture", `{"min": 1.5}`, `field "min" is 1.5; it must be a whole number`},
		{"switchyard_aperture", `{"min": -1}`, `aperture min is -1`},
		{"switchyard_aperture", `{"low": 2}`, `aperture load band is 2 to 1.125`},
		{"switchyard_aperture", `{"peer": {"id": 3}}`, `field "peer" is {"id": 3}`},
		{"switchyard_aperture", `{"peer": {"id": 3, "total": 3}}`, `0 ≤ I < T`},
	} {
		_, err := kindOf(t, c.policy).parse(json.RawMessage(c.options))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.policy, c.options, err, c.want)
		}
	}
}

func TestOptions_areUsed(t *testing.T) {
	o, err := kindOf(t, "switchyard_aperture_peak_ewma").parse(json.RawMessage(`{
		"name": "x", "panic": "majority", "failureAccrual": {"off": true}, "decay": "3s", "readsDecay": true, "successBias": 1,
		"min": 7, "low": 0.5, "high": 2, "smooth": "5s", "idle": "1m", "lazy": true, "fixed": true, "forgetSize": true, "keepOrder": true,
		"peer": {"id": 1, "total": 4}, "notThere": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	c := o.config
	want := balance.Aperture{
		Min: 7, Low: 0.5, High: 2, Smooth: 5 * time.Second, Idle: time.Minute, Lazy: true, Fixed: true, ForgetSize: true, KeepOrder: true,
		Peer: balance.Peer{ID: 1, Total: 4},
	}
	if c.Policy != want || c.Name != "x" || c.Panic != balance.PanicAtMajority || c.Accrual != nil || c.Decay != 3*time.Second ||
		!c.ReadsDecay || c.SuccessBias != 1 || c.Load != balance.PeakEWMA {
		t.Errorf("got %+v", c)
	}
	for _, options := range []string{`{"failureAccrual": {"consecutive": 0, "successRate": 0}}`, `{"failureAccrual": {"off": true}}`} {
		if o, err := kindOf(t, "switchyard_heap").parse(json.RawMessage(options)); err != nil || o.config.Accrual != nil {
			t.Errorf("%s: %v, accrual is on", options, err)
		}
	}
	for _, k := range kinds {
		if o, err := k.parse(nil); err != nil || o.config.Accrual == nil {
			t.Errorf("%s without options: %v, accrual is off", k.name, err)
		}
	}
}

func TestOptions_badOnesAreRefusedByGRPC(t *testing.T) {
	_, err := grpc.NewClient("dns:///localhost:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"switchyard_p2c_peak_ewma":{"decay":10}}]}`))
	if err == nil || !strings.Contains(err.Error(), `field "decay" is 10`) {
		t.Errorf("got %v, want an error that names the field", err)
	}
}
