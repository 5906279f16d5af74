package reason_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
)

func TestAll_listsEveryConstantOnce(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || spec.Names[0].Name == "Domain" || spec.Names[0].Name == "table" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		declared = append(declared, text)
		return true
	})
	all := reason.All()
	slices.Sort(declared)
	slices.Sort(all)
	if !slices.Equal(declared, all) {
		t.Fatalf("declared %v\nlisted %v", declared, all)
	}
	if len(slices.Compact(all)) != len(declared) {
		t.Fatal("a reason is listed twice")
	}
	for _, r := range declared {
		if c := reason.Code(r); c == codes.OK || c == codes.Unknown {
			t.Errorf("%s goes with code %v", r, c)
		}
	}
}

func TestError_survivesTheWire(t *testing.T) {
	err := reason.New(codes.NotFound, reason.QueueNotFound, map[string]string{"queue": "mail"}, "queue %q does not exist", "mail")
	// What a server sends and a client gets back.
	raw, merr := proto.Marshal(status.Convert(err).Proto())
	if merr != nil {
		t.Fatal(merr)
	}
	p := status.New(codes.OK, "").Proto()
	if uerr := proto.Unmarshal(raw, p); uerr != nil {
		t.Fatal(uerr)
	}
	back := status.ErrorProto(p)
	if got := status.Code(back); got != codes.NotFound {
		t.Errorf("code %v", got)
	}
	if got := reason.Of(back); got != reason.QueueNotFound {
		t.Errorf("reason %q", got)
	}
	e := reason.From(back)
	if e.Message() != `queue "mail" does not exist` || e.Meta()["queue"] != "mail" {
		t.Errorf("message %q, meta %v", e.Message(), e.Meta())
	}
}

func TestItem_roundTrip(t *testing.T) {
	err := fmt.Errorf("outer: %w", reason.New(codes.FailedPrecondition, reason.LeaseLost, nil, "100%% gone"))
	item := reason.Item(err)
	if item.Code != int32(codes.FailedPrecondition) || item.Reason != reason.LeaseLost || item.Message != "100% gone" {
		t.Fatalf("item %v", item)
	}
	back := reason.FromItem(item)
	if reason.Of(back) != reason.LeaseLost || status.Code(back) != codes.FailedPrecondition {
		t.Fatalf("back %v", back)
	}
	if !errors.Is(back, err.(interface{ Unwrap() error }).Unwrap()) {
		t.Fatal("errors.Is does not compare reasons")
	}
	if reason.Item(nil) != nil || reason.FromItem(nil) != nil || reason.From(nil) != nil {
		t.Fatal("nil is not kept")
	}
}

func TestFrom_foreignErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		of     string
		reason string
		code   codes.Code
	}{
		{errors.New("boom"), "", reason.Internal, codes.Internal},
		{context.Canceled, "", reason.RequestCancelled, codes.Canceled},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), "", reason.DeadlineExceeded, codes.DeadlineExceeded},
		{status.Error(codes.Unimplemented, "no"), "", reason.UnknownMethod, codes.Unimplemented},
		{status.Error(codes.Unavailable, "no"), "", reason.NotReady, codes.Unavailable},
	} {
		if got := reason.Of(c.err); got != c.of {
			t.Errorf("Of(%v) = %q", c.err, got)
		}
		if e := reason.From(c.err); e.Reason() != c.reason || e.Code() != c.code {
			t.Errorf("From(%v) = %v %v", c.err, e.Code(), e.Reason())
		}
	}
	if reason.Of(nil) != "" {
		t.Error("Of(nil) is not empty")
	}
}

func TestNew_constantTextAllocatesOnce(t *testing.T) {
	var sink error
	if n := testing.AllocsPerRun(100, func() {
		sink = reason.New(codes.FailedPrecondition, reason.LeaseLost, nil, "the lease ran out")
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	_ = sink
}
