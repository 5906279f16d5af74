package switchyard

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// ScalingMode says whether a queue's number of partitions follows its load.
type ScalingMode int

// The modes of scaling.
const (
	// ScalingOff: the queue has QueueConfig.Partitions; the default.
	ScalingOff ScalingMode = iota
	// ScalingOn: the number follows the load.
	ScalingOn
	// ScalingShadow: as ScalingOff; what ScalingOn would do is told.
	ScalingShadow
)

// Scaling says how a queue's number of partitions follows its load. Fields left at
// zero take the server's default.
type Scaling struct {
	Mode ScalingMode
	// MinPartitions and MaxPartitions are bounds; 1 and 64 by default.
	MinPartitions, MaxPartitions int
	// FixedPartitions is the number, whatever the load is; 0: not fixed.
	FixedPartitions int
	// Up rules give at least so many partitions that none takes more than their rate,
	// Down rules at most so many that none takes less. Defaults: up 4000/s over 10 s and
	// 2000/s over 1 min, down 1000/s over 5 min.
	Up, Down []ScalingRule
	// BacklogBase and BacklogReset: one more partition for each whose backlog rose
	// above the base and has not fallen below the reset since. Defaults: none, and half
	// of the base.
	BacklogBase, BacklogReset int64
	// BacklogCap is the backlog at which tasks are added to other partitions instead.
	// With it, polls prefer partitions with more backlog. Default: none.
	BacklogCap int64
}

// ScalingRule is a rate of added tasks per second for one partition, over a window of
// 1 s to 1 h.
type ScalingRule struct {
	Window time.Duration
	Rate   float64
}

// ScalingStatus says what managed scaling does.
type ScalingStatus struct {
	// Target is how many partitions there are to be, Largest the most that there ever
	// were to be; 0 when they are not managed.
	Target, Largest int
	// ShadowTarget is the target that there would be in mode ScalingOn.
	ShadowTarget int
	// AddRate is how many tasks are added per second over the shortest window.
	AddRate float64
}

var scalingModes = map[ScalingMode]v1.QueueScaling_Mode{
	ScalingOff: v1.QueueScaling_MODE_OFF, ScalingOn: v1.QueueScaling_MODE_ON, ScalingShadow: v1.QueueScaling_MODE_SHADOW,
}

func (s *Scaling) proto() *v1.QueueScaling {
	if s == nil {
		return nil
	}
	mode, ok := scalingModes[s.Mode]
	if !ok {
		mode = -1 // the server refuses it
	}
	rules := func(from []ScalingRule) (out []*v1.QueueScaling_Rule) {
		for _, r := range from {
			out = append(out, &v1.QueueScaling_Rule{Window: durationpb.New(r.Window), Rate: r.Rate})
		}
		return out
	}
	number := func(n int) int32 { return int32(min(max(n, -1), 1<<30)) }
	return &v1.QueueScaling{
		Mode: mode, MinPartitions: number(s.MinPartitions), MaxPartitions: number(s.MaxPartitions), FixedPartitions: number(s.FixedPartitions),
		Up: rules(s.Up), Down: rules(s.Down), BacklogBase: s.BacklogBase, BacklogReset: s.BacklogReset, BacklogCap: s.BacklogCap,
	}
}

func scalingOf(s *v1.QueueScaling) *Scaling {
	if s == nil {
		return nil
	}
	rules := func(from []*v1.QueueScaling_Rule) (out []ScalingRule) {
		for _, r := range from {
			out = append(out, ScalingRule{r.GetWindow().AsDuration(), r.GetRate()})
		}
		return out
	}
	out := &Scaling{
		MinPartitions: int(s.GetMinPartitions()), MaxPartitions: int(s.GetMaxPartitions()), FixedPartitions: int(s.GetFixedPartitions()),
		Up: rules(s.GetUp()), Down: rules(s.GetDown()), BacklogBase: s.GetBacklogBase(), BacklogReset: s.GetBacklogReset(), BacklogCap: s.GetBacklogCap(),
	}
	for mode, wire := range scalingModes {
		if wire == s.GetMode() {
			out.Mode = mode
		}
	}
	return out
}

// EndPolls ends all waiting polls of a worker, by its identity, in all partitions of a
// queue and in its sticky queues, and returns how many. They return empty, or with
// what they have been given already; new ones are refused for 30 s. A Worker of this
// package that stops does not need it: it ends its own polls.
func (q Queues) EndPolls(ctx context.Context, name, identity string) (int, error) {
	var ended int
	err := q.c.do(ctx, "end polls of queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.EndWorkerPolls(ctx, &v1.EndWorkerPollsRequest{Namespace: q.c.opts.namespace, Queue: name, Identity: identity})
		ended = int(response.GetEnded())
		return err
	})
	return ended, err
}
