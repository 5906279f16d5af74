// Command floor measures what a queue in Go could reach at best with one caller: a
// loop that reads 300 bytes from a socket, writes and syncs them, and answers. Client
// and loop are two processes on this machine.
//
//	go run ./floor -dir /var/tmp
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	message = 300
	calls   = 20_000
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", os.TempDir(), "folder on the disk to measure")
	serve := flag.Bool("serve", false, "be the server: print the address and answer one client")
	sync := flag.Bool("sync", false, "write and sync before the answer")
	flag.Parse()
	var err error
	if *serve {
		err = server(*dir, *sync)
	} else {
		err = errors.Join(client(*dir, false), client(*dir, true))
	}
	if err != nil {
		log.Fatal("floor: ", err)
	}
}

func server(dir string, sync bool) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "floor-")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	// Zeros first, so that a sync need not record a new length.
	if _, err := f.Write(make([]byte, 16<<20)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	b := make([]byte, message)
	for at := int64(0); ; at += message {
		if _, err := io.ReadFull(c, b); err != nil {
			return nil // the client is done
		}
		if sync {
			if _, err := f.WriteAt(b, at); err != nil {
				return err
			}
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				return err
			}
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
}

func client(dir string, sync bool) error {
	cmd := exec.Command(os.Args[0], "-serve", "-dir", dir, fmt.Sprintf("-sync=%v", sync))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var addr string
	if _, err := fmt.Fscanln(out, &addr); err != nil {
		return err
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	b := make([]byte, message)
	took := make([]time.Duration, calls)
	for i := range took {
		begin := time.Now()
		if _, err := c.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	fmt.Printf("synced %-5v  p50 %v, p99 %v\n", sync, took[calls/2], took[calls*99/100])
	return errors.Join(c.Close(), cmd.Wait())
}
