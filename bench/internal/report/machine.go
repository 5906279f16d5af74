package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the measurements were made on.
type Machine struct {
	CPU      string  `json:"cpu"`
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_gb"`
	Kernel   string  `json:"kernel"`
	Disk     string  `json:"file_system"`
	Go       string  `json:"go"`
}

// DescribeMachine looks at this machine and the file system of dir.
func DescribeMachine(dir string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPU = field(info, "model name")
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	if f := strings.Fields(field(memory, "MemTotal")); len(f) > 0 {
		kb, _ := strconv.ParseFloat(f[0], 64)
		m.MemoryGB = float64(int(kb/(1<<20)*10)) / 10
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	m.Disk, err = fileSystem(dir)
	return m, err
}

func field(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		key, value, ok := strings.Cut(string(line), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func fileSystem(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	switch uint32(s.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", nil
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "", fmt.Errorf("%s is in memory: choose a folder on a disk with --dir or BENCH_DIR", dir)
	}
	return fmt.Sprintf("type %#x", uint32(s.Type)), nil
}

// LoadAverage returns the load of the last minute, which tells whether something
// else ran.
func LoadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// Disk is how long a sync of 256 appended bytes takes, in microseconds.
type Disk struct {
	P50 float64 `json:"fdatasync_p50_us"`
	P99 float64 `json:"fdatasync_p99_us"`
}

// MeasureDisk times fdatasync in dir.
func MeasureDisk(dir string) (Disk, error) {
	f, err := os.CreateTemp(dir, "fdatasync-")
	if err != nil {
		return Disk{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	const syncs = 2000
	took := make([]time.Duration, syncs)
	block := bytes.Repeat([]byte{'x'}, 256)
	for i := range took {
		if _, err := f.Write(block); err != nil {
			return Disk{}, err
		}
		start := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return Disk{}, err
		}
		took[i] = time.Since(start)
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return Disk{P50: us(took[syncs/2]), P99: us(took[syncs*99/100])}, nil
}

// MeasureSupervised measures the disk as a supervised process sees it: command
// is run and prints what MeasureDisk returned.
func MeasureSupervised(ctx context.Context, command ...string) (Disk, error) {
	var d Disk
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return d, fmt.Errorf("%s: %w: %s", filepath.Base(command[0]), err, bytes.TrimSpace(exit.Stderr))
		}
		return d, err
	}
	_, err = fmt.Sscan(string(out), &d.P50, &d.P99)
	return d, err
}
