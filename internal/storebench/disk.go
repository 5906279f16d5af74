package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// describeDisk says which disk a folder is on, and what a sync costs there.
func describeDisk(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	device, kind := "an unknown disk", "unknown"
	// Only Linux has this file.
	mounts, _ := os.ReadFile("/proc/self/mounts")
	best := ""
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < len(best) {
			continue
		}
		if f[1] == "/" || abs == f[1] || strings.HasPrefix(abs, f[1]+"/") {
			best, device, kind = f[1], f[0], f[2]
		}
	}
	if kind == "tmpfs" || kind == "ramfs" {
		return "", fmt.Errorf("%s is in memory (%s), where syncs cost nothing; choose a folder on a disk with -dir", dir, kind)
	}
	p50, p99, err := syncTimes(filepath.Join(dir, "sync"))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (%s), sync of 4 KiB p50 %v, p99 %v", device, kind, p50.Round(time.Microsecond), p99.Round(time.Microsecond)), nil
}

// syncTimes measures syncs of a file whose blocks are there already, as the log's are.
func syncTimes(name string) (p50, p99 time.Duration, err error) {
	const tries, block = 500, 4096
	f, err := os.Create(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	if _, err := f.Write(make([]byte, tries*block)); err != nil {
		return 0, 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	took := make([]time.Duration, tries)
	data := []byte(strings.Repeat("switchyd", block/8))
	for i := range took {
		start := time.Now()
		if _, err := f.WriteAt(data, int64(i*block)); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[tries/2], took[tries*99/100], nil
}
