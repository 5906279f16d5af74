package scaling

import (
	"fmt"
	"time"
)

// MaxPartitions is the most partitions that a queue can have.
const MaxPartitions = 4096

// Mode says whether the counts are managed.
type Mode uint8

const (
	// Off leaves the counts to the queue's configuration. Counts that were managed
	// before go back to it, as fast as partitions get empty.
	Off Mode = iota
	// On manages the counts.
	On
	// Shadow is Off, but tells what On would do.
	Shadow
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Off:
		return "off"
	case On:
		return "on"
	case Shadow:
		return "shadow"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Rule says how many tasks per second one partition should take, looked at over a
// window of time.
type Rule struct {
	Window time.Duration // 1 s to 1 h
	Rate   float64       // tasks per second of one partition, above 0
}

// Settings of one queue. The zero value of a field takes its default; Check says
// whether they can be.
type Settings struct {
	Mode Mode
	// Configured is how many partitions take new tasks, and ConfiguredRead how many
	// are polled, when the counts are not managed: where On begins and Off ends. 1 to
	// MaxPartitions; defaults 1 and Configured.
	Configured, ConfiguredRead int32
	// Min and Max bound the target. Defaults 1 and 64.
	Min, Max int32
	// Fixed, if not 0, is the target, whatever rates and backlogs are; Min and Max
	// do not bind it.
	Fixed int32
	// Up: the target is at least what keeps each partition at or below the rate.
	// Down: the target is at most what keeps each partition at or above the rate.
	// Between the two it stays. Default: Up 4000/s over 10 s and 2000/s over 1 min,
	// Down 1000/s over 5 min.
	Up, Down []Rule
	// BacklogBase, if not 0, adds one to the target for each partition whose backlog
	// rose above it and has not fallen below BacklogReset since. Default of
	// BacklogReset: half of the base.
	BacklogBase, BacklogReset int64
	// BacklogCap, if not 0, is the backlog at which clients add to other partitions.
	BacklogCap int64
	// ShrinkRatio and ShrinkDelta bound how many partitions are emptied at a time:
	// that share of them and that many, and at least one. Defaults 0.1 and 8.
	ShrinkRatio float64
	ShrinkDelta int32
	// DrainBuffer is how long after a change a partition can count as empty, so that
	// adds that were under way arrive. Default 15 s.
	DrainBuffer time.Duration
	// Cooldown is the least time between two changes of the target. Default 3 s.
	Cooldown time.Duration
	// Interval is how often the partitions are asked and a decision is due without
	// any task, give or take 5 %. Default 23 s.
	Interval time.Duration
}

const maxRules = 16

// WithDefaults returns the settings with all defaults filled in.
func (s Settings) WithDefaults() Settings {
	def(&s.Configured, 1)
	def(&s.ConfiguredRead, s.Configured)
	s.ConfiguredRead = max(s.ConfiguredRead, s.Configured)
	def(&s.Min, 1)
	def(&s.Max, max(64, s.Min))
	if len(s.Up) == 0 && len(s.Down) == 0 {
		s.Up = []Rule{{10 * time.Second, 4000}, {time.Minute, 2000}}
		s.Down = []Rule{{5 * time.Minute, 1000}}
	}
	def(&s.BacklogReset, (s.BacklogBase+1)/2)
	def(&s.ShrinkRatio, 0.1)
	def(&s.ShrinkDelta, 8)
	def(&s.DrainBuffer, 15*time.Second)
	def(&s.Cooldown, 3*time.Second)
	def(&s.Interval, 23*time.Second)
	return s
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Check says what is wrong with the settings; nil when nothing is.
func (s Settings) Check() error {
	s = s.WithDefaults()
	counts := []struct {
		name  string
		value int32
	}{{"partitions", s.Configured}, {"read partitions", s.ConfiguredRead}, {"min", s.Min}, {"max", s.Max}}
	for _, c := range counts {
		if c.value < 1 || c.value > MaxPartitions {
			return fmt.Errorf("scaling: %s must be between 1 and %d, not %d", c.name, MaxPartitions, c.value)
		}
	}
	switch {
	case s.Mode > Shadow:
		return fmt.Errorf("scaling: unknown mode %d", s.Mode)
	case s.Min > s.Max:
		return fmt.Errorf("scaling: min is %d, which is above max, %d", s.Min, s.Max)
	case s.Fixed < 0 || s.Fixed > MaxPartitions:
		return fmt.Errorf("scaling: fixed must be between 1 and %d, or 0 for none, not %d", MaxPartitions, s.Fixed)
	case s.BacklogBase < 0 || s.BacklogReset < 0 || s.BacklogReset > max(s.BacklogBase, 0):
		return fmt.Errorf("scaling: the backlog's base and reset must be 0 or more and reset at most the base, not %d and %d", s.BacklogBase, s.BacklogReset)
	case s.BacklogCap < 0:
		return fmt.Errorf("scaling: the backlog's cap must be 0 or more, not %d", s.BacklogCap)
	case !(s.ShrinkRatio > 0 && s.ShrinkRatio <= 1):
		return fmt.Errorf("scaling: the shrink ratio must be above 0 and at most 1, not %v", s.ShrinkRatio)
	case s.ShrinkDelta < 1 || s.ShrinkDelta > MaxPartitions:
		return fmt.Errorf("scaling: the shrink delta must be between 1 and %d, not %d", MaxPartitions, s.ShrinkDelta)
	case s.DrainBuffer < 0 || s.DrainBuffer > time.Hour:
		return fmt.Errorf("scaling: the drain buffer must be between 0 and 1h, not %v", s.DrainBuffer)
	case s.Cooldown < 0 || s.Cooldown > time.Hour:
		return fmt.Errorf("scaling: the cooldown must be between 0 and 1h, not %v", s.Cooldown)
	case s.Interval < time.Millisecond || s.Interval > time.Hour:
		return fmt.Errorf("scaling: the interval must be between 1ms and 1h, not %v", s.Interval)
	case len(s.Up)+len(s.Down) > maxRules:
		return fmt.Errorf("scaling: there are %d rules, at most %d can be", len(s.Up)+len(s.Down), maxRules)
	}
	for _, r := range append(append([]Rule{}, s.Up...), s.Down...) {
		if r.Window < time.Second || r.Window > time.Hour {
			return fmt.Errorf("scaling: a rule's window must be between 1s and 1h, not %v", r.Window)
		}
		if !(r.Rate > 0 && r.Rate <= 1e12) {
			return fmt.Errorf("scaling: a rule's rate must be above 0 and at most 1e12, not %v", r.Rate)
		}
	}
	// A lowest Up below a highest Down would go up and down in turn.
	for _, u := range s.Up {
		for _, d := range s.Down {
			if d.Rate > u.Rate {
				return fmt.Errorf("scaling: down at %v tasks/s is above up at %v tasks/s: the count would swing", d.Rate, u.Rate)
			}
		}
	}
	return nil
}

func (s *Settings) clamp(n int32) int32 { return min(max(n, s.Min), s.Max) }
