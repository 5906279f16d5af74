package matching

import (
	"context"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A task that is added again is recognised by the partition that has its id. When the
// number of partitions has changed meanwhile, the repeat goes to another partition; so for
// as long as ids are remembered, a partition looks for an id also where it would have gone
// before the change. Ids that carry their time (UUID version 7) and were made after the
// change need no look, so it costs nothing a minute later.
//
// With a backlog cap, tasks go where there is room, which changes all the time. There, all
// partitions are looked at for an id that is not quite new.

const (
	// clockSkew is by how much the clocks of producers may be wrong: an id made so long
	// after a change of partitions cannot be one from before.
	clockSkew = time.Minute
	// newID is the age up to which an id is taken for one that was not added before, in
	// queues with a backlog cap.
	newID = 5 * time.Second
	// maxPast is the most changes that are remembered.
	maxPast = 16
)

// setWritePartitions changes how many partitions take new tasks and remembers how many
// there were.
func setWritePartitions(q *v1.StoredQueue, n int32, now int64) {
	var keep []*v1.PastPartitions
	for _, p := range q.GetPastPartitions() {
		if p.GetUntil().AsTime().UnixNano()+dedupWindow > now {
			keep = append(keep, p)
		}
	}
	if old := q.GetWritePartitions(); old > 0 && old != n {
		keep = append(keep, &v1.PastPartitions{WritePartitions: old, Until: timestamp(now)})
	}
	q.PastPartitions = keep[max(len(keep)-maxPast, 0):]
	q.WritePartitions = n
}

// pastCounts are numbers of partitions that were, for the owner of one that is.
type pastCounts []struct {
	write int32
	until int64
}

func pastOf(q *v1.StoredQueue) *pastCounts {
	if len(q.GetPastPartitions()) == 0 {
		return nil
	}
	past := make(pastCounts, 0, len(q.GetPastPartitions()))
	for _, p := range q.GetPastPartitions() {
		if n := p.GetWritePartitions(); n > 0 && n <= MaxPartitions {
			past = append(past, struct {
				write int32
				until int64
			}{n, p.GetUntil().AsTime().UnixNano()})
		}
	}
	return &past
}

// idTime is when an id of version 7 was made, in unix nanoseconds; false for other ids.
func idTime(id taskID) (int64, bool) {
	if id[6]>>4 != 7 {
		return 0, false
	}
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms * int64(time.Millisecond), true
}

// elsewhere returns the partitions, other than the owner's, that may have taken an id
// before.
func (o *owner) elsewhere(id taskID, now int64, into []int32) []int32 {
	into = into[:0]
	at, timed := idTime(id)
	if c := o.partitionCounts(); c.GetBacklogCap() > 0 && c.GetRead() > 1 && (!timed || at < now-int64(newID)) {
		for n := range c.GetRead() {
			if n != o.id.Number {
				into = append(into, n)
			}
		}
		return into
	}
	past := o.past.Load()
	if past == nil {
		return into
	}
	for _, p := range *past {
		if now-p.until >= dedupWindow || timed && at > p.until+int64(clockSkew) {
			continue
		}
		if n := WritePartition(id, p.write); n != o.id.Number {
			into = append(into, n)
		}
	}
	return into
}

// addedElsewhere marks the items of an add that another partition knows, nil for none.
func (e *Engine) addedElsewhere(ctx context.Context, o *owner, h *v1.PartitionHeader, items []addItem) (known []bool, err error) {
	if h.GetCounts().GetVersion() > o.partitionCounts().GetVersion() && o.id.Sticky == "" {
		e.lookUpCounts(ctx, o, h.GetCounts()) // the client has heard of a change first
	}
	if o.past.Load() == nil && o.partitionCounts().GetBacklogCap() <= 0 {
		return nil, nil
	}
	now := e.now()
	by := map[int32][]int{}
	var room [16]int32
	for i := range items {
		for _, n := range o.elsewhere(items[i].id, now, room[:0]) {
			by[n] = append(by[n], i)
		}
	}
	for n, places := range by {
		id := o.id.sibling(n)
		err := e.router.View(ctx, e.bucketOf(id), router.CallMR, func(v *storage.View) error {
			row, ok, err := v.Get(spaceMeta, []byte(id.Key()))
			if err != nil || !ok {
				return err
			}
			var m meta
			if err := m.decode(row); err != nil {
				return err
			}
			for _, i := range places {
				ok, err := storedID(v, m.uid, items[i].id, now)
				if err != nil {
					return err
				}
				if ok {
					if known == nil {
						known = make([]bool, len(items))
					}
					known[i] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, e.storeError(err)
		}
	}
	return known, nil
}

// addRest adds the tasks that are not known already.
func (e *Engine) addRest(ctx context.Context, preq *v1.PartitionAddTasksRequest, known []bool) (*v1.PartitionAddTasksResponse, error) {
	req := preq.GetRequest()
	rest := &v1.AddTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue()}
	results := make([]*v1.AddTasksResponse_Result, len(known))
	var places []int
	for i, t := range req.GetTasks() {
		if known[i] {
			results[i] = &v1.AddTasksResponse_Result{Id: t.GetId(), AlreadyAdded: true}
			continue
		}
		rest.Tasks, places = append(rest.Tasks, t), append(places, i)
	}
	resp := &v1.PartitionAddTasksResponse{}
	if len(places) > 0 {
		var err error
		if resp, err = e.PartitionAddTasks(ctx, &v1.PartitionAddTasksRequest{Header: preq.GetHeader(), Request: rest}); err != nil {
			return nil, err
		}
	}
	for k, i := range places {
		results[i] = resp.GetResponse().GetResults()[k]
	}
	resp.Response = &v1.AddTasksResponse{Results: results}
	return resp, nil
}

// storedID says whether a partition has or had a task so that another with its id is the
// same.
func storedID(v view, uid uint64, id taskID, now int64) (bool, error) {
	value, ok, err := v.Get(spaceIDs, appendIDKey(nil, uid, id))
	if err != nil || !ok {
		return false, err
	}
	var row idRow
	if err := row.decode(value); err != nil {
		return false, err
	}
	return idKnown(v, uid, row, now)
}
