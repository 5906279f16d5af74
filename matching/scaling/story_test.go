package scaling

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestManager_stories runs the stories of testdata/story. Each begins with a queue
// without tasks, whose counts are not managed. Its one command is
//
//	steps      one step a line; the output has each change of the counts and what is asked
//	----
//
// and a step is one of
//
//	configure mode=on|off|shadow configured=N min=N max=N fixed=N up=WINDOW/RATE down=WINDOW/RATE base=N cap=N
//	load=RATE polls=RATE for=DURATION     tasks are added and polled meanwhile
//	task PARTITION...                     a task is put there, if the partition takes any
//	done PARTITION...                     all tasks there are done
//	cut PARTITION..., joined PARTITION... the root cannot reach it, or can again
//	unload PARTITION...
//	moves                                 the root gets another owner
//	fails, works                          the store
//	show
func TestManager_stories(t *testing.T) {
	datadriven.Walk(t, "testdata/story", func(t *testing.T, path string) {
		f := newFleet(t, 1, Settings{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "steps" {
				d.Fatalf(t, "there is no command %q", d.Cmd)
			}
			f.t = t
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				f.changes = nil
				said, err := f.step(strings.Fields(line))
				if err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
				for _, c := range f.changes {
					fmt.Fprintln(&out, c)
				}
				out.WriteString(said)
			}
			return out.String()
		})
	})
}

func (f *fleet) step(words []string) (string, error) {
	if len(words) == 0 {
		return "", nil
	}
	switch words[0] {
	case "configure":
		return "", f.configureBy(words[1:])
	case "moves":
		f.load()
		return "", nil
	case "fails", "works":
		f.failStores = words[0] == "fails"
		return "", nil
	case "show":
		c := f.stored()
		target, largest, shadow := f.m.Targets()
		return fmt.Sprintf("read %d, write %d, managed %v; target %d, largest %d, shadow %d\n", c.Read, c.Write, f.m.Counts().Managed(), target, largest, shadow), nil
	}
	if strings.Contains(words[0], "=") {
		v := map[string]string{}
		for _, w := range words {
			name, value, _ := strings.Cut(w, "=")
			v[name] = value
		}
		load, err1 := strconv.ParseFloat(v["load"], 64)
		polls, err2 := strconv.ParseFloat(v["polls"], 64)
		d, err3 := time.ParseDuration(v["for"])
		if err1 != nil || err2 != nil || err3 != nil {
			return "", fmt.Errorf("load, polls and for are needed")
		}
		f.run(d, load, polls)
		return "", nil
	}
	said := ""
	for _, w := range words[1:] {
		n, err := strconv.Atoi(w)
		if err != nil {
			return "", err
		}
		p := int32(n)
		switch words[0] {
		case "task":
			if !f.add(p) {
				said += fmt.Sprintf("partition %d takes no tasks\n", p)
			}
		case "done":
			f.poll(p, 1<<40)
		case "cut", "joined":
			f.partitions[p].cut = words[0] == "cut"
		case "unload":
			f.partitions[p].loaded = false
		default:
			return "", fmt.Errorf("there is no step %q", words[0])
		}
	}
	return said, nil
}

func (f *fleet) configureBy(words []string) error {
	s := f.set
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		switch name {
		case "configured":
			s.Configured, s.ConfiguredRead = int32(n), int32(n)
		case "min":
			s.Min = int32(n)
		case "max":
			s.Max = int32(n)
		case "fixed":
			s.Fixed = int32(n)
		case "base":
			s.BacklogBase = n
		case "cap":
			s.BacklogCap = n
		case "mode":
			s.Mode, err = map[string]Mode{"on": On, "off": Off, "shadow": Shadow}[value], nil
		case "up", "down":
			var r Rule
			window, rate, _ := strings.Cut(value, "/")
			if r.Window, err = time.ParseDuration(window); err == nil {
				r.Rate, err = strconv.ParseFloat(rate, 64)
			}
			if name == "up" {
				s.Up = []Rule{r}
			} else {
				s.Down = []Rule{r}
			}
		default:
			return fmt.Errorf("there is no setting %q", name)
		}
		if err != nil {
			return err
		}
	}
	if err := s.Check(); err != nil {
		return err
	}
	f.configure(func(set *Settings) { *set = s })
	return nil
}
