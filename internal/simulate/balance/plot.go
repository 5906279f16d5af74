package balance

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The pictures are plain SVG: no scripts, no fonts from elsewhere.

// palette can be told apart with colour-blind eyes too.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a87900", "#56b4e9", "#7f3fbf", "#666666", "#c00000", "#00807a", "#5b4a00", "#1a3a8f"}

func colour(i int) string { return palette[i%len(palette)] }

const (
	plotWidth   = 760
	plotHeight  = 260
	marginLeft  = 64
	marginRight = 16
	marginTop   = 34
	axisHeight  = 36
	legendLine  = 18
)

// Line is one curve. Values that are NaN are gaps.
type Line struct {
	Name string
	X, Y []float64
}

// axis is a scale from values to pixels.
type axis struct {
	lo, hi   float64
	from, to float64
	log      bool
}

func (a axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		v, lo, hi = math.Log(math.Max(v, a.lo)), math.Log(lo), math.Log(hi)
	}
	if hi == lo {
		return a.from
	}
	return a.from + (v-lo)/(hi-lo)*(a.to-a.from)
}

// ticks are round values within the axis.
func (a axis) ticks() []float64 {
	var out []float64
	if a.log {
		for e := math.Floor(math.Log10(a.lo)); e <= math.Ceil(math.Log10(a.hi)); e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= a.lo*0.999 && v <= a.hi*1.001 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10((a.hi-a.lo)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (a.hi-a.lo)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.lo/step) * step; v <= a.hi*1.0001; v += step {
		out = append(out, v)
	}
	return out
}

func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.3g", v)
}

// picture collects SVG.
type picture struct {
	strings.Builder
	height float64
}

func newPicture(height float64, title string) *picture {
	p := &picture{height: height}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" font-family="system-ui, sans-serif" font-size="12">`,
		plotWidth, height, plotWidth, height)
	fmt.Fprintf(p, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`, html.EscapeString(title))
	p.text(marginLeft, 20, "start", "#111", `font-weight="600" font-size="14"`, title)
	return p
}

func (p *picture) text(x, y float64, anchor, fill, more, text string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`, x, y, anchor, fill, more, html.EscapeString(text))
}

func (p *picture) line(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`, x1, y1, x2, y2, stroke)
}

func (p *picture) end() string {
	p.WriteString("</svg>\n")
	return p.String()
}

// legendPlaces lays names out in lines: the place of each, from the top of the first
// line, and the height of all.
func legendPlaces(names []string) (places [][2]float64, height float64) {
	x, y := float64(marginLeft), 0.0
	for _, name := range names {
		w := 28 + 7.4*float64(len(name))
		if x+w > plotWidth-marginRight && x > marginLeft {
			x, y = marginLeft, y+legendLine
		}
		places = append(places, [2]float64{x, y})
		x += w
	}
	return places, y + legendLine + 6
}

// legend writes the names below y.
func (p *picture) legend(names []string, places [][2]float64, y float64) {
	for i, name := range names {
		x, y := places[i][0], y+places[i][1]
		fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="12" height="4" fill="%s"/>`, x, y-5, colour(i))
		p.text(x+17, y, "start", "#333", "", name)
	}
}

// lines draws curves over a common x axis, in seconds.
func lines(title, unit string, curves []Line, log bool) string {
	names := make([]string, len(curves))
	lo, hi, right := math.Inf(1), 0.0, 0.0
	for i, c := range curves {
		names[i] = c.Name
		for k, v := range c.Y {
			if !math.IsNaN(v) {
				hi = math.Max(hi, v)
				if v > 0 {
					lo = math.Min(lo, v)
				}
			}
			right = math.Max(right, c.X[k])
		}
	}
	places, height := legendPlaces(names)
	top := marginTop + height
	p := newPicture(top+plotHeight+axisHeight, title)
	p.legend(names, places, marginTop+12)
	bottom := top + plotHeight
	y := axis{lo: 0, hi: math.Max(hi*1.05, 1e-9), from: bottom, to: top}
	if log && !math.IsInf(lo, 1) {
		y = axis{lo: lo * 0.9, hi: math.Max(hi*1.1, lo*2), from: bottom, to: top, log: true}
	}
	x := axis{lo: 0, hi: math.Max(right, 1e-9), from: marginLeft, to: plotWidth - marginRight}
	for _, v := range y.ticks() {
		p.line(marginLeft, y.at(v), plotWidth-marginRight, y.at(v), "#e4e4e4")
		p.text(marginLeft-6, y.at(v)+4, "end", "#555", "", number(v))
	}
	for _, v := range x.ticks() {
		p.text(x.at(v), bottom+16, "middle", "#555", "", number(v))
	}
	p.line(marginLeft, bottom, plotWidth-marginRight, bottom, "#888")
	p.text(plotWidth-marginRight, bottom+31, "end", "#555", "", "seconds")
	p.text(marginLeft-6, top-6, "end", "#555", "", unit)
	for i, c := range curves {
		var path strings.Builder
		pen := "M"
		for k, v := range c.Y {
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, x.at(c.X[k]), y.at(v))
			pen = "L"
		}
		fmt.Fprintf(p, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-linejoin="round"/>`, path.String(), colour(i))
	}
	return p.end()
}

// quantiles draws p50 to p99.9 of each policy as marks on a line.
func quantilesPlot(title string, results []*Result) string {
	lo, hi := math.Inf(1), 0.0
	for _, r := range results {
		lo, hi = math.Min(lo, milli(r.P50)), math.Max(hi, milli(r.P999))
	}
	const row, left = 24, 220
	top := float64(marginTop + 22)
	p := newPicture(top+float64(len(results)*row)+axisHeight, title)
	bottom := top + float64(len(results)*row)
	x := axis{lo: math.Max(lo*0.8, 0.01), hi: math.Max(hi*1.15, lo*2), from: left, to: plotWidth - 70, log: true}
	for _, v := range x.ticks() {
		p.line(x.at(v), top, x.at(v), bottom, "#e4e4e4")
		p.text(x.at(v), bottom+16, "middle", "#555", "", number(v))
	}
	p.text(plotWidth-marginRight, bottom+31, "end", "#555", "", "milliseconds, logarithmic")
	p.text(left, marginTop+12, "start", "#333", "", "○ p50   ◆ p99   ● p99.9")
	for i, r := range results {
		y := top + float64(i*row) + row/2
		p.text(left-10, y+4, "end", "#111", "", r.Policy)
		a, b, c := x.at(milli(r.P50)), x.at(milli(r.P99)), x.at(milli(r.P999))
		fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3" stroke-opacity="0.35"/>`, a, y, c, y, colour(i))
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="5" fill="#fff" stroke="%s" stroke-width="2"/>`, a, y, colour(i))
		fmt.Fprintf(p, `<path d="M%.1f %.1fl6 6l-6 6l-6 -6z" fill="%s"/>`, b, y-6, colour(i))
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`, c, y, colour(i))
		p.text(c+10, y+4, "start", "#333", "", number(math.Round(10*milli(r.P999))/10))
	}
	return p.end()
}

// serversPlot draws how many attempts each server got, relative to the mean: a row of
// bars for each policy.
func serversPlot(title string, results []*Result) string {
	const row, left = 46, 220
	top := float64(marginTop + 8)
	p := newPicture(top+float64(len(results)*row)+axisHeight, title)
	for i, r := range results {
		base := top + float64((i+1)*row) - 8
		total, most := 0, 1
		for _, n := range r.PerServer {
			total += n
			most = max(most, n)
		}
		mean := math.Max(float64(total)/math.Max(float64(len(r.PerServer)), 1), 1)
		scale := (row - 14) / math.Max(float64(most)/mean, 2)
		width := float64(plotWidth-marginRight-left) / float64(max(len(r.PerServer), 1))
		p.text(left-10, base-10, "end", "#111", "", r.Policy)
		p.text(left-10, base+3, "end", "#555", `font-size="10"`, fmt.Sprintf("busiest %.2f × mean", r.Busiest))
		for k, n := range r.PerServer {
			h := float64(n) / mean * scale
			fmt.Fprintf(p, `<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s"/>`, left+float64(k)*width, base-h, math.Max(width*0.85, 0.4), h, colour(i))
		}
		p.line(left, base, plotWidth-marginRight, base, "#888")
		fmt.Fprintf(p, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#000" stroke-opacity="0.4" stroke-dasharray="3 3"/>`, left, base-scale, plotWidth-marginRight, base-scale)
	}
	p.text(plotWidth-marginRight, top+float64(len(results)*row)+20, "end", "#555", "", "one bar per server; dashed: the mean")
	return p.end()
}
