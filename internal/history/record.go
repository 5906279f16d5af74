package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Op is what was asked.
type Op string

const (
	// Add asks the queue to take a task.
	Add Op = "add"
	// Deliver is a task that came with the answer to a poll. Its Start is the
	// poll's.
	Deliver Op = "deliver"
	// Complete ends a lease with success.
	Complete Op = "complete"
	// Fail ends a lease with an error; the task comes again after Deadline, or
	// never when it is Dead.
	Fail Op = "fail"
	// Extend moves a lease's deadline to Deadline.
	Extend Op = "extend"
	// Release ends a lease without a result; the task is ready at once.
	Release Op = "release"
	// Cancel removes a task in whatever state it is.
	Cancel Op = "cancel"
	// Left is a task that was seen in the queue at the end, dead ones included.
	Left Op = "left"
)

// Outcome is what the client knows about the effect of its request.
type Outcome string

const (
	// OK: the server acknowledged. The effect lies between Start and End.
	OK Outcome = "ok"
	// Already: the server said that the same had been done before: a repeated
	// add, a repeated completion. This request had no effect.
	Already Outcome = "already"
	// Refused: the server said no. No effect.
	Refused Outcome = "refused"
	// Unknown: no answer. An effect at any time from Start on, also after End,
	// or none.
	Unknown Outcome = "unknown"
)

// Record is one task's part in one request. Times are nanoseconds since 1970
// on one clock for all records; Deadline is the server's clock.
type Record struct {
	Op      Op      `json:"op"`
	Outcome Outcome `json:"outcome"`
	// Client says who asked, for people.
	Client string `json:"client,omitempty"`
	Task   string `json:"task"`
	// Token is the lease's, for all that happens under a lease.
	Token []byte `json:"token,omitempty"`
	Start int64  `json:"start"`
	End   int64  `json:"end"`
	// Deadline is when the lease ends (Deliver and Extend when OK) or before
	// which the task may not come again (Fail when OK).
	Deadline int64 `json:"deadline,omitempty"`
	// LeaseTime is what an Extend asked for.
	LeaseTime int64 `json:"lease_time,omitempty"`
	Attempt   int32 `json:"attempt,omitempty"`
	// Dead marks a Fail after which the task is not retried.
	Dead bool `json:"dead,omitempty"`
	// Sum is a checksum of the content, for Add and Deliver; 0 when not taken.
	Sum uint32 `json:"sum,omitempty"`
	// Note is for people: an error's reason, say.
	Note string `json:"note,omitempty"`
}

// maxLine bounds a line of a history file, in bytes.
const maxLine = 1 << 20

var underLease = map[Op]bool{Deliver: true, Complete: true, Fail: true, Extend: true, Release: true}

func (r *Record) validate() error {
	switch r.Op {
	case Add, Complete, Fail, Extend, Release, Cancel:
	case Deliver, Left:
		if r.Outcome != OK {
			return fmt.Errorf("%s can only be ok: it is known by its answer", r.Op)
		}
	default:
		return fmt.Errorf("unknown op %q", r.Op)
	}
	switch r.Outcome {
	case OK, Refused, Unknown:
	case Already:
		if r.Op != Add && r.Op != Complete {
			return fmt.Errorf("%s cannot have happened already", r.Op)
		}
	default:
		return fmt.Errorf("unknown outcome %q", r.Outcome)
	}
	switch {
	case r.Task == "":
		return errors.New("no task")
	case underLease[r.Op] && len(r.Token) == 0:
		return fmt.Errorf("%s without a lease token", r.Op)
	case r.Start <= 0 || r.End < r.Start:
		return fmt.Errorf("times %d to %d are no interval", r.Start, r.End)
	case r.Outcome == OK && (r.Op == Deliver || r.Op == Extend) && r.Deadline <= 0:
		return fmt.Errorf("%s without a lease deadline", r.Op)
	}
	return nil
}

// Recorder collects records from many goroutines. All methods may be called
// concurrently.
type Recorder struct {
	base time.Time

	mu      sync.Mutex
	records []Record
}

// NewRecorder starts a history. Its clock begins at the wall clock's time and
// does not follow the wall clock's jumps.
func NewRecorder() *Recorder { return &Recorder{base: time.Now()} }

// Now tells the time to put into records.
func (r *Recorder) Now() int64 { return r.base.UnixNano() + int64(time.Since(r.base)) }

// Record adds to the history.
func (r *Recorder) Record(records ...Record) {
	r.mu.Lock()
	r.records = append(r.records, records...)
	r.mu.Unlock()
}

// Records returns what was recorded so far. The slice is the caller's.
func (r *Recorder) Records() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Record(nil), r.records...)
}

// Write writes records as JSON lines.
func Write(w io.Writer, records []Record) error {
	out := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(out)
	for i := range records {
		if err := enc.Encode(&records[i]); err != nil {
			return fmt.Errorf("history: record %d: %w", i, err)
		}
	}
	return out.Flush()
}

// Read reads what Write wrote. It refuses fields and values that it does not
// know, with the number of the line: a record that is not understood could
// hide a violation. Empty lines are allowed.
func Read(r io.Reader) ([]Record, error) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 1<<16), maxLine)
	var records []Record
	line := 0
	for scanner.Scan() {
		line++
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		var record Record
		if err := dec.Decode(&record); err != nil {
			return nil, fmt.Errorf("history: line %d: %w", line, err)
		}
		if dec.More() {
			return nil, fmt.Errorf("history: line %d: more than one record", line)
		}
		if err := record.validate(); err != nil {
			return nil, fmt.Errorf("history: line %d: %w", line, err)
		}
		records = append(records, record)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("history: after line %d: %w", line, err)
	}
	return records, nil
}
