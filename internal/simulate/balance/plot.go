package balance

import (
	"fmt"
	"math"

	"github.com/switchyard-dev/switchyard/internal/simulate/page"
)

// quantiles draws p50 to p99.9 of each policy as marks on a line.
func quantilesPlot(title string, results []*Result) string {
	lo, hi := math.Inf(1), 0.0
	for _, r := range results {
		lo, hi = math.Min(lo, milli(r.P50)), math.Max(hi, milli(r.P999))
	}
	const row, left = 24, 220
	top := float64(page.MarginTop + 22)
	p := page.NewPicture(top+float64(len(results)*row)+page.AxisHeight, title)
	bottom := top + float64(len(results)*row)
	x := page.Axis{Lo: math.Max(lo*0.8, 0.01), Hi: math.Max(hi*1.15, lo*2), From: left, To: page.Width - 70, Log: true}
	for _, v := range x.Ticks() {
		p.Rule(x.At(v), top, x.At(v), bottom, "#e4e4e4")
		p.Text(x.At(v), bottom+16, "middle", "#555", "", page.Number(v))
	}
	p.Text(page.Width-page.MarginRight, bottom+31, "end", "#555", "", "milliseconds, logarithmic")
	p.Text(left, page.MarginTop+12, "start", "#333", "", "○ p50   ◆ p99   ● p99.9")
	for i, r := range results {
		y := top + float64(i*row) + row/2
		p.Text(left-10, y+4, "end", "#111", "", r.Policy)
		a, b, c := x.At(milli(r.P50)), x.At(milli(r.P99)), x.At(milli(r.P999))
		fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3" stroke-opacity="0.35"/>`, a, y, c, y, page.Colour(i))
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="5" fill="#fff" stroke="%s" stroke-width="2"/>`, a, y, page.Colour(i))
		fmt.Fprintf(p, `<path d="M%.1f %.1fl6 6l-6 6l-6 -6z" fill="%s"/>`, b, y-6, page.Colour(i))
		fmt.Fprintf(p, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`, c, y, page.Colour(i))
		p.Text(c+10, y+4, "start", "#333", "", page.Number(math.Round(10*milli(r.P999))/10))
	}
	return p.End()
}

// serversPlot draws how many attempts each server got, relative to the mean: a row of
// bars for each policy.
func serversPlot(title string, results []*Result) string {
	b := page.Bars{Title: title, Caption: "one bar per server; dashed: the mean"}
	for _, r := range results {
		row := page.BarRow{Name: r.Policy, Note: fmt.Sprintf("busiest %.2f × mean", r.Busiest)}
		for _, n := range r.PerServer {
			row.Values = append(row.Values, float64(n))
		}
		b.Rows = append(b.Rows, row)
	}
	return b.Draw()
}
