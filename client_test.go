package switchyard

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/retry"
)

func TestDial_refusesSettingsThatMakeNoSense(t *testing.T) {
	for want, opts := range map[string][]DialOption{
		"namespace":  {WithNamespace("")},
		"timeout":    {WithTimeout(0)},
		"message":    {WithMaxMessageSize(-1)},
		"negative":   {WithAddSharing(AddSharing{MaxTasks: -1})},
		"multiplier": {WithBackoff(retry.Backoff{Initial: 1, Multiplier: 0.5})},
	} {
		if client, err := Dial("127.0.0.1:1", opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, client, err)
		}
	}
	if _, err := Dial(""); err == nil || !strings.Contains(err.Error(), "target is empty") {
		t.Errorf("no target: %v", err)
	}
	if _, err := Dial("bad\x00scheme://x"); err == nil {
		t.Error("bad target: no error")
	}
}

func TestDial_severalAddresses(t *testing.T) {
	f := startFake(t)
	client, err := Dial("127.0.0.1:1, " + f.address + ",")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 10 {
		if _, err := client.Add(t.Context(), "q", Task{Kind: "k"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDial_namespaceIdentityAndInterceptors(t *testing.T) {
	seen := make(chan string, 10)
	f := startFake(t, func(f *fakeServer) {
		f.before = func(method string, r any) error {
			switch r := r.(type) {
			case *v1.AddTasksRequest:
				seen <- method + " " + r.Namespace
			case *v1.PollTasksRequest:
				seen <- method + " " + r.Namespace + " " + r.Identity
				return reason.New(codes.NotFound, reason.QueueNotFound, nil, "no")
			case *v1.GetTaskRequest:
				seen <- method + " " + r.Namespace
			}
			return nil
		}
	})
	calls := 0
	client := dialFake(t, f, WithNamespace("team"), WithIdentity("me"), WithLogger(nil), WithMaxMessageSize(1<<20),
		WithGRPC(grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			calls++
			return invoker(ctx, method, req, reply, cc, opts...)
		})))
	if client.Namespace() != "team" || client.Conn() == nil || client.QueueService() == nil {
		t.Error("the client does not know itself")
	}
	result, err := client.Add(t.Context(), "q", Task{Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), "q", result.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.TaskService().GetTask(t.Context(), &v1.GetTaskRequest{Namespace: "other", Queue: "q", Id: result.ID}); err != nil {
		t.Fatal(err)
	}
	if calls != 3 {
		t.Errorf("the interceptor saw %d calls", calls)
	}
	NewWorker(client, "q", NewMux(), WorkerOptions{Polls: 1}).Run(t.Context())
	for _, want := range []string{"AddTasks team", "GetTask team", "GetTask other", "PollTasks team me"} {
		if got := <-seen; got != want {
			t.Errorf("the server saw %q, want %q", got, want)
		}
	}
	if _, err := client.Add(t.Context(), "q", Task{Kind: "k", Payload: make([]byte, 2<<20)}); status.Code(err) != codes.ResourceExhausted && Reason(err) == "" {
		t.Errorf("over the message size: %v", err)
	}
}

func TestDial_defaultIdentityNamesHostAndProcess(t *testing.T) {
	if id := defaultIdentity(); !strings.Contains(id, ":") || strings.HasPrefix(id, ":") {
		t.Errorf("identity %q", id)
	}
}

func TestDial_TLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)

	f := startFake(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	v1.RegisterTaskServiceServer(server, f)
	go server.Serve(listener)
	t.Cleanup(server.Stop)

	client, err := Dial(listener.Addr().String(), WithTLS(&tls.Config{RootCAs: roots}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Add(t.Context(), "q", Task{Kind: "k"}); err != nil {
		t.Error(err)
	}
	stranger, err := Dial(listener.Addr().String(), WithTLS(&tls.Config{RootCAs: x509.NewCertPool()}), WithTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Add(t.Context(), "q", Task{Kind: "k"}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server with an unknown certificate: %v", err)
	}
}

func TestQueues_repeatedCallsThatTheFirstTryDid(t *testing.T) {
	gone := status.Error(codes.Unavailable, "gone for a moment")
	f := startFake(t, func(f *fakeServer) {
		hooks := []func(string, any) error{
			failFirst(1, "CreateQueue", gone), failFirst(1, "DeleteQueue", gone), failFirst(1, "CancelTask", gone)}
		f.after = func(method string, r any) error {
			for _, hook := range hooks {
				if err := hook(method, r); err != nil {
					return err
				}
			}
			return nil
		}
	})
	client := dialFake(t, f)
	if q, err := client.Queues().Create(t.Context(), "made", QueueConfig{}); err != nil || q.Name != "made" {
		t.Errorf("create: %+v, %v", q, err)
	}
	if err := client.Queues().Delete(t.Context(), "made", false); err != nil {
		t.Errorf("delete: %v", err)
	}
	result, err := client.Add(t.Context(), "q", Task{Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Cancel(t.Context(), "q", result.ID); err != nil {
		t.Errorf("cancel: %v", err)
	}
}
