package httpclient

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

func TestNew_errorsNameWhatIsWrong(t *testing.T) {
	bad := retry.DefaultPolicy()
	bad.PerAttempt = -1
	for want, c := range map[string]Config{
		`endpoint "ftp://x" has scheme "ftp"`: {Endpoints: []Endpoint{{URL: "ftp://x"}}},
		`endpoint "http://" has no host`:      {Endpoints: []Endpoint{{URL: "http://"}}},
		`endpoint "" has no host`:             {Endpoints: []Endpoint{{}}},
		`has more than scheme and host`:       {Endpoints: []Endpoint{{URL: "http://x/path"}}},
		`is not a URL`:                        {Endpoints: []Endpoint{{URL: "http://%zz"}}},
		`http://x is listed twice`:            {Endpoints: []Endpoint{{URL: "x"}, {URL: "http://x/"}}},
		`endpoint http://x has weight -1`:     {Endpoints: []Endpoint{{URL: "x", Weight: -1}}},
		`timeout per attempt is -1ns`:         {Policy: &bad},
		`wait for endpoints is -1ns`:          {WaitForEndpoints: -1},
		`hedge max extra load is 0`:           {Hedge: &retry.HedgeConfig{}},
		`panic mode is 77`:                    {Balance: &balance.Config{Panic: 77}},
		`must not have Connections`:           {Balance: &balance.Config{Connections: noConnections{}}},
	} {
		if tr, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
			if tr != nil {
				tr.Close()
			}
		}
	}
}

type noConnections struct{}

func (noConnections) Connect(*balance.Node) {}
func (noConnections) Release(*balance.Node) {}

func TestRoutes_areBounded(t *testing.T) {
	s := start(t, nil)
	names := map[string]bool{}
	tr, err := New(Config{
		Endpoints: urls(s), Route: func(r *http.Request) string { return r.URL.Path },
		Observe: func(route string) retry.Observer { names[route] = true; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	for i := range maxRoutes + 5 {
		if _, err := tr.retrier(fmt.Sprint("/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(names) != maxRoutes+1 || !names["other"] {
		t.Errorf("%d routes", len(names))
	}
}
