//go:build linux

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	f, err := parse([]byte(`{"seconds":2,"checks":1000,"checks_per_s":500,"p50_us":1.5,"p99_us":2.5,"p999_us":3.5,
		"server_cpu_us_per_check":0.25,"server_rss_mib":[10,20],"other_cpu_s":0.1,"unknown":true,"metrics":{"go_memstats_mallocs_total":3000,
		"go_memstats_alloc_bytes_total":50000,"weir_peer_request_items_sum":600,"weir_peer_request_items_count":20}}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := []float64{f.CPU, f.Rate, f.P50, f.P99, f.P999, f.allocs(), f.bytes(), f.forwarded(), f.shared(), f.RSS[1]}
	if want := []float64{0.25, 500, 1.5, 2.5, 3.5, 3, 50, 0.6, 30, 20}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, line := range []string{"", "no JSON", `{"seconds":2}`} {
		if _, err := parse([]byte(line)); err == nil {
			t.Errorf("parse takes %q", line)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		all  []float64
		want float64
	}{{[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{7}, 7}} {
		if got := median(c.all); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.all, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{0: "0.00", 0.126: "0.13", 1.5: "1.50", 9.999: "10.0", 31.44: "31.4",
		99.96:  "100",
		1234.5: "1,235", 1234567: "1,234,567", math.NaN(): "–"} {
		if got := number(x); got != want {
			t.Errorf("number(%v) = %q, want %q", x, got, want)
		}
	}
	if got := rough(9_313_532); got != "9,300,000" {
		t.Errorf("rough gives %q", got)
	}
}

// What tables, aims and plots look for must be measured by someone.
func TestReferences(t *testing.T) {
	var all []string
	for _, r := range scenarios(false) {
		if slices.Contains(all, r.id()) {
			t.Errorf("two runs are %q", r.id())
		}
		all = append(all, r.id())
		if r.connections()%max(1, r.nodes) != 0 {
			t.Errorf("%s: %d connections for %d nodes", r.id(), r.connections(), r.nodes)
		}
	}
	used := slices.Clone(latencyRuns)
	for _, table := range tables(nil) {
		used = append(used, table.runs...)
	}
	for _, p := range plots() {
		for _, l := range p.lines {
			used = append(used, l.ids...)
		}
	}
	for _, id := range used {
		if !slices.Contains(all, id) {
			t.Errorf("nothing measures %q", id)
		}
	}
	if few := choose(scenarios(true), regexp.MustCompile("^keys: ")); len(few) != 4 {
		t.Errorf("chose %d runs", len(few))
	}
}

func TestJudge(t *testing.T) {
	rs := results{"a": {{CPU: 3}, {CPU: 5}, {CPU: 4}}, "b": {{CPU: 2}, {CPU: 2}, {CPU: 4}}}
	got, least, most := rs.judge(aim{of: "a", to: "b", value: cpu})
	if got != 2 || least != 1 || most != 2.5 {
		t.Errorf("got %v, from %v to %v", got, least, most)
	}
	if got, least, most = rs.judge(aim{of: "a", value: cpu}); got != 4 || least != 3 || most != 5 {
		t.Errorf("got %v, from %v to %v", got, least, most)
	}
	rs = results{}
	for _, a := range aims {
		for _, id := range a.runs() {
			rs[id] = []figures{{CPU: 10, Rate: 10, P50: 10, P99: 10}}
		}
	}
	rows := strings.Split(strings.TrimSpace(rs.judged().text), "\n")[2:]
	if len(rows) != len(aims) {
		t.Errorf("%d rows for %d aims", len(rows), len(aims))
	}
	for i, row := range rows { // all ratios are 1, and 10 µs are too much
		if want := aims[i].to != "" && aims[i].bound > 0; strings.HasSuffix(row, "| yes |") != want {
			t.Errorf("%s", row)
		}
	}
}

func TestInsert(t *testing.T) {
	page := "Before\n\n<!-- suite: a -->\n\nold\n\n<!-- end of a -->\n\nAfter\n"
	once := insert(page, "a", "new\n")
	if want := "Before\n\n<!-- suite: a -->\n\nnew\n\n<!-- end of a -->\n\nAfter\n"; once != want {
		t.Errorf("got %q", once)
	}
	twice := insert(once, "b", "more\n")
	if want := once + "\n<!-- suite: b -->\n\nmore\n\n<!-- end of b -->\n"; twice != want {
		t.Errorf("got %q", twice)
	}
}

// The documentation has a place for every table.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables(nil) {
		begin, end := "<!-- suite: "+table.name+" -->\n", "<!-- end of "+table.name+" -->\n"
		if strings.Count(string(page), begin) != 1 || strings.Count(string(page), end) != 1 {
			t.Errorf("no place, or more than one, for the table %q", table.name)
		}
	}
}

func TestModel(t *testing.T) {
	for _, c := range []struct{ xs, ys []float64 }{
		{[]float64{0.1, 0.2, 0.4}, []float64{25, 45, 85}}, // 200 x + 5
		{[]float64{1, 1, 1.01}, []float64{200, 200, 202}}, // one x only: 200 x
		{[]float64{0.1, 0.5, 1}, []float64{10, 99, 201}},  // below zero at zero
	} {
		slope, height := fit(c.xs, c.ys)
		for i, x := range c.xs {
			if want := c.ys[i]; math.Abs(slope*x+height-want) > want {
				t.Errorf("%v: %v x + %v gives %v for %v", c.xs, slope, height, slope*x+height, want)
			}
		}
		if math.Abs(slope-200) > 5 || height < 0 {
			t.Errorf("%v: slope %v, height %v", c.xs, slope, height)
		}
	}
	m := model{alone: 20, request: 200, item: 10}
	for n, want := range map[int]float64{1: 20, 2: 20 + 0.5*(100+10), 10: 20 + 0.9*(100+10)} {
		if got := m.cost(n, 2); math.Abs(got-want) > 1e-9 {
			t.Errorf("a check costs %v with %d nodes, want %v", got, n, want)
		}
	}
	// Without load, only what comes together travels together.
	for _, c := range []struct {
		n, batch int
		want     float64
	}{{10, 1, 1}, {2, 100, 50}, {1000, 100, 1.05}} {
		if got := shared(c.n, c.batch, 0, 1e-3); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%d nodes, %d checks: %v together, want %v", c.n, c.batch, got, c.want)
		}
	}
	// 4,000 a second for one other node; 2 gather until the window is over.
	if got := shared(3, 1, 12_000, 1e-3); math.Abs(got-3) > 1e-9 {
		t.Errorf("%v together, want 3", got)
	}
	for _, n := range []int{2, 1000} {
		together, cost := m.busy(n, 1, 2, 1e-3)
		if want := m.cost(n, together); math.Abs(cost-want) > 1e-6 || together < 1 {
			t.Errorf("%d nodes: cost %v, %v together, which costs %v", n, cost, together, want)
		}
	}
}

func TestPlots(t *testing.T) {
	rs := results{}
	for i, r := range scenarios(false) {
		x := float64(i + 1)
		rs[r.id()] = []figures{{CPU: x, P50: 100 * x, P99: 200 * x, P999: 300 * x, RSS: []float64{1},
			Metrics: map[string]float64{
				"weir_peer_request_items_sum": x, "weir_peer_request_items_count": 1}}}
	}
	dir := t.TempDir()
	if err := writePlots(dir, rs); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.svg"))
	if len(files) != len(plots())+1 {
		t.Errorf("drew %v", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(string(text))); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%s: %v", file, err)
		}
	}
	empty := t.TempDir()
	if err := writePlots(empty, results{}); err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(filepath.Join(empty, "*")); len(files) > 0 {
		t.Errorf("drew %v of nothing", files)
	}
}

func TestScale(t *testing.T) {
	s := newScale([]float64{0.09, 3, 40}, 100, 0)
	if a, b := s.at(0.09), s.at(40); a <= b || a > 100 || b < 0 {
		t.Errorf("at %v and %v", a, b)
	}
	if got, want := s.ticks(), []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20}; len(got) != len(want) {
		t.Errorf("ticks at %v", got)
	}
	places := []float64{50, 10, 52, 51}
	spread(places, 10)
	if want := []float64{50, 10, 70, 60}; !slices.Equal(places, want) {
		t.Errorf("at %v", places)
	}
}
