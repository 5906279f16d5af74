package page

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Page is a page as it grows. All texts are plain and get escaped, except those of
// HTML and Plot.
type Page struct{ b strings.Builder }

// New begins a page. title is for the window and heading for the reader.
func New(title, heading string) *Page {
	p := &Page{}
	p.b.WriteString(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>` + html.EscapeString(title) + `</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1.2rem; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
svg { max-width: 100%; height: auto; margin: .6rem 0; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem; }
</style></head><body>
`)
	fmt.Fprintf(&p.b, "<h1>%s</h1>\n", html.EscapeString(heading))
	return p
}

// Heading begins a section.
func (p *Page) Heading(text string) { fmt.Fprintf(&p.b, "<h2>%s</h2>\n", html.EscapeString(text)) }

// Paragraph adds a paragraph.
func (p *Page) Paragraph(text string) { fmt.Fprintf(&p.b, "<p>%s</p>\n", html.EscapeString(text)) }

// Table adds a table. Its first and last columns are aligned to the left.
func (p *Page) Table(header []string, rows [][]string) {
	p.b.WriteString("<div class=\"scroll\"><table><thead><tr>")
	for _, h := range header {
		fmt.Fprintf(&p.b, "<th>%s</th>", html.EscapeString(h))
	}
	p.b.WriteString("</tr></thead><tbody>\n")
	for _, r := range rows {
		p.b.WriteString("<tr>")
		for _, cell := range r {
			fmt.Fprintf(&p.b, "<td>%s</td>", html.EscapeString(cell))
		}
		p.b.WriteString("</tr>\n")
	}
	p.b.WriteString("</tbody></table></div>\n")
}

// HTML adds a text as it is.
func (p *Page) HTML(text string) { p.b.WriteString(text) }

// Plot adds a picture.
func (p *Page) Plot(plot Plot) {
	fmt.Fprintf(&p.b, "<section id=\"%s\">%s</section>\n", plot.Name, plot.SVG)
}

// Write writes the whole page.
func (p *Page) Write(out io.Writer) error {
	_, err := io.WriteString(out, p.b.String()+"</body></html>\n")
	return err
}
