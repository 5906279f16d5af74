package bulkadd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func items(t *testing.T, s Source) []string {
	t.Helper()
	var out []string
	for {
		item, err := s.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		out = append(out, fmt.Sprintf("%d:%s", item.Number, item.Data))
	}
}

func TestSplit_readsLinesAsTheyAre(t *testing.T) {
	require.Equal(t, []string{"1:a", "2:", "3:b\r", "4: c"}, items(t, NewSplit(strings.NewReader("a\n\nb\r\n c"), '\n', 100)))
	require.Equal(t, []string{"1:a"}, items(t, NewSplit(strings.NewReader("a\n"), '\n', 100)))
	require.Empty(t, items(t, NewSplit(strings.NewReader(""), '\n', 100)))
	require.Equal(t, []string{"1:a\nb", "2:c"}, items(t, NewSplit(strings.NewReader("a\nb\x00c\x00"), 0, 100)))

	skip := NewSplit(strings.NewReader("a\n\nb\n\n"), '\n', 100)
	skip.SkipEmpty = true
	require.Equal(t, []string{"1:a", "3:b"}, items(t, skip))
}

func TestSplit_limitsTheLengthOfALine(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	require.Equal(t, []string{"1:" + long, "2:y"}, items(t, NewSplit(strings.NewReader(long+"\ny"), '\n', 300<<10)))
	s := NewSplit(strings.NewReader("ok\n"+long+"\n"), '\n', 300<<10-1)
	_, err := s.Next()
	require.NoError(t, err)
	_, err = s.Next()
	require.EqualError(t, err, "line 2 of the input is longer than 307199 bytes")
}

// recorder is a Send that keeps its batches and takes a while.
type recorder struct {
	mu      sync.Mutex
	batches []int
	data    []string
	most    int
	now     int
	takes   time.Duration
	answer  func(batch int, items []Item) ([]Outcome, error)
}

func (r *recorder) send(_ context.Context, items []Item) ([]Outcome, error) {
	r.mu.Lock()
	n := len(r.batches)
	r.batches = append(r.batches, len(items))
	for _, item := range items {
		r.data = append(r.data, string(item.Data))
	}
	r.now++
	r.most = max(r.most, r.now)
	r.mu.Unlock()
	time.Sleep(r.takes)
	r.mu.Lock()
	r.now--
	r.mu.Unlock()
	if r.answer != nil {
		return r.answer(n, items)
	}
	return make([]Outcome, len(items)), nil
}

func numbers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i)
	}
	return out
}

func TestRun_sendsEverythingInFullBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{takes: 10 * time.Millisecond}
		a := &Adder{Send: r.send, BatchItems: 100, InFlight: 4}
		require.NoError(t, a.Run(t.Context(), Strings(numbers(2000))))
		require.Equal(t, Summary{Read: 2000, Added: 2000}, a.Summary())
		require.ElementsMatch(t, numbers(2000), r.data)
		// Twice the fewest: the senders take what the reader has so far.
		require.LessOrEqual(t, len(r.batches), 40, "batches: %v", r.batches)
		require.Equal(t, 4, r.most)
	})
}

func TestRun_keepsTheOrderWithOneInFlight(t *testing.T) {
	r := &recorder{}
	a := &Adder{Send: r.send, BatchItems: 7, InFlight: 1}
	require.NoError(t, a.Run(context.Background(), Strings(numbers(500))))
	require.Equal(t, numbers(500), r.data)
}

func TestRun_limitsABatchByBytes(t *testing.T) {
	r := &recorder{}
	a := &Adder{Send: r.send, BatchBytes: 10, InFlight: 1}
	require.NoError(t, a.Run(context.Background(), Strings([]string{"0123456789ABC", "01234", "56789", "x"})))
	require.Equal(t, []string{"0123456789ABC", "01234", "56789", "x"}, r.data)
	for _, n := range r.batches {
		require.LessOrEqual(t, n, 3)
	}
	require.GreaterOrEqual(t, len(r.batches), 3)
}

// A line of a slow stream must not wait until a batch is full.
func TestRun_sendsWhatASlowSourceHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		a := &Adder{Send: r.send}
		in, out := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- a.Run(t.Context(), NewSplit(in, '\n', 100)) }()
		for i := range 3 {
			fmt.Fprintf(out, "%d\n", i)
			synctest.Wait()
			require.Equal(t, int64(i+1), a.Summary().Added)
		}
		out.Close()
		require.NoError(t, <-done)
	})
}

func TestRun_countsOutcomes(t *testing.T) {
	r := &recorder{answer: func(_ int, items []Item) ([]Outcome, error) {
		out := make([]Outcome, len(items))
		for i, item := range items {
			switch string(item.Data) {
			case "bad":
				out[i].Err = errors.New("too large")
			case "old":
				out[i].AlreadyAdded = true
			}
		}
		return out, nil
	}}
	var refused []string
	a := &Adder{Send: r.send, InFlight: 1, OnRefused: func(i Item, err error) {
		refused = append(refused, fmt.Sprintf("%d %s: %v", i.Number, i.Data, err))
	}}
	require.NoError(t, a.Run(context.Background(), Strings([]string{"a", "bad", "old", "b"})))
	require.Equal(t, Summary{Read: 4, Added: 2, AlreadyAdded: 1, Refused: 1}, a.Summary())
	require.Equal(t, []string{"2 bad: too large"}, refused)
}

func TestRun_stopsAtAFailedBatch(t *testing.T) {
	boom := errors.New("boom")
	r := &recorder{answer: func(n int, items []Item) ([]Outcome, error) {
		if n == 2 {
			return nil, boom
		}
		return make([]Outcome, len(items)), nil
	}}
	a := &Adder{Send: r.send, BatchItems: 10, InFlight: 1}
	require.ErrorIs(t, a.Run(context.Background(), Strings(numbers(1000))), boom)
	s := a.Summary()
	require.Equal(t, 3, len(r.batches))
	require.Equal(t, int64(r.batches[2]), s.Unknown)
	require.Equal(t, int64(r.batches[0]+r.batches[1]), s.Added)
}

func TestRun_sendsWhatCameBeforeABrokenSource(t *testing.T) {
	boom := errors.New("boom")
	in, out := io.Pipe()
	go func() {
		io.WriteString(out, "a\nb\n")
		out.CloseWithError(boom)
	}()
	a := &Adder{Send: (&recorder{}).send}
	require.ErrorIs(t, a.Run(context.Background(), NewSplit(in, '\n', 100)), boom)
	require.Equal(t, int64(2), a.Summary().Added)
}

func TestRun_endsWithItsContextAfterTheBatchesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &recorder{takes: time.Second}
		a := &Adder{Send: r.send, BatchItems: 10, InFlight: 2}
		in, out := io.Pipe() // never ends by itself
		go func() {
			for i := 0; ; i++ {
				if _, err := fmt.Fprintln(out, i); err != nil {
					return
				}
			}
		}()
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx, NewSplit(in, '\n', 100)) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		s := a.Summary()
		require.Equal(t, int64(len(r.data)), s.Added, "what was in flight has been answered")
		require.Len(t, r.batches, 2)
		in.Close()
		synctest.Wait()
	})
}
