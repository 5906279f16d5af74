package history

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Short ways to write histories down: times in milliseconds, token = one word.

func add(task string, outcome Outcome, start, end int64) Record {
	return Record{Op: Add, Outcome: outcome, Task: task, Start: ms(start), End: ms(end)}
}

func deliver(task, token string, start, end, deadline int64) Record {
	return Record{Op: Deliver, Outcome: OK, Task: task, Token: []byte(token), Start: ms(start), End: ms(end), Deadline: ms(deadline)}
}

func under(op Op, task, token string, outcome Outcome, start, end, deadline int64) Record {
	r := Record{Op: op, Outcome: outcome, Task: task, Token: []byte(token), Start: ms(start), End: ms(end)}
	if deadline != 0 {
		r.Deadline = ms(deadline)
	}
	return r
}

func complete(task, token string, outcome Outcome, start, end int64) Record {
	return under(Complete, task, token, outcome, start, end, 0)
}

func cancel(task string, outcome Outcome, start, end int64) Record {
	return Record{Op: Cancel, Outcome: outcome, Task: task, Start: ms(start), End: ms(end)}
}

func left(task string, at int64) Record {
	return Record{Op: Left, Outcome: OK, Task: task, Start: ms(at), End: ms(at)}
}

func ms(t int64) int64 { return 1_000_000_000 + t*1_000_000 }

func withSum(r Record, sum uint32) Record    { r.Sum = sum; return r }
func withAttempt(r Record, n int32) Record   { r.Attempt = n; return r }
func withLeaseTime(r Record, t int64) Record { r.LeaseTime = t * 1_000_000; return r }
func dead(r Record) Record                   { r.Dead = true; return r }
func history(records ...Record) []Record     { return records }
func kinds(report Report) (out []Kind) {
	for _, v := range report.Violations {
		out = append(out, v.Kind)
	}
	return out
}

func TestCheck_acceptsWhatACorrectQueueMayAnswer(t *testing.T) {
	cases := map[string][]Record{
		"nothing": nil,
		"added, delivered, completed": history(
			add("a", OK, 0, 1), deliver("a", "1", 0, 3, 1000), complete("a", "1", OK, 4, 5)),
		"a poll that was there before the task": history(
			deliver("a", "1", 0, 3, 1000), add("a", OK, 1, 2), complete("a", "1", OK, 4, 5)),
		"delivered before its add was answered": history(
			add("a", OK, 0, 10), deliver("a", "1", 1, 2, 1000), complete("a", "1", OK, 3, 4)),
		"acknowledged and still there": history(
			add("a", OK, 0, 1), left("a", 100)),
		"an unanswered add that came to nothing": history(
			add("a", Unknown, 0, 1)),
		"an unanswered add that took effect after the client gave up": history(
			add("a", Unknown, 0, 1), deliver("a", "1", 5, 6, 1000), complete("a", "1", OK, 7, 8)),
		"a repeated add that was recognised": history(
			add("a", Unknown, 0, 1), add("a", Already, 2, 3), deliver("a", "1", 4, 5, 1000), complete("a", "1", OK, 6, 7)),
		"a refused add": history(
			add("a", Refused, 0, 1)),
		"redelivered after the lease ran out": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 90, 101, 200), complete("a", "2", OK, 102, 103)),
		"redelivered after an extended lease ran out": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), under(Extend, "a", "1", OK, 50, 51, 150),
			deliver("a", "2", 2, 151, 250), complete("a", "2", OK, 152, 153)),
		"redelivered after an extension made the lease shorter": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), under(Extend, "a", "1", OK, 5, 6, 20),
			deliver("a", "2", 7, 21, 200), complete("a", "2", OK, 22, 23)),
		"redelivered after an unanswered extension that asked for less": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000),
			withLeaseTime(under(Extend, "a", "1", Unknown, 5, 6, 0), 10),
			deliver("a", "2", 7, 16, 200), complete("a", "2", OK, 22, 23)),
		"two extensions at once, the shorter was the last": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100),
			under(Extend, "a", "1", OK, 10, 20, 500), under(Extend, "a", "1", OK, 12, 18, 50),
			deliver("a", "2", 40, 51, 200), complete("a", "2", OK, 52, 53)),
		"completed late, before anybody else got it": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", OK, 200, 201)),
		"completed late and refused": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 90, 101, 200),
			complete("a", "1", Refused, 102, 103), complete("a", "2", OK, 104, 105)),
		"an unanswered completion that took effect": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Unknown, 4, 5)),
		"an unanswered completion that took no effect": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Unknown, 4, 5),
			deliver("a", "2", 90, 101, 200), complete("a", "2", OK, 104, 105)),
		"an unanswered completion, repeated": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Unknown, 4, 5), complete("a", "1", Already, 6, 7)),
		"failed and retried": history(
			add("a", OK, 0, 1), withAttempt(deliver("a", "1", 2, 3, 1000), 1), under(Fail, "a", "1", OK, 4, 5, 50),
			withAttempt(deliver("a", "2", 4, 50, 1000), 2), complete("a", "2", OK, 52, 53)),
		"an unanswered failure that took effect": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), under(Fail, "a", "1", Unknown, 4, 5, 0),
			deliver("a", "2", 6, 7, 1000), complete("a", "2", OK, 52, 53)),
		"failed for good": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), dead(under(Fail, "a", "1", OK, 4, 5, 0)), left("a", 100)),
		"released and delivered at once, within one long poll": history(
			add("a", OK, 0, 1), withAttempt(deliver("a", "1", 2, 3, 1000), 1), under(Release, "a", "1", OK, 4, 8, 0),
			withAttempt(deliver("a", "2", 2, 6, 1000), 1), complete("a", "2", OK, 7, 9)),
		"three deliveries whose polls overlap": history(
			add("a", OK, 0, 1), deliver("a", "3", 0, 205, 1000), deliver("a", "2", 0, 104, 200), deliver("a", "1", 0, 3, 100),
			complete("a", "3", OK, 206, 207)),
		"cancelled while a worker had it": history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), cancel("a", OK, 4, 5), complete("a", "1", Refused, 6, 7)),
		"an unanswered cancellation": history(
			add("a", OK, 0, 1), cancel("a", Unknown, 4, 5)),
		"tasks do not disturb each other": history(
			add("a", OK, 0, 1), add("b", OK, 0, 1), deliver("a", "1", 2, 3, 1000), deliver("b", "2", 2, 3, 1000),
			complete("a", "1", OK, 4, 5), left("b", 9)),
		"the same content": history(
			withSum(add("a", OK, 0, 1), 7), withSum(deliver("a", "1", 2, 3, 1000), 7), complete("a", "1", OK, 4, 5)),
	}
	for name, records := range cases {
		t.Run(name, func(t *testing.T) {
			for _, order := range orders(records) {
				if report := Check(order, Options{}); len(report.Violations) != 0 {
					t.Fatal(report)
				}
			}
		})
	}
}

// orders returns the records as they are and reversed: the order must not
// matter.
func orders(records []Record) [][]Record {
	reversed := slices.Clone(records)
	slices.Reverse(reversed)
	return [][]Record{records, reversed}
}

func TestCheck_catchesFaults(t *testing.T) {
	cases := map[string]struct {
		want    Kind
		records []Record
	}{
		"an acknowledged task is gone": {Lost, history(
			add("a", OK, 0, 1))},
		"a task that was recognised as added is gone": {Lost, history(
			add("a", Unknown, 0, 1), add("a", Already, 2, 3))},
		"a delivered task is gone": {Lost, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100))},
		"a task is gone whose completion was refused": {Lost, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Refused, 4, 5))},
		"a failed task is gone": {Lost, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), under(Fail, "a", "1", OK, 4, 5, 50))},
		"two workers have it": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 5, 99, 200), complete("a", "2", OK, 102, 103))},
		"two polls at the same time got it": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 10, 100), deliver("a", "2", 2, 10, 100), left("a", 500))},
		"redelivered though extended": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), under(Extend, "a", "1", OK, 50, 51, 150),
			deliver("a", "2", 60, 120, 250), complete("a", "2", OK, 152, 153))},
		"redelivered after a refused release": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), under(Release, "a", "1", Refused, 4, 5, 0),
			deliver("a", "2", 6, 7, 100), left("a", 500))},
		"redelivered before the release was sent": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 6, 7, 100),
			under(Release, "a", "1", Unknown, 8, 9, 0), left("a", 500))},
		"redelivered under an unanswered completion": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Unknown, 4, 5),
			deliver("a", "2", 6, 7, 107), left("a", 500))},
		"retried too early": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 1000), under(Fail, "a", "1", OK, 4, 5, 500),
			deliver("a", "2", 6, 450, 2000), left("a", 5000))},
		"a superseded lease was extended": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 90, 101, 200),
			under(Extend, "a", "1", OK, 110, 111, 120), left("a", 500))},
		"delivered again after completion": {AfterComplete, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", OK, 4, 5), deliver("a", "2", 6, 200, 300))},
		"in the queue after completion": {AfterComplete, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", OK, 4, 5), left("a", 9))},
		"completed under a superseded lease": {UnderLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 90, 101, 200), complete("a", "1", OK, 110, 111))},
		"completed by two": {CompletedTwice, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 90, 101, 200),
			complete("a", "1", OK, 110, 111), complete("a", "2", OK, 110, 111))},
		"delivered though dead": {AfterDead, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), dead(under(Fail, "a", "1", OK, 4, 5, 0)),
			deliver("a", "2", 90, 101, 200), left("a", 500))},
		"delivered after cancellation": {AfterCancel, history(
			add("a", OK, 0, 1), cancel("a", OK, 2, 3), deliver("a", "1", 4, 5, 100), left("b", 500), add("b", OK, 0, 1))},
		"in the queue after cancellation": {AfterCancel, history(
			add("a", OK, 0, 1), cancel("a", OK, 2, 3), left("a", 4))},
		"nobody added it": {Invented, history(
			deliver("a", "1", 2, 3, 100), complete("a", "1", OK, 4, 5))},
		"nobody added it, and it lies there": {Invented, history(
			left("a", 5))},
		"its add was refused": {Invented, history(
			add("a", Refused, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", OK, 4, 5))},
		"delivered before it was added": {Invented, history(
			deliver("a", "1", 0, 1, 100), add("a", OK, 2, 3), complete("a", "1", OK, 4, 5))},
		"recognised though nobody had added it": {Invented, history(
			add("a", Already, 0, 1), add("a", OK, 2, 3), left("a", 5))},
		"already completed though nobody had": {Invented, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Already, 4, 5), left("a", 9))},
		"already completed before anybody did": {Invented, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Already, 4, 5), complete("a", "1", OK, 6, 7))},
		"another content": {Changed, history(
			withSum(add("a", OK, 0, 1), 7), withSum(deliver("a", "1", 2, 3, 1000), 8), complete("a", "1", OK, 4, 5))},
		"a token for two tasks": {BadLease, history(
			add("a", OK, 0, 1), add("b", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("b", "1", 2, 3, 100), left("a", 500), left("b", 500))},
		"a token twice for one task": {BadLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "1", 102, 103, 200), left("a", 500))},
		"a lease ended twice": {BadLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), under(Release, "a", "1", OK, 4, 5, 0), complete("a", "1", OK, 6, 7))},
		"extended after it was given back": {BadLease, history(
			add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), under(Release, "a", "1", OK, 4, 5, 0),
			under(Extend, "a", "1", OK, 6, 7, 107), left("a", 500))},
		"completed under a token of nobody": {BadLease, history(
			add("a", OK, 0, 1), complete("a", "9", OK, 6, 7), left("a", 5))},
		"attempts that count down": {BadLease, history(
			add("a", OK, 0, 1), withAttempt(deliver("a", "1", 2, 3, 100), 2), withAttempt(deliver("a", "2", 102, 103, 200), 1), left("a", 500))},
		"a record that is none": {Malformed, history(
			Record{Op: "dance", Outcome: OK, Task: "a", Start: 1, End: 2})},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, order := range orders(c.records) {
				report := Check(order, Options{})
				if got := kinds(report); !slices.Contains(got, c.want) || len(got) > 1 {
					t.Fatalf("want only %q, got\n%s", c.want, report)
				}
			}
		})
	}
}

func TestCheck_allowsForClockError(t *testing.T) {
	records := history(add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), deliver("a", "2", 50, 97, 200), left("a", 500))
	for slack, want := range map[time.Duration]int{2 * time.Millisecond: 1, 3 * time.Millisecond: 0} {
		if report := Check(records, Options{ClockError: slack}); len(report.Violations) != want {
			t.Errorf("clock error %s: want %d violations, got %s", slack, want, report)
		}
	}
}

// Where nodes repeat requests, "completed already" may be about the request itself, and a
// completion that is not known otherwise; but not one by somebody who had no lease.
func TestCheck_allowsForRepeatingNodes(t *testing.T) {
	own := history(add("a", OK, 0, 1), deliver("a", "1", 0, 3, 1000), complete("a", "1", Already, 4, 5))
	after := history(add("a", OK, 0, 1), deliver("a", "1", 0, 3, 10), deliver("a", "2", 12, 13, 1000),
		complete("a", "2", OK, 14, 15), complete("a", "1", Already, 4, 20))
	for _, h := range [][]Record{own, after} {
		if report := Check(h, Options{Repeats: true}); len(report.Violations) != 0 {
			t.Errorf("with repeating nodes: %s", report)
		}
	}
	if report := Check(own, Options{}); len(report.Violations) == 0 {
		t.Error("without repeating nodes nothing was said of a completion from nowhere")
	}
	early := history(add("a", OK, 0, 1), deliver("a", "1", 0, 3, 1000), deliver("a", "2", 5, 6, 2000), complete("a", "1", Already, 7, 8))
	if report := Check(early, Options{Repeats: true}); len(report.Violations) == 0 {
		t.Error("a delivery under a live lease was not seen")
	}
}

func TestReport_countsAndTells(t *testing.T) {
	report := Check(history(
		add("a", OK, 0, 1), deliver("a", "1", 2, 3, 100), complete("a", "1", Unknown, 4, 5),
		deliver("a", "2", 90, 101, 200), complete("a", "2", OK, 104, 105),
		add("b", OK, 0, 1), left("b", 200),
		add("c", OK, 7, 8),
	), Options{})
	text := report.String()
	for _, want := range []string{
		"3 tasks: 3 acknowledged, 1 completed, 1 left; 2 deliveries (1 again); 1 requests unanswered; 1 violations",
		"task c: lost: add ok [0.007000s, 0.008000s]",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("report lacks %q:\n%s", want, text)
		}
	}
}

func TestRead_returnsWhatWriteWrote(t *testing.T) {
	records := history(
		add("a", OK, 0, 1), withAttempt(withSum(deliver("a", "1", 2, 3, 100), 9), 2), dead(under(Fail, "a", "1", OK, 4, 5, 50)),
		withLeaseTime(under(Extend, "a", "1", Unknown, 4, 5, 0), 30), left("a", 9))
	var buf bytes.Buffer
	if err := Write(&buf, records); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, records, equal) {
		t.Errorf("got %+v, want %+v", got, records)
	}
}

func equal(a, b Record) bool {
	same := bytes.Equal(a.Token, b.Token)
	a.Token, b.Token = nil, nil
	return same && reflect.DeepEqual(a, b)
}

func TestRead_refusesWhatItDoesNotKnow(t *testing.T) {
	good := `{"op":"add","outcome":"ok","task":"a","start":1,"end":2}`
	cases := map[string]string{
		"not JSON":            "hello",
		"an unknown field":    `{"op":"add","outcome":"ok","task":"a","start":1,"end":2,"mood":"fine"}`,
		"an unknown op":       `{"op":"dance","outcome":"ok","task":"a","start":1,"end":2}`,
		"an unknown outcome":  `{"op":"add","outcome":"perhaps","task":"a","start":1,"end":2}`,
		"no task":             `{"op":"add","outcome":"ok","start":1,"end":2}`,
		"an end before start": `{"op":"add","outcome":"ok","task":"a","start":3,"end":2}`,
		"no token":            `{"op":"complete","outcome":"ok","task":"a","start":1,"end":2}`,
		"no deadline":         `{"op":"deliver","outcome":"ok","task":"a","token":"eA==","start":1,"end":2}`,
		"a failed delivery":   `{"op":"deliver","outcome":"unknown","task":"a","token":"eA==","start":1,"end":2}`,
		"an already failed":   `{"op":"fail","outcome":"already","task":"a","token":"eA==","start":1,"end":2}`,
		"two on a line":       good + good,
		"an endless line":     strings.Repeat(" ", maxLine+1) + good,
	}
	for name, line := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(strings.NewReader(good + "\n\n" + line + "\n")); err == nil || !strings.Contains(err.Error(), "line") {
				t.Errorf("got error %v, want one with the line", err)
			}
		})
	}
	if records, err := Read(strings.NewReader(good + "\n\n" + good)); err != nil || len(records) != 2 {
		t.Errorf("good lines: %d records, error %v", len(records), err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"op":"add","outcome":"ok","task":"a","start":1,"end":2}`))
	f.Add([]byte(`{"op":"deliver","outcome":"ok","task":"a","token":"eA==","start":1,"end":2,"deadline":9,"attempt":1}` + "\n" +
		`{"op":"fail","outcome":"ok","task":"a","token":"eA==","start":3,"end":4,"deadline":9,"dead":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, v := range Check(records, Options{}).Violations {
			if v.Kind == Malformed {
				t.Fatalf("Read let a malformed record pass: %s", v)
			}
		}
		var buf bytes.Buffer
		if err := Write(&buf, records); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&buf)
		if err != nil || !slices.EqualFunc(again, records, equal) {
			t.Fatalf("not the same after writing and reading: %v", err)
		}
	})
}
