package page

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "<b>"} {
		if strings.Contains(text, bad) {
			t.Errorf("it contains %q", bad)
		}
	}
}

func TestChart_ofAnything(t *testing.T) {
	for _, c := range []Chart{
		{},
		{Title: "<b>", Lines: []Line{{Name: "<b>", X: []float64{0, 1}, Y: []float64{0, 0}}}},
		{Lines: []Line{{X: []float64{0, 1, 2, 3}, Y: []float64{1, math.NaN(), 3, 1e9}}}, Log: true},
		{Lines: []Line{{X: []float64{0, 1}, Y: []float64{math.NaN(), math.NaN()}}}},
	} {
		wellFormed(t, c.Draw())
	}
	flat := Chart{Lines: []Line{{X: []float64{0, 1}, Y: []float64{0, 0}}}}.Draw()
	if strings.Contains(flat, "e-0") || strings.Contains(flat, "e-1") {
		t.Error("a curve of zeros has a tiny scale")
	}
}

func TestBars_ofAnything(t *testing.T) {
	for _, b := range []Bars{{}, {Rows: []BarRow{{Name: "<b>"}, {Values: []float64{0, 0}}, {Values: []float64{3, 1, 2}}}}} {
		wellFormed(t, b.Draw())
	}
}

func TestPage_escapesTexts(t *testing.T) {
	p := New("<b>", "<b>")
	p.Heading("<b>")
	p.Paragraph("<b>")
	p.Table([]string{"<b>"}, [][]string{{"<b>"}})
	p.Plot(Plot{Name: "x", SVG: "<svg></svg>"})
	var out strings.Builder
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "<b>") || strings.Count(text, "&lt;b&gt;") != 6 || !strings.HasSuffix(text, "</html>\n") {
		t.Error(text)
	}
}
