package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/pprof"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// memberCommand makes this program a member. It says "at ADDRESS" when it serves, takes the
// members of a new group on its standard input and says "ready" when there is one, and ends
// with its input.
const memberCommand = "member"

const (
	setName   = "a"
	clusterID = "storebench"
	buckets   = 3000
)

func runMember(args []string) error {
	flags := flag.NewFlagSet(memberCommand, flag.ContinueOnError)
	id := flags.String("id", "", "name of the member")
	dir := flags.String("dir", "", "folder of the member")
	listen := flags.String("listen", "127.0.0.1:0", "address to serve at")
	profile := flags.String("profile", "", "file for a profile of the processor's time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		stop, err := startProfile(*profile)
		if err != nil {
			return err
		}
		defer stop()
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	address := l.Addr().String()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	transport, err := raftrpc.New(raftrpc.Options{ID: *id, ReplicaSet: setName, Address: address, Logger: log})
	if err != nil {
		return err
	}
	var eng *raftengine.Engine
	store, err := storage.Open(context.Background(), storage.Options{
		Registry: storage.NewRegistry(), BucketCount: buckets, ReplicaSet: setName, Logger: log,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			var err error
			eng, err = raftengine.Open(ctx, raftengine.Options{Dir: *dir, Machine: m, BucketCount: buckets, Transport: transport, Logger: log, OnFatal: func(err error) {
				fmt.Fprintln(os.Stderr, *id, "failed:", err)
				os.Exit(3)
			}})
			return eng, err
		},
	})
	if err != nil {
		return err
	}
	served, err := storagerpc.NewServer(storagerpc.ServerOptions{Storage: store, Member: *id, Logger: log})
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(storagerpc.MaxMessage), grpc.MaxSendMsgSize(storagerpc.MaxMessage))
	served.Register(s)
	transport.Register(s)
	go func() {
		if err := s.Serve(l); err != nil {
			fmt.Fprintln(os.Stderr, *id, "serves no more:", err)
			os.Exit(3)
		}
	}()
	fmt.Println("at", address)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := bootstrap(eng, store, in.Bytes()); err != nil {
			return err
		}
		fmt.Println("ready")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.Stop()
	served.Close()
	return store.Close(ctx)
}

// bootstrap makes a replica set that has all buckets.
func bootstrap(eng *raftengine.Engine, store *storage.Storage, text []byte) error {
	var members []engine.Member
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := eng.Bootstrap(ctx, members); err != nil {
		return err
	}
	err := store.BootstrapReplicaSet(ctx, &v1.BootstrapStorageRequest{
		ClusterId: clusterID, BucketCount: buckets, ReplicaSet: setName, Buckets: []*v1.BucketRange{{First: 1, Last: buckets}},
	})
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return err
}

// startProfile writes a profile of the processor's time until stop is called.
func startProfile(name string) (stop func(), err error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}
