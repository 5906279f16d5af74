package wal

import "log/slog"

// Status is the state of a log.
type Status struct {
	FirstIndex, LastIndex uint64 // 0 for an empty log
	Segments              int
	Bytes                 int64 // of the segments
	SpareBytes            int64 // of files prepared for the next segments
	UnsyncedBytes         int64
	// LowSpace is why the next segment cannot be prepared, nil if it can.
	LowSpace error
	// Failed is what made the log fail for good, nil if it has not.
	Failed error
}

// Status returns the state of the log; it can be asked of a failed or closed one too.
func (l *Log) Status() Status {
	st := Status{UnsyncedBytes: l.unsync.Load()}
	if f := l.failed.Load(); f != nil {
		st.Failed = f
	}
	st.SpareBytes, st.LowSpace = l.spares.status()
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.bounds.empty() {
		st.FirstIndex, st.LastIndex = l.bounds.first, l.bounds.last
	}
	st.Segments = len(l.segs)
	for _, s := range l.segs {
		st.Bytes += s.size
	}
	return st
}

func (l *Log) lowSpace(err error) {
	l.opt.Logger.Warn("the next segment of the write-ahead log cannot be prepared", slog.Any("error", err))
	if l.opt.OnLowSpace != nil {
		l.opt.OnLowSpace(err)
	}
}
