package switchyard

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func TestLink_isUsedOnlyForOnePlainAddress(t *testing.T) {
	for target, want := range map[string]bool{
		"127.0.0.1:7480": true, "localhost:7480": true, "[::1]:7480": true,
		"dns:///localhost:7480": false, "unix:/tmp/x": false, "a:1,b:2": false, "localhost": false,
	} {
		o := defaultDialOptions()
		if got := o.linkFits(target); got != want {
			t.Errorf("%s: %v", target, got)
		}
	}
	for name, opt := range map[string]DialOption{
		"TLS": WithTLS(&tls.Config{}), "gRPC options": WithGRPC(grpc.WithUserAgent("x")), "gRPC only": WithGRPCOnly(),
	} {
		o := defaultDialOptions()
		opt(&o)
		if o.linkFits("127.0.0.1:7480") {
			t.Errorf("%s: link is used", name)
		}
	}
}

// TestLink_givesWayToGRPC calls a server that knows only gRPC.
func TestLink_givesWayToGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	v1.RegisterTaskServiceServer(s, v1.UnimplementedTaskServiceServer{})
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	client, err := Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	hot := client.hot.(*linkOrGRPC)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if _, err := client.Add(ctx, "q", Task{Kind: "k"}); err == nil || ctx.Err() != nil {
			t.Fatalf("the answer is %v, not the server's refusal", err)
		}
	}
	if hot.grpcUntil.Load() == 0 {
		t.Error("gRPC was not used")
	}
}
