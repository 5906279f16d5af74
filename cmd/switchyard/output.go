package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// printJSON writes v as one indented document.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// arrayWriter writes a JSON array item by item, so that a long list need not be
// held in memory.
type arrayWriter struct {
	out   io.Writer
	count int
}

func (w *arrayWriter) add(v any) error {
	lead := "[\n  "
	if w.count > 0 {
		lead = ",\n  "
	}
	w.count++
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("  ", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w.out, lead+strings.TrimSuffix(text.String(), "\n"))
	return err
}

func (w *arrayWriter) close() error {
	tail := "\n]\n"
	if w.count == 0 {
		tail = "[]\n"
	}
	_, err := io.WriteString(w.out, tail)
	return err
}

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func (a *app) newTable(head ...string) *table {
	t := &table{w: tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)}
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// field writes "name  value", and nothing when the value is empty.
func (t *table) field(name, value string) {
	if value != "" {
		t.row(name, value)
	}
}

// count writes a number with separators: 1,234,567.
func count[N int | int32 | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// plural writes "1 task", "2 tasks".
func plural[N int | int32 | int64](n N, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return count(n) + " " + word + "s"
}

// perSecond writes a rate with three digits that matter.
func perSecond(rate float64) string {
	if rate >= 100 {
		return count(int64(rate+0.5)) + "/s"
	}
	return strconv.FormatFloat(rate, 'g', 3, 64) + "/s"
}

// roughly rounds a duration to what a person reads.
func roughly(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}

// printable makes text from outside safe for a terminal: control characters and
// wrong UTF-8 are written as escapes, and no more than limit runes are kept.
func printable(s string, limit int) string {
	var b strings.Builder
	n := 0
	for len(s) > 0 {
		if n == limit {
			b.WriteString("…")
			break
		}
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[size:]
		n++
	}
	return b.String()
}
