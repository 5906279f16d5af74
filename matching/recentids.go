package matching

// recentIDs remembers the latest task ids exactly, so that most adds need no look
// into the store. It promises: an id above floor that was ever added is in one of
// the two generations, and so is every id added within about the last limit/2
// adds. Ids are time-ordered, so a new one is nearly always above the floor.
type recentIDs struct {
	floor     taskID
	half      int
	cur, prev map[taskID]int64 // when it was added
	prevMax   taskID
	curMax    taskID
	// generation counts turns: a look into the store that began in this or the
	// last generation can't have missed an add that the maps have dropped.
	generation uint64
}

func (r *recentIDs) init(limit int, floor taskID) {
	r.half = max(limit/2, 1)
	r.floor = floor
	r.cur = map[taskID]int64{}
}

func (r *recentIDs) get(id taskID) (addedAt int64, ok bool) {
	if earlier(r.curMax, id) && earlier(r.prevMax, id) {
		return 0, false // later than all of them, as most new ones are
	}
	if addedAt, ok = r.cur[id]; ok {
		return addedAt, true
	}
	addedAt, ok = r.prev[id]
	return addedAt, ok
}

// mayBeStored says whether an id that get doesn't know may be in the store.
func (r *recentIDs) mayBeStored(id taskID) bool { return !earlier(r.floor, id) }

func (r *recentIDs) add(id taskID, now int64) {
	if len(r.cur) >= r.half {
		if earlier(r.floor, r.prevMax) {
			r.floor = r.prevMax
		}
		r.prev, r.prevMax = r.cur, r.curMax
		r.cur, r.curMax = make(map[taskID]int64, r.half/4), taskID{}
		r.generation++
	}
	r.cur[id] = now
	if earlier(r.curMax, id) {
		r.curMax = id
	}
}
