package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/admin"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

// TestShardScripts runs the commands on a cluster's store against replica sets in this process.
func TestShardScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "shard"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits,
			"until": cmdUntil,
			"sets":  cmdSets,
			"await": cmdAwait,
			"found": cmdFound,

			"readenv": cmdReadEnv,
		},
	})
}

// found NAME FILE PATTERN waits until a file has what the pattern's group matches, and sets a variable to it.
func cmdFound(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: found NAME FILE PATTERN")
	}
	pattern, err := regexp.Compile(args[2])
	ts.Check(err)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		// It need not be there yet.
		text, _ := os.ReadFile(ts.MkAbs(args[1]))
		if m := pattern.FindSubmatch(text); m != nil {
			ts.Setenv(args[0], string(m[1]))
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("nothing in %s matched %s within %v:\n%s", args[1], args[2], patience, text)
		}
	}
}

// sets BUCKETS MEMBERS SET... starts nodes of replica sets of which nothing is bootstrapped.
func cmdSets(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: sets BUCKETS MEMBERS SET...")
	}
	buckets, err := strconv.ParseUint(args[0], 10, 32)
	ts.Check(err)
	members, err := strconv.Atoi(args[1])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := localsets.Start(ctx, localsets.Options{Sets: args[2:], Members: members, Buckets: uint32(buckets), Bare: true, Engine: raftengine.Options{Memory: true}})
	ts.Check(err)
	ts.Defer(c.Close)
	var nodes []membership.Node
	for _, set := range args[2:] {
		for _, m := range c.Members(set) {
			nodes = append(nodes, membership.Node{
				Name: m.ID, ClusterID: localsets.ClusterID, BucketCount: uint32(buckets), Roles: membership.Frontend | membership.Storage,
				PublicAddress: "public-" + m.ID + ":7480", InternalAddress: m.Address, ReplicaSet: set, Member: m.ID, Zone: "zone" + m.ID[len(m.ID)-1:],
			})
		}
	}
	view, err := membership.Static(nodes[0], nodes[1:])
	ts.Check(err)
	ts.Defer(func() { _ = view.Close() })
	s, err := admin.New(admin.Options{Router: c.Members(args[2])[0].Router, Members: view, ClusterID: localsets.ClusterID})
	ts.Check(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	g := grpc.NewServer()
	s.Register(g)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l) // ends with Stop
	}()
	ts.Defer(func() { g.Stop(); <-served })
	ts.Setenv("SWITCHYARD_ADDRESS", l.Addr().String())
}

func TestParseBuckets(t *testing.T) {
	c := newShardPinCommand(&app{})
	spans, err := parseBuckets(c, "7, 1-3,200-205")
	require.NoError(t, err)
	require.Equal(t, "7,1-3,200-205", spansText(spans))
	for _, bad := range []string{"", "x", "1-", "-1", "1-x", "1,,2", "99999999999"} {
		_, err := parseBuckets(c, bad)
		require.Error(t, err, "%q", bad)
		require.Equal(t, exitUsage, (&app{stderr: &bytes.Buffer{}}).finish(err))
	}
}

func TestBucketMap_showsStateAndPlace(t *testing.T) {
	cells, letters := bucketMap(&v1.DescribeBucketsResponse{BucketCount: 10, Places: []*v1.BucketPlace{
		{First: 1, Last: 2, ReplicaSet: "b", State: "ACTIVE"},
		{First: 3, Last: 3, ReplicaSet: "a", State: "READONLY"},
		{First: 4, Last: 4, ReplicaSet: "a", State: "PINNED"},
		{First: 5, Last: 5, ReplicaSet: "a", State: "SENDING", Peer: "b"},
		{First: 5, Last: 5, ReplicaSet: "b", State: "RECEIVING", Peer: "a"},
		{First: 6, Last: 6, ReplicaSet: "a", State: "ACTIVE"},
		{First: 6, Last: 6, ReplicaSet: "b", State: "ACTIVE"},
		{First: 7, Last: 7, ReplicaSet: "a", State: "SENT", Peer: "b"},
		{First: 8, Last: 8, ReplicaSet: "a", State: "ACTIVE", Peer: "b"},
		{First: 9, Last: 9, ReplicaSet: "b", State: "RECEIVING", Peer: "a"},
	}})
	require.Equal(t, "BBa*>!.>>.", string(cells[1:]))
	require.Equal(t, map[string]byte{"a": 'A', "b": 'B'}, letters)
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 3 << 29: "1.5 GiB", 1<<64 - 1: "16.0 EiB"} {
		require.Equal(t, want, bytesText(n))
	}
}

func TestPrintFailures_namesAFew(t *testing.T) {
	var out bytes.Buffer
	var failed []failureView
	for i := range 12 {
		failed = append(failed, failureView{uint32(i), "BUCKET_IS_PINNED", fmt.Sprintf("bucket %d is pinned", i)})
	}
	(&app{}).printFailures(&out, failed)
	require.Equal(t, namedFailures+1, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "and 7 more (BUCKET_IS_PINNED)")
}
