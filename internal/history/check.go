package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Kind names the rule that was broken.
type Kind string

const (
	// Lost: acknowledged, then neither completed nor in the queue.
	Lost Kind = "lost"
	// UnderLease: delivered while another delivery's lease was alive.
	UnderLease Kind = "delivered under a live lease"
	// AfterComplete: delivered, or seen in the queue, after a completion was
	// acknowledged.
	AfterComplete Kind = "back after completion"
	// AfterCancel: the same after a cancellation.
	AfterCancel Kind = "back after cancellation"
	// AfterDead: delivered after its last failure.
	AfterDead Kind = "delivered though dead"
	// CompletedTwice: two leases of one task were both completed.
	CompletedTwice Kind = "completed twice"
	// Invented: nobody added it, or nobody did what the server says was done.
	Invented Kind = "invented"
	// Changed: delivered with another content than it was added with.
	Changed Kind = "content changed"
	// BadLease: answers about a lease contradict each other.
	BadLease Kind = "contradicting answers about a lease"
	// Malformed: the record itself makes no sense; the recorder is at fault.
	Malformed Kind = "malformed record"
)

// Violation is one broken rule.
type Violation struct {
	Kind Kind
	Task string
	// What tells what happened, with times relative to the history's start.
	What string
}

func (v Violation) String() string { return fmt.Sprintf("task %s: %s: %s", v.Task, v.Kind, v.What) }

// Options set how Check judges.
type Options struct {
	// ClockError is how far the server's clock, by which deadlines are told, may
	// be from the records' clock. Deadlines are believed only that exactly.
	ClockError time.Duration
	// Repeats: nodes repeat requests by themselves when an answer is lost. Then "completed
	// already" may be about the request itself, so it may have had an effect.
	Repeats bool
}

// Report is the verdict with numbers that tell whether the history was worth
// checking.
type Report struct {
	Violations []Violation

	// Tasks by what is known of them.
	Tasks, Acknowledged, Completed, Left int
	// Deliveries, and those that were not the first of their task.
	Deliveries, Redeliveries int
	// Requests without an answer.
	Unknown int
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d tasks: %d acknowledged, %d completed, %d left; %d deliveries (%d again); %d requests unanswered; %d violations",
		r.Tasks, r.Acknowledged, r.Completed, r.Left, r.Deliveries, r.Redeliveries, r.Unknown, len(r.Violations))
	for i, v := range r.Violations {
		if i == 20 {
			fmt.Fprintf(&b, "\n… and %d more", len(r.Violations)-i)
			break
		}
		fmt.Fprintf(&b, "\n%s", v)
	}
	return b.String()
}

// lease is one delivery with all that was said under its token.
type lease struct {
	*Record
	extends []*Record
	ends    []*Record // Complete, Fail, Release; refused ones left out
}

// task is all that was recorded about one task.
type task struct {
	id      string
	adds    []*Record
	cancels []*Record
	left    []*Record
	already []*Record // Complete, Already
	leases  []*lease
	byToken map[string]*lease
	orphans []*Record // under a token that was not delivered
}

type checker struct {
	slack   int64
	repeats bool
	origin  int64
	report  Report
}

// Check judges a complete history: after the last record nothing may be under
// way, and every task that is still in the queue must have a Left record.
// Records may come in any order. The records are not changed.
func Check(records []Record, options Options) Report {
	c := checker{slack: int64(options.ClockError), repeats: options.Repeats, origin: math.MaxInt64}
	tasks := c.group(records)
	for _, t := range tasks {
		c.checkTask(t)
	}
	slices.SortStableFunc(c.report.Violations, func(a, b Violation) int { return strings.Compare(a.Task, b.Task) })
	return c.report
}

// group sorts the records by task and lease, in the order of first mention.
func (c *checker) group(records []Record) []*task {
	byID := map[string]*task{}
	var tasks []*task
	var rest []*Record
	tokenOf := map[string]string{} // token → task
	for i := range records {
		r := &records[i]
		if err := r.validate(); err != nil {
			c.violate(Malformed, r.Task, "record %d: %v", i, err)
			continue
		}
		c.origin = min(c.origin, r.Start)
		if r.Outcome == Unknown {
			c.report.Unknown++
		}
		t := byID[r.Task]
		if t == nil {
			t = &task{id: r.Task, byToken: map[string]*lease{}}
			byID[r.Task] = t
			tasks = append(tasks, t)
		}
		switch r.Op {
		case Add:
			t.adds = append(t.adds, r)
		case Cancel:
			t.cancels = append(t.cancels, r)
		case Left:
			t.left = append(t.left, r)
		case Deliver:
			if owner, taken := tokenOf[string(r.Token)]; taken {
				c.violate(BadLease, r.Task, "token %x was already given out for task %s", r.Token, owner)
				continue
			}
			tokenOf[string(r.Token)] = r.Task
			l := &lease{Record: r}
			t.leases = append(t.leases, l)
			t.byToken[string(r.Token)] = l
		default:
			rest = append(rest, r)
		}
	}
	for _, r := range rest {
		t := byID[r.Task]
		l := t.byToken[string(r.Token)]
		switch {
		case r.Outcome == Refused:
		case r.Outcome == Already && c.repeats && l != nil:
			own := *r
			own.Outcome = Unknown
			l.ends = append(l.ends, &own)
		case r.Outcome == Already:
			t.already = append(t.already, r)
		case l == nil:
			t.orphans = append(t.orphans, r)
		case r.Op == Extend:
			l.extends = append(l.extends, r)
		default:
			l.ends = append(l.ends, r)
		}
	}
	c.report.Tasks = len(tasks)
	return tasks
}

func (c *checker) checkTask(t *task) {
	c.checkOrigin(t)
	c.checkFate(t)
	for i, l := range t.leases {
		c.checkLease(t, l)
		for _, m := range t.leases[:i] {
			c.checkPair(t, m, l)
		}
	}
	for _, r := range t.orphans {
		c.violate(BadLease, t.id, "%s was sent under token %x, which was never delivered", c.tell(r), r.Token)
	}
	c.report.Deliveries += len(t.leases)
	c.report.Redeliveries += max(0, len(t.leases)-1)
}

// checkOrigin asks where a task came from.
func (c *checker) checkOrigin(t *task) {
	first, effective := int64(math.MaxInt64), 0
	for _, a := range t.adds {
		if a.Outcome == OK || a.Outcome == Unknown {
			effective++
			first = min(first, a.Start)
		}
	}
	for _, a := range t.adds {
		if a.Outcome == Already && first > a.End {
			c.violate(Invented, t.id, "%s was told that the task had been added, and nobody had", c.tell(a))
		}
	}
	for _, l := range t.leases {
		if effective == 0 || l.End < first {
			c.violate(Invented, t.id, "%s; nobody had added it", c.tell(l.Record))
			continue
		}
		if l.Sum == 0 {
			continue
		}
		if !slices.ContainsFunc(t.adds, func(a *Record) bool { return a.Sum == 0 || a.Sum == l.Sum }) {
			c.violate(Changed, t.id, "%s with checksum %08x; it was added with %08x", c.tell(l.Record), l.Sum, t.adds[0].Sum)
		}
	}
	if effective == 0 && len(t.leases) == 0 && len(t.left) > 0 {
		c.violate(Invented, t.id, "%s; nobody had added it", c.tell(t.left[0]))
	}
}

// checkFate asks where a task went.
func (c *checker) checkFate(t *task) {
	acknowledged := find(t.adds, func(r *Record) bool { return r.Outcome == OK || r.Outcome == Already })
	cancel := find(t.cancels, func(r *Record) bool { return r.Outcome == OK })
	cancelled := cancel != nil || find(t.cancels, func(r *Record) bool { return r.Outcome == Unknown }) != nil
	var complete *Record
	firstComplete := int64(math.MaxInt64) // that may have had an effect
	for _, l := range t.leases {
		if r := l.end(Complete, OK); r != nil && (complete == nil || r.End < complete.End) {
			complete = r
		}
		for _, r := range l.ends {
			if r.Op == Complete {
				firstComplete = min(firstComplete, r.Start)
			}
		}
	}
	if acknowledged != nil {
		c.report.Acknowledged++
	}
	if complete != nil {
		c.report.Completed++
	}
	if len(t.left) > 0 {
		c.report.Left++
	}
	if acknowledged != nil && firstComplete == math.MaxInt64 && !cancelled && len(t.left) == 0 {
		c.violate(Lost, t.id, "%s; delivered %d times, never completed, and not in the queue at the end", c.tell(acknowledged), len(t.leases))
	}
	for _, r := range t.already {
		if firstComplete > r.End {
			c.violate(Invented, t.id, "%s was told that the task had been completed, and nobody had", c.tell(r))
		}
	}
	for _, r := range t.left {
		if complete != nil && r.Start > complete.End {
			c.violate(AfterComplete, t.id, "%s, after %s", c.tell(r), c.tell(complete))
		}
		if cancel != nil && r.Start > cancel.End {
			c.violate(AfterCancel, t.id, "%s, after %s", c.tell(r), c.tell(cancel))
		}
	}
	if cancel != nil {
		for _, l := range t.leases {
			if l.Start > cancel.End {
				c.violate(AfterCancel, t.id, "%s, after %s", c.tell(l.Record), c.tell(cancel))
			}
		}
	}
}

// checkLease asks whether the answers under one token fit together.
func (c *checker) checkLease(t *task, l *lease) {
	var ended *Record
	for _, r := range l.ends {
		if r.Outcome != OK {
			continue
		}
		if ended != nil {
			c.violate(BadLease, t.id, "one lease ended twice: %s, and %s", c.tell(ended), c.tell(r))
		}
		ended = r
	}
	if ended == nil {
		return
	}
	for _, x := range l.extends {
		if x.Outcome == OK && x.Start > ended.End {
			c.violate(BadLease, t.id, "%s, after %s", c.tell(x), c.tell(ended))
		}
	}
}

// checkPair asks whether two deliveries of one task can have happened one
// after the other.
func (c *checker) checkPair(t *task, a, b *lease) {
	if b.End < a.Start {
		a, b = b, a
	}
	if a.End < b.Start && b.Attempt < a.Attempt {
		c.violate(BadLease, t.id, "%s, after %s", c.tell(b.Record), c.tell(a.Record))
	}
	if c.canFollow(a, b) || c.canFollow(b, a) {
		return
	}
	if b.Start < a.Start {
		a, b = b, a
	}
	done, other := a, b
	if b.end(Complete, OK) != nil {
		done, other = b, a
	}
	complete := done.end(Complete, OK)
	kind, after := UnderLease, a.Record
	switch {
	case complete != nil && other.end(Complete, OK) != nil:
		kind, after = CompletedTwice, complete
	case complete != nil && other.Start > complete.End:
		kind, after, a, b = AfterComplete, complete, done, other
	case a.dead() != nil && b.Start > a.dead().End:
		kind, after = AfterDead, a.dead()
	}
	c.violate(kind, t.id, "%s, after %s; lease until %s", c.tell(b.Record), c.tell(after), c.at(a.earliestEnd()))
}

// canFollow tells whether b's lease can have begun after a's had ended. What
// was acknowledged under a's token had its effect before b began, because b's
// token supersedes it; the latest moment at which b began is b.End.
func (c *checker) canFollow(a, b *lease) bool {
	latest := b.End
	if a.Start > latest {
		return false
	}
	for _, x := range a.extends {
		if x.Outcome == OK && x.Start > latest {
			return false
		}
	}
	givenBack := false
	for _, r := range a.ends {
		switch {
		case r.Outcome == OK && (r.Op == Complete || r.Dead):
			return false
		case r.Outcome == OK:
			// Failed or released: ended then, whatever the deadline was.
			return r.Start <= latest && (r.Op == Release || r.Deadline <= latest+c.slack)
		case r.Op != Complete && r.Start <= latest:
			// No answer, but it may have ended the lease. A completion does not
			// count: had it taken effect, there would be no b.
			givenBack = true
		}
	}
	return givenBack || a.earliestEnd() <= latest+c.slack
}

// earliestEnd is the earliest deadline that the lease can have had in the end.
func (l *lease) earliestEnd() int64 {
	// The last extension decides; without one the delivery's own deadline. One
	// that was acknowledged before another one was sent cannot be the last.
	lastSent := int64(math.MinInt64)
	for _, x := range l.extends {
		if x.Outcome == OK {
			lastSent = max(lastSent, x.Start)
		}
	}
	end := int64(math.MaxInt64)
	if lastSent == math.MinInt64 {
		end = l.Deadline
	}
	for _, x := range l.extends {
		switch {
		case x.Outcome == OK && x.End >= lastSent:
			end = min(end, x.Deadline)
		case x.Outcome == Unknown && x.LeaseTime > 0:
			end = min(end, x.Start+x.LeaseTime)
		case x.Outcome == Unknown:
			return math.MinInt64
		}
	}
	return end
}

func (l *lease) end(op Op, outcome Outcome) *Record {
	return find(l.ends, func(r *Record) bool { return r.Op == op && r.Outcome == outcome })
}

func (l *lease) dead() *Record {
	return find(l.ends, func(r *Record) bool { return r.Dead && r.Outcome == OK })
}

func find(records []*Record, is func(*Record) bool) *Record {
	if i := slices.IndexFunc(records, is); i >= 0 {
		return records[i]
	}
	return nil
}

func (c *checker) violate(kind Kind, task, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, Violation{kind, task, fmt.Sprintf(format, args...)})
}

func (c *checker) at(t int64) string {
	if t == math.MinInt64 || t == math.MaxInt64 {
		return "an unknown time"
	}
	return fmt.Sprintf("%.6fs", float64(t-c.origin)/1e9)
}

// tell describes a record.
func (c *checker) tell(r *Record) string {
	s := fmt.Sprintf("%s %s [%s, %s]", r.Op, r.Outcome, c.at(r.Start), c.at(r.End))
	if r.Client != "" {
		s += " by " + r.Client
	}
	if r.Attempt != 0 {
		s += fmt.Sprintf(" attempt %d", r.Attempt)
	}
	if r.Note != "" {
		s += " (" + r.Note + ")"
	}
	return s
}
