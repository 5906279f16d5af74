package matching

// describeCall tells a partition's condition as its owner sees it.
type describeCall struct {
	call
	counts   stateCounts
	rangeID  uint64
	loaded   int
	waiting  int
	oldest   int64 // when the next task became ready; 0 for none
	now      int64
	rates    [numStats]float64
	syncRate float64
	limited  bool
	levels   [maxLevel + 1]levelInfo
	pollers  []pollerInfo
}

type pollerInfo struct {
	identity string
	last     int64
	waiting  int
}

// levelInfo is one priority's part of a description.
type levelInfo struct {
	ready  int64
	oldest int64
	rates  [numLevelStats]float64
}

// stateCounts are numbers of tasks by what they wait for.
type stateCounts struct{ ready, delayed, leased, dead int64 }

// queueCounts tells due tasks in memory from those that wait for their time.
func (c *core) queueCounts() stateCounts {
	due := int64(c.ready.dueCount() + len(c.fetching))
	return stateCounts{ready: c.m.counts.fresh + due, delayed: c.m.counts.scheduled - due, leased: c.m.counts.leased, dead: c.m.counts.dead}
}

// describe answers as soon as it is known which scheduled tasks are due: right after
// loading, they have to be read first.
func (c *core) describe(d *describeCall) {
	if !c.schedule.whole && c.schedule.horizonAt == 0 {
		c.describes = append(c.describes, d)
		return
	}
	d.counts = c.queueCounts()
	for _, u := range c.schedule.heap {
		if !u.gone && u.at <= c.wall {
			d.counts.ready++
			d.counts.delayed--
		}
	}
	d.rangeID = c.m.rangeID
	d.loaded = c.ready.len()
	d.waiting = c.pollers.n
	d.now = c.wall
	for i := range d.levels {
		l, lane := &d.levels[i], &c.ready.lanes[i]
		l.ready = c.m.levels[i].fresh + int64(lane.due)
		l.oldest = lane.waitingSince()
		l.rates = c.stats.levelRates(c.now, uint8(i))
		if l.oldest != 0 && (d.oldest == 0 || l.oldest < d.oldest) {
			d.oldest = l.oldest
		}
	}
	_, d.limited = c.ready.limitedUntil()
	for i := range d.rates {
		d.rates[i] = c.stats.rate(c.now, stat(i))
	}
	d.syncRate = c.stats.share(c.now, statSyncMatched, statDispatched)
	for identity, r := range c.history.by {
		if r.waiting > 0 || c.now-r.last <= pollerTTL {
			d.pollers = append(d.pollers, pollerInfo{identity, r.last, r.waiting})
		}
	}
	d.reply(nil)
}
