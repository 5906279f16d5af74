package main

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what processors have done so far: this process, and the whole machine.
type machine struct {
	at        time.Time
	own, busy time.Duration
}

// look reads the counters of Linux; elsewhere the machine looks idle but for this process.
func look() machine {
	m := machine{at: time.Now()}
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		m.own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	m.busy = m.own
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	var ticks [8]int64 // user, nice, system, idle, iowait, irq, softirq, steal
	for i, f := range bytes.Fields(line) {
		if i > 0 && i <= len(ticks) {
			ticks[i-1], _ = strconv.ParseInt(string(f), 10, 64)
		}
	}
	const tick = time.Second / 100
	m.busy = time.Duration(ticks[0]+ticks[1]+ticks[2]+ticks[5]+ticks[6]+ticks[7]) * tick
	return m
}

// since returns how many processors this process and all others have used since a look, on
// average.
func (m machine) since(was machine) (own, others float64) {
	span := m.at.Sub(was.at).Seconds()
	own = (m.own - was.own).Seconds() / span
	return own, max((m.busy-was.busy).Seconds()/span-own, 0)
}
