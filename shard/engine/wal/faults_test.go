package wal

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLog_failsForGoodAtTheFirstFault(t *testing.T) {
	eio := syscall.EIO
	for name, fault := range map[string]struct {
		op  string
		err error
	}{"write": {"write", eio}, "short write": {"write", errShort}, "sync": {"sync", eio}, "full disk": {"write", syscall.ENOSPC}} {
		t.Run(name, func(t *testing.T) {
			fs := newPowerFS(1)
			l, _ := openAt(t, fs)
			store(t, l, 1, 5, 20)
			var on atomic.Bool
			on.Store(true)
			count := 0
			fail := func(op, file string) error {
				if on.Load() && op == fault.op && strings.HasSuffix(file, extSegment) {
					count++
					return fault.err
				}
				return nil
			}
			fs.set(func(p *powerFS) { p.fail = fail })
			first := l.StoreLog(entries(6, 6, 20)[0])
			require.ErrorIs(t, first, ErrFailed)
			var failed *FailedError
			require.ErrorAs(t, first, &failed)
			require.Equal(t, fault.op, failed.Op)
			require.Contains(t, failed.File, segmentName(1))
			if fault.err == syscall.ENOSPC {
				require.Contains(t, first.Error(), "free disk space")
			}
			// The disk is well again, and the log is not.
			on.Store(false)
			var e raft.Log
			_, ferr := l.FirstIndex()
			_, lerr := l.LastIndex()
			for _, err := range []error{
				l.StoreLog(entries(6, 6, 20)[0]), l.StoreLogs(nil), l.DeleteRange(1, 2), l.GetLog(1, &e), l.Sync(), l.sync(), ferr, lerr, l.Status().Failed, l.Close(),
			} {
				require.Equal(t, first, err)
			}
			require.Equal(t, 1, count, "nothing is tried twice")
			fs = fs.cut()
			l, _ = openAt(t, fs)
			last, err := l.LastIndex()
			require.NoError(t, err)
			require.Contains(t, []uint64{5, 6}, last)
			requireEntries(t, l, 1, last)
			require.NoError(t, l.Close())
		})
	}
}

func TestLog_writesAgainAtOpenWhatNoFrameProvesDurable(t *testing.T) {
	// A sync fails, the system drops the pages' dirt, and a reader still sees them: only what is written again is safe.
	fs := newPowerFS(1)
	l, _ := openAt(t, fs)
	store(t, l, 1, 5, 20)
	fail := func(op, file string) error {
		if op == "sync" && strings.HasSuffix(file, extSegment) {
			return syscall.EIO
		}
		return nil
	}
	fs.set(func(p *powerFS) { p.fail = fail })
	require.ErrorIs(t, l.StoreLog(entries(6, 6, 2000)[0]), syscall.EIO)
	_ = l.Close()
	fs = fs.kill()
	for _, n := range fs.names {
		clear(n.dirty)
	}
	l, _ = openAt(t, fs)
	requireEntries(t, l, 1, 6)
	fs = fs.cut()
	_ = l.Close()
	l, _ = openAt(t, fs)
	requireEntries(t, l, 1, 6)
	require.NoError(t, l.Close())
}

func TestLog_tellsOfLowSpaceBeforeItFails(t *testing.T) {
	fs := newPowerFS(1)
	fs.set(func(p *powerFS) { p.space = 3 * MinSegmentBytes })
	low := make(chan error, 10)
	l, _ := openAt(t, fs, func(o *Options) { o.OnLowSpace = func(err error) { low <- err } })
	var told, acked uint64
	for i := uint64(1); told == 0 || i < told+1000; i++ {
		err := l.StoreLog(entries(i, i, 100)[0])
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorIs(t, err, ErrFailed)
			break
		}
		acked = i
		if i == 50 { // the third and last segment has begun
			select {
			case err := <-low:
				require.ErrorIs(t, err, syscall.ENOSPC)
			case <-time.After(10 * time.Second):
				require.Fail(t, "nobody was told")
			}
			require.ErrorIs(t, l.Status().LowSpace, syscall.ENOSPC)
			require.NoError(t, l.Status().Failed)
			told = i
		}
	}
	require.NotZero(t, told)
	require.Greater(t, acked, told)
	require.Error(t, l.Close())
	fs = fs.cut()
	fs.set(func(p *powerFS) { p.space = -1 })
	l, _ = openAt(t, fs)
	requireEntries(t, l, 1, acked)
	store(t, l, acked+1, acked+50, 100)
	require.NoError(t, l.Close())
}

func TestLog_goesOnWhenSpaceComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newPowerFS(1)
		fs.set(func(p *powerFS) { p.space = 2 * MinSegmentBytes })
		var lows atomic.Int32
		l, _ := openAt(t, fs, func(o *Options) { o.OnLowSpace = func(error) { lows.Add(1) } })
		store(t, l, 1, 30, 100)
		synctest.Wait()
		require.Equal(t, int32(1), lows.Load())
		fs.set(func(p *powerFS) { p.space = -1 })
		time.Sleep(2 * retrySpare)
		synctest.Wait()
		require.NoError(t, l.Status().LowSpace)
		require.EqualValues(t, MinSegmentBytes, l.Status().SpareBytes)
		store(t, l, 31, 100, 100)
		require.Equal(t, int32(1), lows.Load())
		require.NoError(t, l.Close())
	})
}

func TestLog_intervalSyncsInTimeAndInBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newPowerFS(1)
		var syncs atomic.Int32
		l, _ := openAt(t, fs, func(o *Options) {
			o.Durability, o.SyncInterval, o.MaxUnsyncedBytes = DurabilityInterval, time.Second, 5000
			o.SegmentBytes = 64 << 10
			o.OnSync = func(time.Duration) { syncs.Add(1) }
		})
		store(t, l, 1, 3, 100)
		require.Positive(t, l.Status().UnsyncedBytes)
		require.Zero(t, syncs.Load())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, l.Status().UnsyncedBytes)
		require.Equal(t, int32(1), syncs.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, int32(1), syncs.Load(), "an idle log is not synced")
		for i := uint64(4); i < 200; i++ {
			store(t, l, i, i, 100)
			require.LessOrEqual(t, l.Status().UnsyncedBytes, int64(5000))
		}
		require.NoError(t, l.Sync())
		require.Zero(t, l.Status().UnsyncedBytes)
		fs = fs.cut()
		_ = l.Close()
		l, _ = openAt(t, fs, func(o *Options) { o.Durability = DurabilityInterval })
		requireEntries(t, l, 1, 199)
		require.NoError(t, l.Close())
	})
}

func TestLog_refusesWhatRaftMustNotDo(t *testing.T) {
	l, _ := openAt(t, newPowerFS(1))
	require.ErrorIs(t, l.StoreLog(&raft.Log{Index: 0}), ErrNotContiguous)
	require.NoError(t, l.StoreLog(&raft.Log{Index: 7, Data: []byte("7")}))
	for _, logs := range [][]*raft.Log{
		{{Index: 7}}, {{Index: 9}}, {{Index: 8}, {Index: 8}}, {{Index: 8}, {Index: 10}}, {{Index: 6}},
	} {
		require.ErrorIs(t, l.StoreLogs(logs), ErrNotContiguous)
	}
	store(t, l, 8, 20, 5)
	require.ErrorIs(t, l.DeleteRange(10, 12), ErrMiddle)
	require.NoError(t, l.DeleteRange(21, 30))
	require.NoError(t, l.DeleteRange(0, 6))
	require.NoError(t, l.DeleteRange(12, 10))
	requireEntries(t, l, 7, 20)
	require.NoError(t, l.DeleteRange(0, 100))
	requireEntries(t, l, 0, 0)
	store(t, l, 1000, 1001, 5)
	requireEntries(t, l, 1000, 1001)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.StoreLog(&raft.Log{Index: 1002}), ErrClosed)
	require.ErrorIs(t, l.GetLog(1000, &raft.Log{}), ErrClosed)
	require.ErrorIs(t, l.DeleteRange(1000, 1000), ErrClosed)
	require.ErrorIs(t, l.Sync(), ErrClosed)

	for _, bad := range []Options{
		{SegmentBytes: 1}, {SegmentBytes: MaxSegmentBytes + 1}, {Durability: 9}, {SyncInterval: -1}, {MaxUnsyncedBytes: -1},
	} {
		_, _, err := Open(t.TempDir(), bad)
		require.Error(t, err)
	}
}

func TestLog_takesBatchesLargerThanASegmentAndAFrame(t *testing.T) {
	dir := t.TempDir()
	l, _, err := Open(dir, Options{SegmentBytes: 1 << 20, Durability: DurabilityNone})
	require.NoError(t, err)
	big := make([]byte, 3<<20)
	var logs []*raft.Log
	for i := uint64(1); i <= 45; i++ { // 135 MiB
		logs = append(logs, &raft.Log{Index: i, Term: i, Data: big})
	}
	require.NoError(t, l.StoreLogs(logs))
	require.Greater(t, l.Status().Segments, 1)
	check := func() {
		var e raft.Log
		for _, i := range []uint64{1, 22, 45} {
			require.NoError(t, l.GetLog(i, &e))
			require.Equal(t, i, e.Term)
			require.Len(t, e.Data, len(big))
		}
	}
	check()
	require.NoError(t, l.Close())
	l, rec, err := Open(dir, Options{SegmentBytes: 1 << 20, Durability: DurabilityNone})
	require.NoError(t, err)
	require.True(t, rec.Clean)
	check()
	require.NoError(t, l.DeleteRange(1, 45))
	require.Equal(t, 1, l.Status().Segments)
	require.NoError(t, l.Close())
}

func TestLog_deletedEntriesFreeAndReuseFiles(t *testing.T) {
	fs := newPowerFS(1)
	l, _ := openAt(t, fs)
	last := uint64(0)
	for range 50 {
		store(t, l, last+1, last+30, 200)
		last += 30
		require.NoError(t, l.DeleteRange(0, last-5))
		st := l.Status()
		require.LessOrEqual(t, st.Segments, 3)
		require.LessOrEqual(t, st.SpareBytes, int64(3*MinSegmentBytes))
	}
	fs.mu.Lock()
	require.LessOrEqual(t, len(fs.names), 7)
	fs.mu.Unlock()
	requireEntries(t, l, last-4, last)
	require.NoError(t, l.Close())
	l, _ = openAt(t, fs)
	requireEntries(t, l, last-4, last)
	require.NoError(t, l.Close())
}

func TestLog_readersWritersAndDeletersTogether(t *testing.T) {
	dir := t.TempDir()
	l, _, err := Open(dir, Options{SegmentBytes: 16 << 10, Durability: DurabilityInterval, SyncInterval: time.Millisecond})
	require.NoError(t, err)
	const total = 20000
	var stored, deleted atomic.Uint64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for r := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 0))
			for {
				select {
				case <-stop:
					return
				default:
				}
				lo, hi := deleted.Load(), stored.Load()
				if hi <= lo {
					continue
				}
				i := lo + 1 + rng.Uint64N(hi-lo)
				for n := range uint64(20) {
					var e raft.Log
					err := l.GetLog(i+n, &e)
					if errors.Is(err, raft.ErrLogNotFound) {
						if i+n > deleted.Load() && i+n <= hi {
							t.Errorf("entry %d of %d to %d is not there", i+n, deleted.Load()+1, hi)
						}
						break
					}
					if err != nil || e.Index != i+n || string(e.Data) != string(entries(i+n, i+n, 50)[0].Data) {
						t.Errorf("entry %d: %v, %v", i+n, e, err)
						return
					}
				}
			}
		})
	}
	for i := uint64(1); i <= total; i += 10 {
		require.NoError(t, l.StoreLogs(entries(i, i+9, 50)))
		stored.Store(i + 9)
		if i%1000 == 1 && i > 1000 {
			deleted.Store(i - 500)
			require.NoError(t, l.DeleteRange(0, i-500))
		}
	}
	close(stop)
	wg.Wait()
	require.NoError(t, l.Close())
}

func TestOpen_findsFilesOfAnInterruptedRun(t *testing.T) {
	dir := t.TempDir()
	l, _, err := Open(dir, Options{SegmentBytes: MinSegmentBytes})
	require.NoError(t, err)
	store(t, l, 1, 100, 100)
	require.NoError(t, l.Close())
	f, err := OS.Create(filepath.Join(dir, "00000000000000ff"+extTemp))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	l, rec, err := Open(dir, Options{SegmentBytes: MinSegmentBytes, MustHave: 100})
	require.NoError(t, err)
	require.True(t, rec.Clean)
	requireEntries(t, l, 1, 100)
	files, err := OS.List(dir)
	require.NoError(t, err)
	for _, f := range files {
		require.NotContains(t, f.Name, extTemp)
	}
	require.NoError(t, l.Close())
}
