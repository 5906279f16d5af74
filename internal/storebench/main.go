// Command storebench measures the store of a cluster, with every member a process of its
// own that syncs before it acknowledges: how many puts and gets a replica set of one and one
// of three do for callers behind a router, and how long nobody can write after the master's
// process was killed.
//
//	go run ./internal/storebench [-dir FOLDER] [-time 3s] [-rounds 3] [-failovers 10] [-only LINE] [-profile FOLDER] [speed|failover]
//
// Without an argument it does both. The folder must be on a real disk: one in memory is
// refused, since syncs cost nothing there.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == memberCommand {
		if err := runMember(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "member:", err)
			os.Exit(1)
		}
		return
	}
	var s settings
	flag.StringVar(&s.dir, "dir", "", "`folder` for the members' data, removed afterwards (default: one in the folder for temporary files)")
	flag.DurationVar(&s.time, "time", 3*time.Second, "how long each measurement takes")
	flag.IntVar(&s.rounds, "rounds", 3, "how often each is made; the best and the median are shown")
	flag.IntVar(&s.failovers, "failovers", 10, "how many masters are killed")
	flag.StringVar(&s.only, "only", "", "measure only the `line` of the table, such as \"3 put 64\"")
	flag.StringVar(&s.profile, "profile", "", "`folder` for profiles of the processor's time of all processes, while speed is measured")
	flag.Parse()
	if err := run(s, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	dir               string
	time              time.Duration
	rounds, failovers int
	only, profile     string
}

func run(s settings, what string) (err error) {
	if what != "" && what != "speed" && what != "failover" {
		return fmt.Errorf("%q is neither speed nor failover", what)
	}
	if s.time <= 0 || s.rounds < 1 || s.failovers < 1 {
		return fmt.Errorf("time, rounds and failovers must be more than none")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	dir, err := os.MkdirTemp(s.dir, "switchyard-storebench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	go func() {
		<-stop
		_ = os.RemoveAll(dir) // the members end with this process
		os.Exit(130)
	}()
	disk, err := describeDisk(dir)
	if err != nil {
		return err
	}
	fmt.Printf("%d processors, %s, %s; %s\n", runtime.NumCPU(), runtime.GOARCH, runtime.Version(), disk)
	if what != "failover" {
		if err := speed(dir, s); err != nil {
			return err
		}
	}
	if what != "speed" {
		return failover(dir, s.failovers)
	}
	return nil
}
