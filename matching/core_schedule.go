package matching

// fetchBodies asks for the bodies of tasks that came due.
type fetchBodies struct{ tasks []*upcomingTask }

// fetchedBodies answers fetchBodies; bodies[i] is nil if there is none.
type fetchedBodies struct {
	tasks  []*upcomingTask
	bodies [][]byte
}

const fetchTasks = 512

// promote makes due tasks ready, as far as the window has room. Their bodies have
// to be read first.
func (c *core) promote() {
	var f fetchBodies
	for c.roomForDue() && c.fetches < 4 {
		u := c.schedule.popDue(c.wall)
		if u == nil {
			break
		}
		c.fetching[u.seq] = u
		f.tasks = append(f.tasks, u)
		if len(f.tasks) == fetchTasks {
			c.fetch(f)
			f = fetchBodies{}
		}
	}
	if len(f.tasks) > 0 {
		c.fetch(f)
	}
}

// roomForDue says whether more tasks that came due may be taken into memory. They have
// half as much room as fresh ones, besides theirs.
func (c *core) roomForDue() bool {
	return c.ready.dueCount()+len(c.fetching) < (c.limits.WindowTasks+1)/2 && c.ready.dueBytes < c.limits.WindowBytes/2
}

func (c *core) fetch(f fetchBodies) {
	c.fetches++
	c.reads = append(c.reads, f)
}

func (c *core) gotBodies(r fetchedBodies) {
	c.fetches--
	for i, u := range r.tasks {
		if c.fetching[u.seq] != u {
			continue // removed meanwhile
		}
		delete(c.fetching, u.seq)
		t := &task{seq: u.seq, loc: u.loc, readyAt: u.at, dueAt: u.at, attempt: u.attempt, lastError: u.lastError, body: r.bodies[i]}
		if t.body == nil {
			panic("matching: scheduled task without a body in " + c.id.String())
		}
		c.ready.pushDue(t)
	}
}

func (c *core) gotSchedule(r scheduleRows) {
	c.schedule.got(r, c.batches, func(k scheduleKey) bool {
		if _, gone := c.unscheduled[k]; gone {
			return true
		}
		if t := c.ready.due[k.seq]; t != nil && t.dueAt == k.at {
			return true
		}
		u := c.fetching[k.seq]
		return u != nil && u.at == k.at
	})
	c.forgotten()
	waiting := c.describes
	c.describes = nil
	for _, d := range waiting {
		c.describe(d)
	}
}
