package raftengine

// Size returns about how many bytes the rows from the key from to before the key to take on disk. What
// has been written since the last flush of the rows is not part of it.
func (e *Engine) Size(from, to []byte) (int64, error) {
	if err := e.failure(); err != nil {
		return 0, err
	}
	rows := e.enter()
	if rows == nil {
		return 0, errClosed()
	}
	defer rows.views.leave()
	n, err := rows.db.EstimateDiskUsage(from, to)
	return int64(n), err
}
