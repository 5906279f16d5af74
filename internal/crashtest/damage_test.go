package crashtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// logReport reads the log of a server that does not run.
func logReport(t *testing.T, data string) *wal.Report {
	t.Helper()
	report, err := wal.Check(filepath.Join(data, "log"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK {
		t.Fatalf("the log is damaged before the test has touched it: %s", report.Damage)
	}
	return report
}

// tear leaves at the log's end what a write leaves that was cut short: the
// beginning of a record, some sectors of it missing. It returns how many bytes.
func tear(t *testing.T, rnd *rand.Rand, data string) int {
	t.Helper()
	report := logReport(t, data)
	if report.TailFile == "" {
		return 0 // the next record begins a new segment
	}
	file, err := os.OpenFile(report.TailFile, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	last := report.Segments[len(report.Segments)-1]
	room := last.Size - report.TailOffset
	if room < 64 {
		return 0
	}
	// A record like the one before, in its new place, cut at a random byte.
	record := make([]byte, min(max(last.End-last.LastFrame, 512), room, 1<<20))
	if _, err := file.ReadAt(record[:min(int64(len(record)), last.End-last.LastFrame)], last.LastFrame); err != nil {
		t.Fatal(err)
	}
	record = record[:1+rnd.IntN(len(record))]
	for at := 0; at < len(record); at += 512 {
		if rnd.IntN(4) == 0 {
			clear(record[at:min(at+512, len(record))])
		}
	}
	record[0] |= 1 // something must be there
	if _, err := file.WriteAt(record, report.TailOffset); err != nil {
		t.Fatal(err)
	}
	return len(record)
}

func TestTornTail_isCutOffAndNothingIsLost(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	torn, warned := 0, 0
	recorder := underKills(t, n, 10*time.Second, 6, func(rnd *rand.Rand) {
		if tear(t, rnd, n.data) == 0 {
			return
		}
		torn++
		n.start()
		if strings.Contains(n.output.String(), "unfinished write") {
			warned++
		}
		n.kill()
	})
	t.Logf("torn %d times", torn)
	if torn < 3 || warned != torn {
		t.Errorf("the log was torn %d times, and the server warned %d times", torn, warned)
	}
	wantSubstance(t, judge(t, recorder), 2_000, 50, 6)
}

func TestFlippedBit_isReportedAndNeverSkipped(t *testing.T) {
	processTest(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	n := newNode(t, t.TempDir())
	n.start()
	recorder := history.NewRecorder()
	c := newClient(dial(t, n.addr), recorder, "flip", "producer")
	const batches, perBatch = 50, 20
	for range batches {
		var tasks []*switchyardv1.TaskSpec
		for range perBatch {
			tasks = append(tasks, newTask(300))
		}
		if _, err := c.add(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
	}
	n.kill()

	report := logReport(t, n.data)
	segment := report.Segments[0]
	if segment.Frames < 10 {
		t.Fatalf("only %d records in the log's first segment", segment.Frames)
	}
	for i := range 8 {
		// In old records; once in the segment's header.
		at := segment.FirstFrame + rnd.Int64N(segment.LastFrame-segment.FirstFrame)
		if i == 0 {
			at = rnd.Int64N(segment.FirstFrame)
		}
		bit := byte(1) << rnd.IntN(8)
		flip(t, segment.File, at, bit)
		n.launch()
		code, err := n.exitCode(startTimeout)
		said := n.output.String()
		switch {
		case err != nil:
			t.Errorf("bit %#x of byte %d flipped: %v; it said:\n%s", bit, at, err, said)
			n.kill()
		case code == 0:
			t.Errorf("bit %#x of byte %d flipped: the server stopped as if all were well; it said:\n%s", bit, at, said)
		case !strings.Contains(said, segment.File) || !strings.Contains(said, "damaged"):
			t.Errorf("bit %#x of byte %d flipped: the server does not name the file and the damage:\n%s", bit, at, said)
		}
		if i == 1 {
			t.Logf("it says: %s", said)
		}
		flip(t, segment.File, at, bit)
	}

	// The refused starts have changed nothing.
	n.start()
	worker := newClient(dial(t, n.addr), recorder, "flip", "worker")
	var got int
	waitFor(t, "all tasks", func() error {
		tasks, err := worker.poll(t.Context(), 500, time.Second, 0)
		if err != nil {
			return err
		}
		got += len(tasks)
		if err := worker.complete(t.Context(), tasks); err != nil {
			return err
		}
		if got < batches*perBatch {
			return fmt.Errorf("%d came", got)
		}
		return nil
	})
	if report := judge(t, recorder); report.Completed != batches*perBatch {
		t.Errorf("%d of %d tasks came back", report.Completed, batches*perBatch)
	}
}

func TestDamagedTable_isReportedAndNeverServed(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	n.env = busyStore
	n.start()
	recorder := history.NewRecorder()
	c := newClient(dial(t, n.addr), recorder, "table", "producer")
	for range 40 {
		var tasks []*switchyardv1.TaskSpec
		for range 200 {
			tasks = append(tasks, newTask(1000))
		}
		if _, err := c.add(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
	}
	n.interrupt()

	// Every table loses a few bits in its middle, where the rows are.
	tables, err := filepath.Glob(filepath.Join(n.data, "rows", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables in %s (error: %v)", n.data, err)
	}
	for _, table := range tables {
		info, err := os.Stat(table)
		if err != nil {
			t.Fatal(err)
		}
		flip(t, table, info.Size()/3, 0x10)
	}

	// It may notice at once or when it reads them; it must not serve them.
	n.launch()
	if n.waitReady(startTimeout) == nil {
		worker := newClient(dial(t, n.addr), recorder, "table", "worker")
		for range 100 {
			tasks, err := worker.poll(t.Context(), 200, 100*time.Millisecond, 0)
			if err != nil {
				t.Logf("a poll ended with: %v", err)
				break
			}
			if err := worker.complete(t.Context(), tasks); err != nil {
				t.Logf("a completion ended with: %v", err)
				break
			}
		}
	}
	waitFor(t, "the server to say what is damaged", func() error {
		return n.said(".sst is corrupt")
	})
	n.kill()
	t.Logf("it says: %s", n.output)
	for _, v := range history.Check(recorder.Records(), history.Options{ClockError: clockError}).Violations {
		if v.Kind != history.Lost { // it is on the disk, unreadable, and the server says so
			t.Error(v)
		}
	}
}

func flip(t *testing.T, name string, at int64, bit byte) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var b [1]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= bit
	if _, err := file.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}
