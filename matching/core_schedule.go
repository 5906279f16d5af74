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
	for c.ready.len()+len(c.fetching) < c.limits.WindowTasks && c.ready.bytes < c.limits.WindowBytes && c.fetches < 4 {
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
	c.schedule.got(r, c.removed)
	waiting := c.describes
	c.describes = nil
	for _, d := range waiting {
		c.describe(d)
	}
}
