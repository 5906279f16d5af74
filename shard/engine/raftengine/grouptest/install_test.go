package grouptest

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// allSteps, when it is set in the environment, makes the test below try each kind of step, of
// which it otherwise tries some, others each time.
const allSteps = "SWITCHYARD_TEST_ALL_STEPS"

func sample(steps []string) []string {
	const few = 6
	if os.Getenv(allSteps) != "" || len(steps) <= few {
		return steps
	}
	var some []string
	for i := rand.IntN(len(steps) / few); i < len(steps); i += len(steps) / few {
		some = append(some, steps[i])
	}
	return some
}

// TestSnapshot_receiverMayCrashAtEveryStep lets the power go before each kind of step that
// a member takes when it gets a snapshot, and looks whether it comes back with all rows.
func TestSnapshot_receiverMayCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, lags := range map[string]bool{"a member with an empty folder": false, "a member that was away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := idleMember(t, "a")
			a.options = smallLog
			a.start()
			g := &group{t: t, members: []*member{a}}
			if err := a.engine.Bootstrap(testContext(t), []engine.Member{{ID: "a", Address: a.address, Voter: true}}); err != nil {
				t.Fatal(err)
			}
			want := rows("a", 50)
			g.addMany(want)
			c := idleMember(t, "c")
			disk := loadDisk(t, c.dir, state{}, "")
			c.options = disk.options
			c.start()
			var before state
			add := func() {
				t.Helper()
				// Without a vote, so that the others can write while it comes and goes.
				if err := a.engine.AddMember(testContext(t), engine.Member{ID: "c", Address: c.address}); err != nil {
					t.Fatal(err)
				}
			}
			if lags {
				add()
				eventually(t, "it has the first rows", func() bool { return slices.Equal(c.names(), want) })
				eventually(t, "it takes part", c.engine.Voice)
			}
			c.kill()
			if lags {
				before = disk.now()
			}
			want = append(want, g.outrun("b")...)
			if !lags {
				add()
			}
			run := func(s state, at string) *crashDisk {
				t.Helper()
				disk := loadDisk(t, c.dir, s, at)
				c.options = disk.options
				c.start()
				return disk
			}
			target := a.engine.Status().Applied
			caughtUp := func() bool {
				return c.engine.Status().Applied >= target && c.engine.Voice() && slices.Equal(c.names(), want)
			}

			first := run(before, "")
			eventually(t, "it gets everything", caughtUp)
			eventually(t, "that was done by a snapshot", func() bool { _, n := c.tr.Snapshots(); return n > 0 })
			c.kill()
			first.mu.Lock()
			steps := first.steps
			first.mu.Unlock()
			if len(steps) < 20 {
				t.Fatalf("only these steps were seen: %q", steps)
			}
			crashed := 0
			steps = sample(steps)
			for _, step := range steps {
				disk := run(before, step)
				var left state
				eventually(t, "it crashes or gets everything", func() bool {
					select {
					case left = <-disk.left:
						return true
					default:
						return caughtUp()
					}
				})
				c.kill()
				if left.mem == nil {
					continue // steps of the background need not come each time
				}
				crashed++
				run(left, "")
				deadline := time.Now().Add(30 * time.Second)
				for !caughtUp() {
					if time.Now().After(deadline) {
						t.Fatalf("after a crash before step %q it has %d of %d rows, voice %t, %+v", step, len(c.names()), len(want), c.engine.Voice(), c.engine.Status())
					}
					time.Sleep(2 * time.Millisecond)
				}
				c.kill()
			}
			t.Logf("crashed at %d of %d kinds of steps", crashed, len(steps))
			if crashed < len(steps)/2 {
				t.Errorf("only %d of %d steps came again: %q", crashed, len(steps), steps)
			}
		})
	}
}
