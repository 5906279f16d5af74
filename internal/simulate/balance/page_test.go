package balance

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// wellFormed parses a text as XML to its end.
func wellFormed(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict = true
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestWritePage_standsAlone(t *testing.T) {
	w := Tail()
	w.Name, w.Duration = `a <b> & "c"`, 2*time.Second
	w.Faults[2].From, w.Faults[2].To = 500*time.Millisecond, time.Second
	var results []*Result
	about := map[string]string{}
	for _, name := range []string{"round_robin", "random_aperture", "stack"} {
		r, err := Run(w, policyNamed(t, name), 1)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
		about[name] = "what <" + name + "> is"
	}
	var b strings.Builder
	if err := WritePage(&b, w, results, about, 1); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url(", "NaN", "Inf", "<b>", "what <"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	plots := Plots(w, results)
	if len(plots) != 6 {
		t.Errorf("%d plots, want 6", len(plots))
	}
	for _, p := range plots {
		if err := wellFormed(p.SVG); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if !strings.Contains(page, p.SVG) {
			t.Errorf("%s is not in the page", p.Name)
		}
	}
	if err := WritePage(failing{}, w, results, about, 1); err == nil {
		t.Error("an error of the writer got lost")
	}
}

func TestPlots_ofNothing(t *testing.T) {
	for _, p := range Plots(Healthy(), []*Result{{Policy: "none", Steps: make([]Step, 3)}}) {
		if err := wellFormed(p.SVG); err != nil || strings.Contains(p.SVG, "NaN") {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
