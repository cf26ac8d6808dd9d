//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// results has the figures of each run, by its id, one for each repetition.
type results map[string][]figures

// A value is one number of a run.
type value func(*figures) float64

func cpu(f *figures) float64  { return f.CPU }
func rate(f *figures) float64 { return f.Rate }
func p50(f *figures) float64  { return f.P50 }
func p99(f *figures) float64  { return f.P99 }
func p999(f *figures) float64 { return f.P999 }

// median returns the median of all repetitions; NaN if the run was not made.
func (rs results) median(id string, of value) float64 {
	var all []float64
	for i := range rs[id] {
		all = append(all, of(&rs[id][i]))
	}
	return median(all)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	all = slices.Sorted(slices.Values(all))
	return (all[len(all)/2] + all[(len(all)-1)/2]) / 2
}

// complete reports whether everything that a table needs was measured.
func (rs results) complete(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { return len(rs[id]) == 0 })
}

// A table is what the documentation has between two marks.
type table struct {
	name string
	runs []string // the ids of all that it needs
	text string
}

// report prints what was measured, and writes what is complete to dir.
func report(dir string, rs results) error {
	tables := tables(rs)
	for _, t := range tables {
		if t.text != "" {
			fmt.Printf("%s\n", t.text)
		}
	}
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := writeTables(filepath.Join(dir, "performance.md"), rs, tables); err != nil {
		return err
	}
	return writePlots(dir, rs)
}

func writeTables(file string, rs results, tables []table) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	page := string(text)
	for _, t := range tables {
		if rs.complete(t.runs) {
			page = insert(page, t.name, t.text)
		}
	}
	return os.WriteFile(file, []byte(page), 0o644)
}

// insert puts a table into a page, in place of the one between its marks, or else at the end.
func insert(page, name, text string) string {
	begin, end := "<!-- suite: "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, found := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		before, after = strings.TrimRight(page, "\n")+"\n\n", ""
	}
	return before + begin + "\n" + text + "\n" + end + after
}

// A column is one of a table's. In rows that have nothing there its value is NaN.
type column struct {
	head string
	of   value
}

var usual = []column{
	{"CPU µs/check", cpu}, {"checks/s", rate}, {"p50 µs", p50}, {"p99 µs", p99}, {"p99.9 µs", p999},
	{"allocations/check", (*figures).allocs}, {"B/check", (*figures).bytes},
}

func tables(rs results) []table {
	between := column{"checks per peer request", (*figures).shared}
	return []table{
		rs.table(tableOne, "", usual),
		rs.table(tableThree, "", append(slices.Clone(usual), between)),
		rs.table(tableOpen, "", usual),
		rs.keysTable(),
		rs.nodesTable(),
		rs.modelTable(),
		rs.paperTable(),
		rs.globalTable(),
		rs.judged(),
	}
}

// table makes the table of all runs that are listed under name, without rows of those that were not made.
func (rs results) table(name, corner string, columns []column) table {
	t := table{name: name}
	var rows [][]string
	for _, r := range scenarios(false) {
		if r.table != name {
			continue
		}
		t.runs = append(t.runs, r.id())
		if len(rs[r.id()]) > 0 {
			row := []string{r.row}
			for _, c := range columns {
				row = append(row, number(rs.median(r.id(), c.of)))
			}
			rows = append(rows, row)
		}
	}
	head := []string{corner}
	for _, c := range columns {
		head = append(head, c.head)
	}
	t.text = markdown(head, rows)
	return t
}

func (rs results) keysTable() table {
	perKey := func(bytes value) value {
		return func(f *figures) float64 {
			if f.keys < manyKeys { // it would be the program itself
				return math.NaN()
			}
			return bytes(f) / f.keys
		}
	}
	rss := func(f *figures) float64 { return f.RSS[0] * (1 << 20) }
	return rs.table(tableKeys, "live keys", []column{
		{"RSS MiB", func(f *figures) float64 { return f.RSS[0] }}, {"RSS B/key", perKey(rss)},
		{"heap B/key", perKey(func(f *figures) float64 { return f.Heap })},
		{"GC, % of CPU", func(f *figures) float64 { return 100 * f.GC }},
		{"processors at 2,000/s", func(f *figures) float64 { return f.CPU * f.Rate / 1e6 }},
		{"p50 µs", p50}, {"p99 µs", p99}, {"p99.9 µs", p999},
	})
}

// An aim is what a figure, or its ratio to the same figure of another run, should be at most or, if it is a minimum, at
// least. Where the bound is not a number it is only there to compare with.
type aim struct {
	what    string
	of, to  string // ids; without to, the figure itself counts
	value   value
	bound   float64
	minimum bool
}

var aims = []aim{
	{"one node, single checks: CPU ÷ that of the floor",
		"one: one node, 1 per request", "one: floor, 1 per request", cpu, 1.25, false},
	{"the same ÷ that of a floor that finds the key in a bare LRU",
		"one: one node, 1 per request", "one: floor, 1 per request, finds the key in a bare LRU", cpu, math.NaN(), false},
	{"100 per request, 1,000 keys: CPU µs/check", "one: one node, 100 per request, 1,000 keys", "", cpu, 1.1, false},
	{"100 per request, 100,000 keys: CPU µs/check", "one: one node, 100 per request", "", cpu, 1.7, false},
	{"1,000 per request, 1,000 keys: CPU µs/check", "one: one node, 1,000 per request, 1,000 keys", "", cpu, 0.7, false},
	{"1,000 per request, 100,000 keys: CPU µs/check", "one: one node, 1,000 per request", "", cpu, 1.3, false},
	{"one hot key: checks/s ÷ those of 100,000 keys",
		"one: one node, 1 per request, one hot key", "one: one node, 1 per request", rate, 0.9, true},
	{"three nodes, closed loop: CPU of all ÷ that of one node", "three: three nodes", "three: one node", cpu, 2, false},
	{"three nodes, 1,000/s: p50 ÷ that of one node", "open: three nodes, 1,000/s", "open: one node, 1,000/s", p50, 2.5,
		false},
	{"5,000,000 live keys, 2,000/s: p99 ÷ that with 10,000", "keys: weir, 5,000,000", "keys: weir, 10,000", p99, 2, false},
	{"the same of the floor", "keys: floor, 5,000,000", "keys: floor, 10,000", p99, math.NaN(), false},
}

// judged compares medians with what they should be. The range is that of the repetitions, each by itself.
func (rs results) judged() table {
	t := table{name: "judged"}
	var rows [][]string
	for _, a := range aims {
		t.runs = append(t.runs, a.runs()...)
		if !rs.complete(a.runs()) {
			continue
		}
		got, least, most := rs.judge(a)
		sign, met := "≤", got <= a.bound
		if a.minimum {
			sign, met = "≥", got >= a.bound
		}
		verdict := "yes"
		if !met {
			verdict = "no"
		}
		bound := sign + " " + number(a.bound)
		if math.IsNaN(a.bound) {
			bound, verdict = "", ""
		}
		rows = append(rows, []string{a.what, number(got), number(least) + " to " + number(most), bound, verdict})
	}
	t.text = markdown([]string{"", "measured", "range", "aim", "met"}, rows)
	return t
}

func (a *aim) runs() []string {
	if a.to == "" {
		return []string{a.of}
	}
	return []string{a.of, a.to}
}

func (rs results) judge(a aim) (got, least, most float64) {
	got = rs.median(a.of, a.value)
	if a.to != "" {
		got /= rs.median(a.to, a.value)
	}
	least, most = math.Inf(1), math.Inf(-1)
	for i := range rs[a.of] {
		one := a.value(&rs[a.of][i])
		if a.to != "" {
			one /= a.value(&rs[a.to][i])
		}
		least, most = min(least, one), max(most, one)
	}
	return got, least, most
}

// markdown writes a table; nothing if it has no rows.
func markdown(head []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// number writes x for people, with three digits or so.
func number(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "–"
	case x < 9.995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case x < 99.95:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return count(int(math.Round(x)))
}

// count writes n with its thousands apart.
func count(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
