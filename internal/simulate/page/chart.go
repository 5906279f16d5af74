package page

import (
	"fmt"
	"math"
	"strings"
)

// Line is one curve. Values that are NaN are gaps.
type Line struct {
	Name string
	X, Y []float64
}

// Chart is a picture of curves over a common x axis that begins at 0.
type Chart struct {
	Title        string
	XUnit, YUnit string
	Lines        []Line
	// Log makes the y axis logarithmic; values that are not above 0 lie at its end.
	Log bool
}

// Draw returns the picture.
func (c Chart) Draw() string {
	names := make([]string, len(c.Lines))
	lo, hi, right := math.Inf(1), 0.0, 0.0
	for i, l := range c.Lines {
		names[i] = l.Name
		for k, v := range l.Y {
			if !math.IsNaN(v) {
				hi = math.Max(hi, v)
				if v > 0 {
					lo = math.Min(lo, v)
				}
			}
			right = math.Max(right, l.X[k])
		}
	}
	places, height := legendPlaces(names)
	top := MarginTop + height
	p := NewPicture(top+chartHeight+AxisHeight, c.Title)
	p.legend(names, places, MarginTop+12)
	bottom := top + chartHeight
	if hi == 0 {
		hi = 1 // all there is lies on the axis
	}
	y := Axis{Lo: 0, Hi: hi * 1.05, From: bottom, To: top}
	if c.Log && !math.IsInf(lo, 1) {
		y = Axis{Lo: lo * 0.9, Hi: math.Max(hi*1.1, lo*2), From: bottom, To: top, Log: true}
	}
	x := Axis{Lo: 0, Hi: math.Max(right, 1e-9), From: MarginLeft, To: Width - MarginRight}
	for _, v := range y.Ticks() {
		p.Rule(MarginLeft, y.At(v), Width-MarginRight, y.At(v), "#e4e4e4")
		p.Text(MarginLeft-6, y.At(v)+4, "end", "#555", "", Number(v))
	}
	for _, v := range x.Ticks() {
		p.Text(x.At(v), bottom+16, "middle", "#555", "", Number(v))
	}
	p.Rule(MarginLeft, bottom, Width-MarginRight, bottom, "#888")
	p.Text(Width-MarginRight, bottom+31, "end", "#555", "", c.XUnit)
	p.Text(MarginLeft-6, top-6, "end", "#555", "", c.YUnit)
	for i, l := range c.Lines {
		var path strings.Builder
		pen := "M"
		for k, v := range l.Y {
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, x.At(l.X[k]), y.At(v))
			pen = "L"
		}
		fmt.Fprintf(p, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-linejoin="round"/>`, path.String(), Colour(i))
	}
	return p.End()
}

// BarRow is a row of bars, one for each value.
type BarRow struct {
	Name, Note string
	Values     []float64
}

// Bars is a picture of rows of bars. In each row, all are relative to its mean, which
// is a dashed line.
type Bars struct {
	Title string
	Rows  []BarRow
	// Caption says what a bar is.
	Caption string
}

// Draw returns the picture.
func (b Bars) Draw() string {
	const row, left = 46, 220
	top := float64(MarginTop + 8)
	p := NewPicture(top+float64(len(b.Rows)*row)+AxisHeight, b.Title)
	for i, r := range b.Rows {
		base := top + float64((i+1)*row) - 8
		total, most := 0.0, 0.0
		for _, v := range r.Values {
			total += v
			most = math.Max(most, v)
		}
		n := math.Max(float64(len(r.Values)), 1)
		mean := total / n
		if mean <= 0 {
			mean = 1
		}
		scale := (row - 14) / math.Max(most/mean, 2)
		width := float64(Width-MarginRight-left) / n
		p.Text(left-10, base-10, "end", "#111", "", r.Name)
		p.Text(left-10, base+3, "end", "#555", `font-size="10"`, r.Note)
		for k, v := range r.Values {
			h := v / mean * scale
			fmt.Fprintf(p, `<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s"/>`, left+float64(k)*width, base-h, math.Max(width*0.85, 0.4), h, Colour(i))
		}
		p.Rule(left, base, Width-MarginRight, base, "#888")
		fmt.Fprintf(p, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#000" stroke-opacity="0.4" stroke-dasharray="3 3"/>`, left, base-scale, Width-MarginRight, base-scale)
	}
	p.Text(Width-MarginRight, top+float64(len(b.Rows)*row)+20, "end", "#555", "", b.Caption)
	return p.End()
}
