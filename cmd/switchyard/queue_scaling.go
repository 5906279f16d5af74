package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// scalingFlags say how a queue's number of partitions follows the load.
type scalingFlags struct {
	mode                string
	least, most, fixed  int32
	up, down            []string
	base, reset, capped int64
}

// scalingFlagNames are those that make up one setting: any of them replaces it all.
var scalingFlagNames = []string{"scaling", "min-partitions", "max-partitions", "fixed-partitions", "scale-up", "scale-down", "backlog-base", "backlog-reset", "backlog-cap"}

func (f *scalingFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.mode, "scaling", "", "let the number of partitions follow the load: `MODE` on, off or shadow (only show it)")
	fs.Int32Var(&f.least, "min-partitions", 0, "scaling: at least so many partitions (default 1)")
	fs.Int32Var(&f.most, "max-partitions", 0, "scaling: at most so many (default 64)")
	fs.Int32Var(&f.fixed, "fixed-partitions", 0, "scaling: so many, whatever the load is")
	fs.StringSliceVar(&f.up, "scale-up", nil, "scaling: more partitions above this rate of one, `WINDOW=RATE` (default 10s=4000,1m=2000)")
	fs.StringSliceVar(&f.down, "scale-down", nil, "scaling: fewer below this rate of one, `WINDOW=RATE` (default 5m=1000)")
	fs.Int64Var(&f.base, "backlog-base", 0, "scaling: one more partition for each whose backlog rises above this")
	fs.Int64Var(&f.reset, "backlog-reset", 0, "scaling: until it falls below this (default half of --backlog-base)")
	fs.Int64Var(&f.capped, "backlog-cap", 0, "scaling: add to other partitions at this backlog, and poll by backlog")
}

// config fills in what was given and returns the paths of that.
func (f *scalingFlags) config(c *cobra.Command, cfg *v1.QueueConfig) (paths []string, err error) {
	given := false
	for _, name := range scalingFlagNames {
		given = given || c.Flags().Changed(name)
	}
	if !given {
		return nil, nil
	}
	s := &v1.QueueScaling{MinPartitions: f.least, MaxPartitions: f.most, FixedPartitions: f.fixed, BacklogBase: f.base, BacklogReset: f.reset, BacklogCap: f.capped}
	switch f.mode {
	case "on":
		s.Mode = v1.QueueScaling_MODE_ON
	case "off":
		s.Mode = v1.QueueScaling_MODE_OFF
	case "shadow":
		s.Mode = v1.QueueScaling_MODE_SHADOW
	case "":
		return nil, usageOf(c, fmt.Errorf("say with --scaling whether scaling is on, off or shadow: its flags are one setting together"))
	default:
		return nil, usageOf(c, fmt.Errorf("--scaling must be on, off or shadow, not %q", f.mode))
	}
	if s.Up, err = scalingRules("scale-up", f.up); err == nil {
		s.Down, err = scalingRules("scale-down", f.down)
	}
	if err != nil {
		return nil, usageOf(c, err)
	}
	cfg.Scaling = s
	return []string{"scaling"}, nil
}

func scalingRules(flag string, texts []string) ([]*v1.QueueScaling_Rule, error) {
	var rules []*v1.QueueScaling_Rule
	for _, text := range texts {
		window, rate, ok := strings.Cut(text, "=")
		d, err1 := time.ParseDuration(window)
		r, err2 := strconv.ParseFloat(rate, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("--%s takes WINDOW=RATE, like 1m=2000, not %q", flag, text)
		}
		rules = append(rules, &v1.QueueScaling_Rule{Window: durationpb.New(d), Rate: r})
	}
	return rules, nil
}

// scalingField writes what scaling does.
func scalingField(t *table, q *v1.Queue, s *v1.QueueScalingStatus) {
	mode := scalingMode(q.GetConfig().GetScaling().GetMode())
	switch {
	case mode == "" && s.GetTarget() == 0:
	case s.GetTarget() > 0:
		t.field("Scaling", fmt.Sprintf("%s, target %s (most ever %s), %s added", mode, count(s.GetTarget()), count(s.GetLargest()), perSecond(s.GetAddRate())))
	case s.GetShadowTarget() > 0:
		t.field("Scaling", fmt.Sprintf("%s, the target would be %s, %s added", mode, count(s.GetShadowTarget()), perSecond(s.GetAddRate())))
	default:
		t.field("Scaling", mode)
	}
}

func scalingMode(m v1.QueueScaling_Mode) string {
	switch m {
	case v1.QueueScaling_MODE_ON:
		return "on"
	case v1.QueueScaling_MODE_SHADOW:
		return "shadow"
	case v1.QueueScaling_MODE_OFF:
		return "off"
	}
	return ""
}

type ruleView struct {
	Window float64 `json:"window_seconds"`
	Rate   float64 `json:"rate"`
}

type scalingView struct {
	Mode   string     `json:"mode"`
	Min    int32      `json:"min_partitions,omitempty"`
	Max    int32      `json:"max_partitions,omitempty"`
	Fixed  int32      `json:"fixed_partitions,omitempty"`
	Up     []ruleView `json:"up,omitempty"`
	Down   []ruleView `json:"down,omitempty"`
	Base   int64      `json:"backlog_base,omitempty"`
	Reset  int64      `json:"backlog_reset,omitempty"`
	Capped int64      `json:"backlog_cap,omitempty"`
}

type scalingStatusView struct {
	Target  int32   `json:"target,omitempty"`
	Largest int32   `json:"largest,omitempty"`
	Shadow  int32   `json:"shadow_target,omitempty"`
	AddRate float64 `json:"add_rate"`
}

func viewScaling(s *v1.QueueScaling) *scalingView {
	if s == nil {
		return nil
	}
	rules := func(from []*v1.QueueScaling_Rule) (out []ruleView) {
		for _, r := range from {
			out = append(out, ruleView{r.GetWindow().AsDuration().Seconds(), r.GetRate()})
		}
		return out
	}
	mode := scalingMode(s.GetMode())
	if mode == "" {
		mode = "off"
	}
	return &scalingView{mode, s.GetMinPartitions(), s.GetMaxPartitions(), s.GetFixedPartitions(), rules(s.GetUp()), rules(s.GetDown()),
		s.GetBacklogBase(), s.GetBacklogReset(), s.GetBacklogCap()}
}

func viewScalingStatus(s *v1.QueueScalingStatus) *scalingStatusView {
	if s == nil {
		return nil
	}
	return &scalingStatusView{s.GetTarget(), s.GetLargest(), s.GetShadowTarget(), s.GetAddRate()}
}
