package page

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Width is that of all pictures; the rest is where things are within one.
const (
	Width       = 760
	MarginLeft  = 64
	MarginRight = 16
	MarginTop   = 34
	AxisHeight  = 36

	chartHeight = 260
	legendLine  = 18
)

// palette can be told apart with colour-blind eyes too.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a87900", "#56b4e9", "#7f3fbf", "#666666", "#c00000", "#00807a", "#5b4a00", "#1a3a8f"}

// Colour is that of the curve number i.
func Colour(i int) string { return palette[i%len(palette)] }

// Plot is one picture.
type Plot struct {
	// Name is a short word for file names.
	Name string
	// SVG is the whole picture.
	SVG string
}

// Axis is a scale from values, Lo to Hi, to pixels, From to To.
type Axis struct {
	Lo, Hi   float64
	From, To float64
	Log      bool
}

// At is the pixel of a value.
func (a Axis) At(v float64) float64 {
	lo, hi := a.Lo, a.Hi
	if a.Log {
		v, lo, hi = math.Log(math.Max(v, a.Lo)), math.Log(lo), math.Log(hi)
	}
	if hi == lo {
		return a.From
	}
	return a.From + (v-lo)/(hi-lo)*(a.To-a.From)
}

// Ticks are round values within the axis.
func (a Axis) Ticks() []float64 {
	var out []float64
	if a.Log {
		for e := math.Floor(math.Log10(a.Lo)); e <= math.Ceil(math.Log10(a.Hi)); e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= a.Lo*0.999 && v <= a.Hi*1.001 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10((a.Hi-a.Lo)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (a.Hi-a.Lo)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.Lo/step) * step; v <= a.Hi*1.0001; v += step {
		out = append(out, v)
	}
	return out
}

// Number is a value as a person reads it.
func Number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.3g", v)
}

// Picture collects SVG.
type Picture struct{ strings.Builder }

// NewPicture begins a picture.
func NewPicture(height float64, title string) *Picture {
	p := &Picture{}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" font-family="system-ui, sans-serif" font-size="12">`,
		Width, height, Width, height)
	fmt.Fprintf(p, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`, html.EscapeString(title))
	p.Text(MarginLeft, 20, "start", "#111", `font-weight="600" font-size="14"`, title)
	return p
}

// Text writes; anchor is start, middle or end, more are further attributes.
func (p *Picture) Text(x, y float64, anchor, fill, more, text string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`, x, y, anchor, fill, more, html.EscapeString(text))
}

// Rule draws a thin line.
func (p *Picture) Rule(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`, x1, y1, x2, y2, stroke)
}

// End returns the whole picture.
func (p *Picture) End() string {
	p.WriteString("</svg>\n")
	return p.String()
}

// legendPlaces lays names out in lines: the place of each, from the top of the first
// line, and the height of all.
func legendPlaces(names []string) (places [][2]float64, height float64) {
	x, y := float64(MarginLeft), 0.0
	for _, name := range names {
		w := 28 + 7.4*float64(len(name))
		if x+w > Width-MarginRight && x > MarginLeft {
			x, y = MarginLeft, y+legendLine
		}
		places = append(places, [2]float64{x, y})
		x += w
	}
	return places, y + legendLine + 6
}

// legend writes the names below y.
func (p *Picture) legend(names []string, places [][2]float64, y float64) {
	for i, name := range names {
		x, y := places[i][0], y+places[i][1]
		fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="12" height="4" fill="%s"/>`, x, y-5, Colour(i))
		p.Text(x+17, y, "start", "#333", "", name)
	}
}
