package wal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// openAt opens a log of small segments on fs.
func openAt(t testing.TB, fs FS, change ...func(*Options)) (*Log, *Recovery) {
	t.Helper()
	opt := Options{SegmentBytes: MinSegmentBytes, FS: fs}
	for _, c := range change {
		c(&opt)
	}
	l, rec, err := Open("/wal", opt)
	require.NoError(t, err)
	return l, rec
}

// openErr opens a log that must not open.
func openErr(t testing.TB, fs FS, change ...func(*Options)) *CorruptionError {
	t.Helper()
	opt := Options{SegmentBytes: MinSegmentBytes, FS: fs}
	for _, c := range change {
		c(&opt)
	}
	l, rec, err := Open("/wal", opt)
	if err == nil {
		_ = l.Close()
		require.Fail(t, "a damaged log was opened", "%+v", rec)
	}
	require.Nil(t, rec)
	var c *CorruptionError
	require.ErrorAs(t, err, &c)
	require.ErrorIs(t, err, ErrCorrupt)
	return c
}

func entries(from, to uint64, size int) []*raft.Log {
	var out []*raft.Log
	for i := from; i <= to; i++ {
		out = append(out, &raft.Log{Index: i, Term: 1, Data: []byte(fmt.Sprintf("%0*d", size, i))})
	}
	return out
}

// store appends entries one call each.
func store(t testing.TB, l *Log, from, to uint64, size int) {
	t.Helper()
	for _, e := range entries(from, to, size) {
		require.NoError(t, l.StoreLog(e))
	}
}

func requireEntries(t testing.TB, l *Log, from, to uint64) {
	t.Helper()
	first, err := l.FirstIndex()
	require.NoError(t, err)
	last, err := l.LastIndex()
	require.NoError(t, err)
	require.Equal(t, []uint64{from, to}, []uint64{first, last})
	for i := max(from, 1); i <= to; i++ {
		var e raft.Log
		require.NoError(t, l.GetLog(i, &e))
		require.Equal(t, fmt.Sprint(i), strings.TrimLeft(string(e.Data), "0"))
	}
}

// segments lists the segment files on fs and where their frames end.
func segments(t testing.TB, fs FS) *Report {
	t.Helper()
	r, err := Check("/wal", fs)
	require.NoError(t, err)
	require.True(t, r.OK, r.Damage)
	return r
}

func (p *powerFS) flip(name string, off int64, bit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.names[name]
	n.cur = slices.Clone(n.cur)
	n.cur[off] ^= 1 << bit
	n.safe = slices.Clone(n.cur)
}

func TestOpen_reportsAFlippedBitInEveryByteButTheLastFrames(t *testing.T) {
	base := newPowerFS(1)
	l, _ := openAt(t, base)
	store(t, l, 1, 60, 150)
	require.NoError(t, l.StoreLogs(entries(61, 70, 40)))
	require.NoError(t, l.DeleteRange(65, 70))
	store(t, l, 65, 66, 10)
	killed := base.kill()
	rep := segments(t, killed)
	require.Greater(t, len(rep.Segments), 2)
	_ = l.Close()
	for i, s := range rep.Segments {
		end := s.End
		if i == len(rep.Segments)-1 {
			end = s.LastFrame
		}
		step := int64(1)
		if testing.Short() {
			step = 5
		}
		for off := int64(0); off < end; off += step {
			fs := killed.kill()
			killed.set(func(p *powerFS) { p.off = false })
			fs.flip(s.File, off, int(off)%8)
			before := fs.operations()
			c := openErr(t, fs)
			require.Equal(t, s.File, c.File, "byte %d of %s", off, s.File)
			require.LessOrEqual(t, c.Offset, off)
			require.Equal(t, before, fs.operations(), "a refused log must not be changed")
		}
	}
}

func TestOpen_reportsAFlippedBitInTheLastEntryAfterACleanClose(t *testing.T) {
	base := newPowerFS(1)
	l, _ := openAt(t, base)
	store(t, l, 1, 5, 20)
	require.NoError(t, l.Close())
	rep := segments(t, base)
	require.True(t, rep.Clean)
	require.Len(t, rep.Segments, 1)
	s := rep.Segments[0]
	for off := int64(0); off < s.LastFrame; off++ {
		fs := base.kill()
		base.set(func(p *powerFS) { p.off = false })
		fs.flip(s.File, off, 3)
		openErr(t, fs)
	}
	// In the mark itself nothing is lost.
	base.flip(s.File, s.LastFrame+20, 0)
	l, rec := openAt(t, base)
	require.False(t, rec.Clean)
	require.Positive(t, rec.TornBytes)
	requireEntries(t, l, 1, 5)
	require.NoError(t, l.Close())
}

func TestOpen_cutsAnUnfinishedWriteOff(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(fs *powerFS, s SegmentReport)
		last   uint64
	}{
		"part of the last frame": {func(fs *powerFS, s SegmentReport) { fs.flip(s.File, s.LastFrame+60, 0) }, 4},
		"header of the last frame": {func(fs *powerFS, s SegmentReport) {
			for off := s.LastFrame; off < s.LastFrame+frameHeaderSize; off++ {
				fs.flip(s.File, off, 1)
			}
		}, 4},
		"rubbish behind it": {func(fs *powerFS, s SegmentReport) {
			for off := s.End; off < s.End+100; off++ {
				fs.flip(s.File, off, int(off*7)%8)
			}
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newPowerFS(1)
			l, _ := openAt(t, fs)
			store(t, l, 1, 5, 50)
			fs = fs.kill()
			_ = l.Close()
			s := segments(t, fs).Segments[0]
			tc.damage(fs, s)
			l, rec := openAt(t, fs)
			require.Positive(t, rec.TornBytes)
			require.Equal(t, s.File, rec.TornFile)
			require.False(t, rec.Clean)
			requireEntries(t, l, 1, tc.last)
			store(t, l, tc.last+1, 20, 50)
			require.NoError(t, l.Close())
			l, rec = openAt(t, fs)
			require.True(t, rec.Clean)
			require.Zero(t, rec.TornBytes)
			requireEntries(t, l, 1, 20)
			require.NoError(t, l.Close())
		})
	}
}

func TestOpen_anEndBeforeMustHaveIsDamage(t *testing.T) {
	fs := newPowerFS(1)
	c := openErr(t, fs, func(o *Options) { o.MustHave = 1 })
	require.Equal(t, uint64(1), c.NextIndex)
	l, _ := openAt(t, fs)
	store(t, l, 1, 5, 50)
	fs = fs.kill()
	_ = l.Close()
	s := segments(t, fs).Segments[0]
	fs.flip(s.File, s.LastFrame+60, 0)
	c = openErr(t, fs, func(o *Options) { o.MustHave = 5 })
	require.Equal(t, s.File, c.File)
	require.Equal(t, s.LastFrame, c.Offset)
	require.Contains(t, c.Error(), "ends at index 4")
	l, _ = openAt(t, fs, func(o *Options) { o.MustHave = 4 })
	require.NoError(t, l.Close())
}

func TestOpen_missingOrShortenedFilesAreDamage(t *testing.T) {
	base := newPowerFS(1)
	l, _ := openAt(t, base)
	store(t, l, 1, 100, 150)
	require.NoError(t, l.Close())
	rep := segments(t, base)
	require.Greater(t, len(rep.Segments), 3)
	for i, s := range rep.Segments {
		if i < len(rep.Segments)-1 {
			fs := base.kill()
			delete(fs.names, s.File)
			c := openErr(t, fs)
			require.Contains(t, c.Detail, "missing")
			require.Equal(t, s.File, c.File)
		}
		for _, cut := range []int64{1, s.Size - s.End + 1, s.Size - 10, s.Size} {
			fs := base.kill()
			n := fs.names[s.File]
			n.cur = n.cur[:s.Size-cut]
			c := openErr(t, fs, func(o *Options) { o.MustHave = 100 })
			require.Equal(t, s.File, c.File, "%d bytes cut off %s", cut, s.File)
		}
	}
	base.set(func(p *powerFS) { p.off = false })
	l, rec := openAt(t, base)
	require.True(t, rec.Clean)
	requireEntries(t, l, 1, 100)
	require.NoError(t, l.Close())
}

func TestOpen_refusesANewerVersionAndUnreadableFiles(t *testing.T) {
	fs := newPowerFS(1)
	l, _ := openAt(t, fs)
	store(t, l, 1, 3, 10)
	require.NoError(t, l.Close())
	name := segments(t, fs).Segments[0].File
	bad := fs.kill()
	fs.set(func(p *powerFS) { p.off = false })
	b := bad.names[name].cur
	var h segmentHeader
	require.NoError(t, h.parse(b, 1))
	h.version = formatVersion + 1
	h.put(b)
	_, _, err := Open("/wal", Options{FS: bad})
	require.ErrorIs(t, err, errNewVersion)
	require.NotErrorIs(t, err, ErrCorrupt)

	broken := errors.New("input/output error")
	for _, op := range []string{"open", "read"} {
		fail := func(o, file string) error {
			if o == op {
				return broken
			}
			return nil
		}
		fs.set(func(p *powerFS) { p.fail = fail })
		_, _, err = Open("/wal", Options{FS: fs})
		require.ErrorIs(t, err, broken)
		require.Contains(t, err.Error(), "0000000000000001.seg")
	}
}

func TestOpen_framesOfAFilesFormerLifeAreNotTaken(t *testing.T) {
	fs := newPowerFS(1)
	l, _ := openAt(t, fs)
	// Fill and delete until files come round again; frames of equal size lie at equal places in each life.
	var recycled bool
	for i := uint64(0); i < 40; i++ {
		store(t, l, i*10+1, i*10+10, 300)
		if i > 1 {
			require.NoError(t, l.DeleteRange(0, i*10))
		}
		recycled = recycled || l.active.Load().recycled
	}
	require.True(t, recycled)
	for !l.active.Load().recycled || l.active.Load().end > 2000 {
		last, err := l.LastIndex()
		require.NoError(t, err)
		store(t, l, last+1, last+1, 300)
		require.NoError(t, l.DeleteRange(0, last))
	}
	last, err := l.LastIndex()
	require.NoError(t, err)
	fs = fs.kill()
	_ = l.Close()
	l, rec := openAt(t, fs)
	require.Zero(t, rec.TornBytes)
	requireEntries(t, l, last, last)
	require.NoError(t, l.Close())
}

func TestOpen_aFrameInsideAnEntryIsData(t *testing.T) {
	// Entry 5 holds a frame that says that entry 5 is durable: right in all but where it lies.
	inside := func(fs *powerFS, off int64) []byte {
		h := frameHeader{kind: kindClosed, seq: 6, synced: 5}
		var sh segmentHeader
		require.NoError(t, sh.parse(fs.content("/wal/"+segmentName(1)), 1))
		h.salt = sh.salt
		b := make([]byte, 7+frameHeaderSize) // an entry's data begins on byte 1 of 8
		h.put(b[7:])
		seal(b[7:], 1, off)
		return b
	}
	for _, copied := range []bool{true, false} {
		fs := newPowerFS(1)
		l, _ := openAt(t, fs)
		store(t, l, 1, 4, 100)
		off := l.active.Load().end + frameHeaderSize + entryHeaderSize + 7
		require.Zero(t, off%frameAlign)
		if copied {
			off = segmentHeaderSize
		}
		require.NoError(t, l.StoreLog(&raft.Log{Index: 5, Term: 1, Data: inside(fs, off)}))
		fs = fs.kill()
		_ = l.Close()
		// The write of entry 5 was not finished.
		s := segments(t, fs).Segments[0]
		fs.flip(s.File, s.LastFrame+frameHeaderSize+2, 0)
		if !copied {
			// A frame made for this very place is believed: the test would see it.
			openErr(t, fs)
			continue
		}
		l, rec := openAt(t, fs)
		require.Positive(t, rec.TornBytes)
		requireEntries(t, l, 1, 4)
		require.NoError(t, l.Close())
	}
}

func TestOpen_whatWasCutOffStaysGone(t *testing.T) {
	// Entries 4 and 5 are not durable. 4 is torn, 5 is whole: both go. A new 4 of the same length ends where 5 began.
	interval := func(o *Options) { o.Durability, o.SyncInterval = DurabilityInterval, time.Hour }
	fs := newPowerFS(1)
	l, _ := openAt(t, fs, interval)
	store(t, l, 1, 3, 50)
	require.NoError(t, l.Sync())
	store(t, l, 4, 4, 50)
	at := l.active.Load().end - 1
	store(t, l, 5, 5, 50)
	fs = fs.kill()
	_ = l.Close()
	fs.flip("/wal/"+segmentName(1), at-10, 0)
	l, rec := openAt(t, fs, interval)
	require.Positive(t, rec.TornBytes)
	requireEntries(t, l, 1, 3)
	store(t, l, 4, 4, 50)
	fs = fs.kill()
	_ = l.Close()
	l, _ = openAt(t, fs, interval)
	requireEntries(t, l, 1, 4)
	require.NoError(t, l.Close())
}

func TestRepair_cutsAtTheDamageAndKeepsWhatItCuts(t *testing.T) {
	base := newPowerFS(1)
	l, _ := openAt(t, base)
	store(t, l, 1, 100, 150)
	require.NoError(t, l.Close())
	rep := segments(t, base)
	for i, s := range rep.Segments {
		for _, off := range []int64{10, s.FirstFrame + 60, s.FirstFrame + (s.LastFrame-s.FirstFrame)/2} {
			if i == len(rep.Segments)-1 && off >= s.LastFrame {
				continue
			}
			t.Run(fmt.Sprintf("segment %d byte %d", s.Segment, off), func(t *testing.T) {
				fs := base.kill()
				base.set(func(p *powerFS) { p.off = false })
				fs.flip(s.File, off, 0)
				c := openErr(t, fs)
				bad, err := Check("/wal", fs)
				require.NoError(t, err)
				require.False(t, bad.OK)
				require.Equal(t, c.Error(), bad.Damage)
				require.Equal(t, c.Offset, bad.DamageOffset)

				done, err := Repair("/wal", fs)
				require.NoError(t, err)
				require.Equal(t, c.Error(), done.Damage)
				require.NotEmpty(t, done.Moved)
				for _, m := range done.Moved {
					require.NotNil(t, fs.names[m], m)
				}
				fs = fs.cut()
				l, _ := openAt(t, fs)
				last, err := l.LastIndex()
				require.NoError(t, err)
				require.Equal(t, done.LastIndex, last)
				require.Equal(t, c.NextIndex-1, last)
				if last > 0 {
					requireEntries(t, l, 1, last)
				}
				store(t, l, last+1, last+30, 150)
				require.NoError(t, l.Close())
				l, rec := openAt(t, fs)
				require.True(t, rec.Clean)
				requireEntries(t, l, 1, last+30)
				require.NoError(t, l.Close())

				again, err := Repair("/wal", fs)
				require.NoError(t, err)
				require.Empty(t, again.Damage)
				require.Equal(t, last+30, again.LastIndex)
			})
		}
	}
	fs := base.kill()
	delete(fs.names, rep.Segments[0].File)
	_, err := Repair("/wal", fs)
	require.ErrorIs(t, err, ErrNoRepair)
}

func FuzzOpen(f *testing.F) {
	fs := newPowerFS(1)
	l, _ := openAt(f, fs)
	store(f, l, 1, 5, 30)
	require.NoError(f, l.DeleteRange(4, 5))
	require.NoError(f, l.Close())
	f.Add(fs.names[segments(f, fs).Segments[0].File].cur, 100, byte(1))
	f.Add([]byte{}, 0, byte(0))
	f.Fuzz(func(t *testing.T, file []byte, at int, flip byte) {
		// The file as it is, or with one byte changed and its checksums right: any outcome but a panic or an invented entry.
		file = slices.Clone(file)
		if len(file) > 0 && at >= 0 {
			file[at%len(file)] ^= flip
		}
		for _, reseal := range []bool{false, true} {
			if reseal {
				resealAll(file)
			}
			fs := newPowerFS(1)
			n := &inode{cur: file, safe: file, dirty: map[int64]struct{}{}}
			fs.names["/wal/"+segmentName(1)], fs.durable["/wal/"+segmentName(1)] = n, n
			l, rec, err := Open("/wal", Options{SegmentBytes: MinSegmentBytes, FS: fs})
			if err != nil {
				require.Nil(t, rec)
				continue
			}
			for i := rec.FirstIndex; i > 0 && i <= rec.LastIndex && i < rec.FirstIndex+100; i++ {
				var e raft.Log
				require.NoError(t, l.GetLog(i, &e))
				require.Equal(t, i, e.Index)
			}
			require.NoError(t, l.Close())
		}
	})
}

// resealAll makes the checksums of a segment's header and leading frames right, so that what is inside is looked at.
func resealAll(file []byte) {
	if len(file) < segmentHeaderSize {
		return
	}
	var h segmentHeader
	_ = h.parse(file, 1)
	if h.salt == 0 {
		return
	}
	for off := int64(segmentHeaderSize); off+frameHeaderSize <= int64(len(file)); {
		var fh frameHeader
		if !fh.parse(file[off:]) || off+fh.size() > int64(len(file)) {
			return
		}
		seal(file[off:off+fh.size()], 1, off)
		off += fh.size()
	}
}
