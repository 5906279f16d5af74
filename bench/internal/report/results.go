package report

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/switchyard-dev/switchyard/bench/internal/scenario"
)

// Run is one system's run through the scenarios in one mode.
type Run struct {
	System   string   `json:"system"`
	Version  string   `json:"version"`
	Settings []string `json:"settings"`
	Mode     string   `json:"mode"`
	Round    int      `json:"round"`
	// One-minute load average before the run: near zero on a quiet machine for a
	// first run, else left by the runs before.
	LoadBefore float64           `json:"load_before"`
	Results    []scenario.Result `json:"results"`
}

// File is everything of one campaign of measurements.
type File struct {
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Machine  Machine   `json:"machine"`
	Disk     Disk      `json:"disk"`
	// The disk as a process sees it whose syncs are slowed, when that was used.
	SlowedDisk *Disk            `json:"slowed_disk,omitempty"`
	SlowSync   string           `json:"slow_sync,omitempty"`
	Options    scenario.Options `json:"options"`
	Runs       []Run            `json:"runs"`
}

// Write writes the file, whole or not at all.
func (f *File) Write(path string) error {
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	temp := path + ".tmp"
	if err := os.WriteFile(temp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// Read reads a file of results.
func Read(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := new(File)
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
