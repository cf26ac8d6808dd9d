//go:build linux

package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A plot shows lines over two logarithmic axes.
type plot struct {
	file, title, x, y string
	lines             []line
}

// A line is one of a plot's. Its points come from the runs that it names.
type line struct {
	name, color string
	dashed      bool
	at          []float64 // x of each point
	ids         []string  // the run of each point
	y           func(rs results, id string) float64
}

const (
	gray   = "#6e7781"
	blue   = "#0969da"
	orange = "#bc4c00"
	green  = "#1a7f37"
)

// plots lists what is drawn over two axes.
func plots() []plot {
	return []plot{
		{"cpu.svg", "What a check costs", "items per request", "server CPU µs per check", []line{
			perItems("floor", gray, "floor", ""),
			perItems("1,000 keys", green, "one node", ", 1,000 keys"),
			perItems("100,000 keys", blue, "one node", ""),
		}},
		{"load.svg", "Latency of single checks, open loop", "checks a second", "ms", []line{
			perLoad("one node, p50", blue, "one node", false, p50),
			perLoad("one node, p99", blue, "one node", true, p99),
			perLoad("three nodes, p50", orange, "three nodes", false, p50),
			perLoad("three nodes, p99", orange, "three nodes", true, p99),
		}},
		{"nodes.svg", "What a check costs in a cluster, closed loop", "nodes", "CPU µs per check, all nodes together", []line{
			perNodes("1 per request", orange, series[2], false),
			perNodes("formula", orange, series[2], true),
			perNodes("100 per request", blue, series[3], false),
			perNodes("formula", blue, series[3], true),
		}},
	}
}

func medians(of value) func(results, string) float64 {
	return func(rs results, id string) float64 { return rs.median(id, of) }
}

func perItems(name, color, who, keys string) line {
	l := line{name: name, color: color, y: medians(cpu)}
	for _, batch := range batches {
		l.at = append(l.at, float64(batch))
		l.ids = append(l.ids, tableOne+": "+who+", "+perRequest(batch)+keys)
	}
	return l
}

func perLoad(name, color, who string, dashed bool, of value) line {
	l := line{name: name, color: color, dashed: dashed}
	l.y = func(rs results, id string) float64 { return rs.median(id, of) / 1000 }
	for _, rate := range loads {
		l.at = append(l.at, float64(rate))
		l.ids = append(l.ids, tableOpen+": "+openRow(who, rate))
	}
	return l
}

func perNodes(name, color string, s asked, formula bool) line {
	l := line{name: name, color: color, dashed: formula, ids: s.ids(), y: medians(cpu)}
	for _, n := range clusters {
		l.at = append(l.at, float64(n))
	}
	if formula {
		l.y = func(rs results, id string) float64 {
			n := clusters[slices.Index(l.ids, id)]
			return rs.model(s).cost(n, rs.median(id, (*figures).shared))
		}
	}
	return l
}

// writePlots draws those of which everything was measured.
func writePlots(dir string, rs results) error {
	drawn := map[string]string{}
	for _, p := range plots() {
		var ids []string
		for _, l := range p.lines {
			ids = append(ids, l.ids...)
		}
		if rs.complete(ids) {
			drawn[p.file] = p.draw(rs)
		}
	}
	if rs.complete(latencyRuns) {
		drawn["latency.svg"] = drawLatencies(rs)
	}
	for file, svg := range drawn {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A canvas is an SVG picture in the making. It has its own background, so that it can be read on any page.
type canvas struct {
	strings.Builder
	width, height float64
}

func newCanvas(width, height float64, title string) *canvas {
	c := &canvas{width: width, height: height}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" `, width, height)
	c.WriteString(`font-family="system-ui, sans-serif" font-size="13">` + "\n")
	fmt.Fprintf(c, "<title>%s</title>\n", html.EscapeString(title))
	fmt.Fprintf(c, `<rect x="0.5" y="0.5" width="%g" height="%g" rx="8" fill="#ffffff" stroke="#d0d7de"/>`+"\n",
		width-1, height-1)
	c.text(20, 30, "start", "#1f2328", `font-size="16" font-weight="600"`, title)
	return c
}

func (c *canvas) text(x, y float64, anchor, color, more, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`+"\n",
		x, y, anchor, color, more, html.EscapeString(text))
}

func (c *canvas) stroke(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (c *canvas) dot(x, y float64, color string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", x, y, color)
}

func (c *canvas) end() string { return c.String() + "</svg>\n" }

// A scale maps values to places, logarithmically.
type scale struct{ low, high, from, to float64 }

// newScale makes room for all values, and for the ticks around them.
func newScale(all []float64, from, to float64) scale {
	return scale{slices.Min(all) / 1.15, slices.Max(all) * 1.15, from, to}
}

func (s scale) at(v float64) float64 {
	return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// ticks are 1, 2 and 5, and so on; over wide ranges only 1, 10 ...
func (s scale) ticks() (ticks []float64) {
	steps := []float64{1, 2, 5}
	if s.high/s.low > 2000 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(s.low)); e <= math.Log10(s.high); e++ {
		for _, step := range steps {
			if v := step * math.Pow(10, e); s.low <= v && v <= s.high {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

const (
	gridColor  = "#e6e8eb"
	labelColor = "#57606a"
)

func (p *plot) draw(rs results) string {
	const width, height, left, right, top, bottom = 760, 430, 70, 150, 72, 55
	c := newCanvas(width, height, p.title)
	var xs, ys []float64
	for _, l := range p.lines {
		for i, id := range l.ids {
			xs, ys = append(xs, l.at[i]), append(ys, l.y(rs, id))
		}
	}
	x, y := newScale(xs, left, width-right), newScale(ys, height-bottom, top)
	for _, v := range y.ticks() {
		c.stroke(left, y.at(v), width-right, y.at(v), gridColor)
		c.text(left-8, y.at(v)+4, "end", labelColor, "", short(v))
	}
	for _, v := range p.lines[0].at {
		c.stroke(x.at(v), top, x.at(v), height-bottom, gridColor)
		c.text(x.at(v), height-bottom+20, "middle", labelColor, "", short(v))
	}
	c.text((left+width-right)/2, height-14, "middle", labelColor, "", p.x)
	c.text(left-8, top-12, "start", labelColor, "", p.y)
	names := make([]float64, len(p.lines)) // where each line's name goes
	for i, l := range p.lines {
		names[i] = y.at(l.y(rs, l.ids[len(l.ids)-1]))
	}
	spread(names, 17)
	for i, l := range p.lines {
		l.draw(c, rs, x, y)
		c.text(width-right+10, names[i]+4, "start", l.color, "", l.name)
	}
	return c.end()
}

func (l *line) draw(c *canvas, rs results, x, y scale) {
	var path []string
	for i, id := range l.ids {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(l.at[i]), y.at(l.y(rs, id))))
	}
	dashes := ""
	if l.dashed {
		dashes = ` stroke-dasharray="6 4"`
	}
	fmt.Fprintf(c, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`+"\n",
		strings.Join(path, " "), l.color, dashes)
	for i, id := range l.ids {
		c.dot(x.at(l.at[i]), y.at(l.y(rs, id)), l.color)
	}
}

// spread moves places apart that are closer to each other than gap.
func spread(places []float64, gap float64) {
	order := make([]int, len(places))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, places[a]-places[b])) })
	for i := 1; i < len(order); i++ {
		places[order[i]] = max(places[order[i]], places[order[i-1]]+gap)
	}
}

// short writes the value of a tick.
func short(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.2g", v)
	}
	return count(int(math.Round(v)))
}

// latencyRuns are the rows of the plot of latencies.
var latencyRuns = []string{
	tableOpen + ": " + openRow("floor", loads[0]),
	tableOpen + ": " + openRow("one node", loads[0]),
	tableOpen + ": " + openRow("three nodes", loads[0]),
}

// drawLatencies has a row for each run, with a dot for each percentile.
func drawLatencies(rs results) string {
	const width, height, left, right, top, step = 760, 275, 110, 50, 80, 54
	c := newCanvas(width, height, "Latency of single checks at "+count(loads[0])+" a second")
	percentiles := []struct {
		name  string
		of    value
		place float64 // of its name; one is below, since two percentiles may be close to each other
	}{{"p50", p50, -10}, {"p99", p99, 19}, {"p99.9", p999, -10}}
	var all []float64
	for _, id := range latencyRuns {
		for _, p := range percentiles {
			all = append(all, rs.median(id, p.of))
		}
	}
	x, bottom := newScale(all, left, width-right), float64(top+step*len(latencyRuns)-15)
	for _, v := range x.ticks() {
		c.stroke(x.at(v), top-20, x.at(v), bottom, gridColor)
		c.text(x.at(v), bottom+18, "middle", labelColor, "", short(v)+" µs")
	}
	for i, id := range latencyRuns {
		y, color := float64(top+step*i)+10, []string{gray, blue, orange}[i]
		name, _, _ := strings.Cut(strings.TrimPrefix(id, tableOpen+": "), ",")
		c.text(left-16, y+4, "end", color, "", name)
		c.stroke(x.at(rs.median(id, p50)), y, x.at(rs.median(id, p999)), y, color)
		for _, p := range percentiles {
			v := rs.median(id, p.of)
			c.dot(x.at(v), y, color)
			c.text(x.at(v), y+p.place, "middle", color, `font-size="11"`, p.name+" "+number(v))
		}
	}
	return c.end()
}
