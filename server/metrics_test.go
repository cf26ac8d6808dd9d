package server_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"weir/server"
	member "weir/server/node"
)

// parseMetrics reads the Prometheus text format, strictly, and returns the values by series. Labels are sorted.
func parseMetrics(t *testing.T, text string) map[string]float64 {
	t.Helper()
	values, err := parseExposition(text)
	if err != nil {
		t.Fatalf("/metrics: %v in\n%s", err, text)
	}
	return values
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
	sampleEnd  = regexp.MustCompile(`^[ \t]+([^ \t]+)([ \t]+-?[0-9]+)?$`)
	typeLine   = regexp.MustCompile(`^# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)$`)
	ofFamily   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// An exposition is a text in the Prometheus format, as far as it has been read.
type exposition struct {
	values   map[string]float64
	types    map[string]bool // families that have a TYPE line
	families map[string]bool // families that have samples
	family   string          // of the last sample
	expected string          // the family that a TYPE line has just announced
	buckets  map[string][]bucket
}

// A bucket is one of a histogram's.
type bucket struct {
	le    float64
	count float64
}

func parseExposition(text string) (map[string]float64, error) {
	e := exposition{map[string]float64{}, map[string]bool{}, map[string]bool{}, "", "", map[string][]bucket{}}
	if !utf8.ValidString(text) || !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("invalid UTF-8, or no newline at the end")
	}
	for line := range strings.Lines(text) {
		if err := e.line(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("%w: %q", err, line)
		}
	}
	return e.values, e.checkHistograms()
}

func (e *exposition) line(line string) error {
	switch {
	case line == "":
		return nil
	case strings.HasPrefix(line, "#"):
		return e.comment(line)
	}
	name := metricName.FindString(line)
	if name == "" {
		return fmt.Errorf("no metric's name")
	}
	labels, rest, err := parseLabels(line[len(name):])
	if err != nil {
		return err
	}
	end := sampleEnd.FindStringSubmatch(rest)
	if end == nil {
		return fmt.Errorf("no value")
	}
	value, err := strconv.ParseFloat(end[1], 64)
	if err != nil {
		return err
	}
	return e.sample(name, labels, value)
}

func (e *exposition) comment(line string) error {
	found := typeLine.FindStringSubmatch(line)
	switch {
	case found == nil && strings.HasPrefix(line, "# TYPE"):
		return fmt.Errorf("malformed TYPE")
	case found == nil:
		return nil
	case e.types[found[1]]:
		return fmt.Errorf("second TYPE")
	case e.families[found[1]]:
		return fmt.Errorf("TYPE after samples")
	}
	e.types[found[1]], e.expected = true, found[1]
	return nil
}

// sample notes one value. The samples of a family must stand together.
func (e *exposition) sample(name string, labels map[string]string, value float64) error {
	family := ofFamily.ReplaceAllString(name, "")
	if e.expected != "" && e.expected != family && e.expected != name {
		return fmt.Errorf("not of %s, which TYPE announced", e.expected)
	}
	e.expected = ""
	if family != e.family && e.families[family] {
		return fmt.Errorf("not with the others of %s", family)
	}
	e.family, e.families[family], e.families[name] = family, true, true
	key := series(name, labels)
	if _, ok := e.values[key]; ok {
		return fmt.Errorf("the same series again")
	}
	e.values[key] = value
	if le, ok := labels["le"]; ok && strings.HasSuffix(name, "_bucket") {
		bound, err := strconv.ParseFloat(le, 64)
		if err != nil {
			return err
		}
		delete(labels, "le")
		key := series(family, labels)
		e.buckets[key] = append(e.buckets[key], bucket{bound, value})
	}
	return nil
}

// checkHistograms wants buckets in order, cumulative, up to +Inf, which is the count. Go's own histograms have no
// count.
func (e *exposition) checkHistograms() error {
	for key, buckets := range e.buckets {
		last := buckets[len(buckets)-1]
		increasing := slices.IsSortedFunc(buckets, func(a, b bucket) int { return cmp.Or(cmp.Compare(a.le, b.le), 1) })
		cumulative := slices.IsSortedFunc(buckets, func(a, b bucket) int { return cmp.Compare(a.count, b.count) })
		if !increasing || !cumulative || fmt.Sprint(last.le) != "+Inf" {
			return fmt.Errorf("histogram %s has buckets %v", key, buckets)
		}
		name, labels, _ := strings.Cut(key, "{")
		if labels != "" {
			labels = "{" + labels
		}
		count, hasCount := e.values[name+"_count"+labels]
		_, hasSum := e.values[name+"_sum"+labels]
		if hasCount && count != last.count || hasCount != hasSum || !hasCount && !strings.HasPrefix(name, "go_") {
			return fmt.Errorf("histogram %s has buckets %v, count %v", key, buckets, count)
		}
	}
	return nil
}

// parseLabels reads labels in braces, if there are any, and returns what follows them.
func parseLabels(text string) (labels map[string]string, rest string, err error) {
	labels = map[string]string{}
	if !strings.HasPrefix(text, "{") {
		return labels, text, nil
	}
	text = text[1:]
	for !strings.HasPrefix(text, "}") {
		text = strings.TrimLeft(text, " ")
		name := labelName.FindString(text)
		value, after, ok := parseLabelValue(strings.TrimPrefix(text[len(name):], "="))
		if _, twice := labels[name]; name == "" || !ok || twice || text[len(name)] != '=' {
			return nil, "", fmt.Errorf("malformed labels at %q", text)
		}
		labels[name], text = value, after
		if !strings.HasPrefix(text, ",") && !strings.HasPrefix(text, "}") {
			return nil, "", fmt.Errorf("malformed labels at %q", text)
		}
		text = strings.TrimPrefix(text, ",")
	}
	return labels, text[1:], nil
}

// parseLabelValue reads a quoted value, in which a backslash, a quote and a newline are escaped and nothing else is.
func parseLabelValue(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		return "", "", false
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return value, text[i+1:], true
		case '\\':
			i++
			at := -1
			if i < len(text) {
				at = strings.IndexByte(`\"n`, text[i])
			}
			if at < 0 {
				return "", "", false
			}
			value += "\\\"\n"[at : at+1]
		default:
			value += text[i : i+1]
		}
	}
	return "", "", false
}

// series names a series in one way only.
func series(name string, labels map[string]string) string {
	if len(labels) == 0 {
		return name
	}
	var pairs []string
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, label+"="+strconv.Quote(labels[label]))
	}
	return name + "{" + strings.Join(pairs, ",") + "}"
}

// TestParser: what the other tests rely on must be strict.
func TestParser(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"a 1\n",
		"a{} 1\n",
		"a{b=\"c\"} 1 1700000000000\n",
		"a{b=\"\\\\ \\\" \\n {}é\", c=\"\",} 1e-9\n",
		"# TYPE a counter\n# HELP a what it is\na 1\n\n# TYPE b gauge\nb NaN\n",
		"a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 2\n",
	} {
		if _, err := parseExposition(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"",
		"a 1",
		"a\n",
		"a x\n",
		"1a 1\n",
		"a-b 1\n",
		"a 1 x\n",
		"a\xff 1\n",
		"a{b} 1\n",
		"a{b=c} 1\n",
		"a{b=\"c} 1\n",
		"a{b=\"c\" 1\n",
		"a{b=\"c\nd\"} 1\n",
		"a{b=\"\\t\"} 1\n",
		"a{b=\"c\"d=\"e\"} 1\n",
		"a{b=\"c\",b=\"d\"} 1\n",
		"a{1=\"c\"} 1\n",
		"a 1\na 1\n",
		"a{b=\"c\",d=\"e\"} 1\na{d=\"e\",b=\"c\"} 1\n",
		"a{b=\"c\"} 1\nd 1\na{b=\"e\"} 1\n",
		"# TYPE a thing\na 1\n",
		"# TYPE a counter\n# TYPE a counter\na 1\n",
		"# TYPE a counter\nb 1\n",
		"a 1\n# TYPE a counter\n",
		"a_bucket{le=\"1\"} 1\na_bucket{le=\"2\"} 2\na_sum 3\na_count 2\n",
		"a_bucket{le=\"1\"} 3\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 2\n",
		"a_bucket{le=\"2\"} 1\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 2\n",
		"a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 3\n",
		"a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\n",
	} {
		if _, err := parseExposition(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// metrics returns the values of /metrics by series.
func (n *node) metrics(t *testing.T, c *http.Client) map[string]float64 {
	t.Helper()
	a := n.get(t, c, "/metrics")
	if kind := a.header.Get("Content-Type"); a.status != 200 || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Fatalf("/metrics: %d, Content-Type %q", a.status, kind)
	}
	return parseMetrics(t, a.body)
}

// expect checks all series of one metric: those that aren't named must be 0.
func expect(t *testing.T, got map[string]float64, name string, want map[string]float64) {
	t.Helper()
	for key := range want {
		if _, ok := got[key]; !ok {
			t.Errorf("no series %s", key)
		}
	}
	for key, value := range got {
		if (key == name || strings.HasPrefix(key, name+"{")) && value != want[key] {
			t.Errorf("%s is %v, want %v", key, value, want[key])
		}
	}
}

// TestMetrics counts a known mix of requests.
func TestMetrics(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		of := func(algorithm, members string) string {
			return `{"name":"n","unique_key":"` + algorithm + `","duration":60000,` +
				`"algorithm":"` + algorithm + `",` + members + `}`
		}
		token, leaky, sliding, none := "TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW", "NO_BUCKET"
		for _, items := range [][]string{
			{of(token, `"limit":2`)},
			{of(token, `"limit":2`), of(token, `"limit":2`), of(leaky, `"limit":1,"burst":-1`)},
			{
				of(leaky, `"limit":1`), of(leaky, `"limit":1`), of(sliding, `"limit":0`), of(sliding, `"limit":-1`),
				of(none, `"limit":1`), of(none, `"limit":1`),
			},
			slices.Repeat([]string{of(sliding, `"limit":1000,"hits":0`)}, 1000),
		} {
			n.check(t, c, message(items...)).results(t)
		}
		for _, body := range []string{"", "nonsense", message(with("durration", "1"))} {
			n.check(t, c, body).refusal(t, 400)
		}
		n.check(t, c, strings.Repeat(" ", 1<<20+1)).refusal(t, 413)
		n.check(t, c, message(item), "Content-Encoding", "gzip").refusal(t, 415)
		n.check(t, c, message(item), "Sec-Fetch-Site", "cross-site").refusal(t, 403)
		n.get(t, c, "/nowhere").refusal(t, 404)
		n.get(t, c, "/nowhere/else").refusal(t, 404)
		n.get(t, c, "/v1/check").refusal(t, 405)

		got := n.metrics(t, c)
		checks := func(algorithm, status string) string {
			return `weir_checks_total{algorithm="` + algorithm + `",status="` + status + `"}`
		}
		expect(t, got, "weir_checks_total", map[string]float64{
			checks("token_bucket", "ok"): 2, checks("token_bucket", "over_limit"): 1,
			checks("leaky_bucket", "ok"): 1, checks("leaky_bucket", "over_limit"): 1, checks("leaky_bucket", "error"): 1,
			checks("sliding_window", "ok"): 1000, checks("sliding_window", "over_limit"): 1,
			checks("sliding_window", "error"): 1, checks("unknown", "error"): 2,
		})
		expect(t, got, "weir_rejected_requests_total", map[string]float64{
			`weir_rejected_requests_total{reason="unreadable"}`:   3,
			`weir_rejected_requests_total{reason="too_large"}`:    1,
			`weir_rejected_requests_total{reason="encoding"}`:     1,
			`weir_rejected_requests_total{reason="cross_origin"}`: 1,
			`weir_rejected_requests_total{reason="not_found"}`:    2,
			`weir_rejected_requests_total{reason="method"}`:       1,
		})
		expect(t, got, "weir_request_items_sum", map[string]float64{"weir_request_items_sum": 1010})
		expect(t, got, "weir_request_items_count", map[string]float64{"weir_request_items_count": 4})
		bucket := func(le string) string { return `weir_request_items_bucket{le="` + le + `"}` }
		expect(t, got, "weir_request_items_bucket", map[string]float64{
			bucket("1"): 1, bucket("2"): 1, bucket("5"): 2, bucket("10"): 3, bucket("20"): 3, bucket("50"): 3,
			bucket("100"): 3, bucket("200"): 3, bucket("500"): 3, bucket("1000"): 4, bucket("+Inf"): 4,
		})
		expect(t, got, "weir_request_duration_seconds_count", map[string]float64{"weir_request_duration_seconds_count": 4})
		expect(t, got, "weir_state_entries", map[string]float64{"weir_state_entries": 2})
	})
}

// TestStateMetrics fills the memory for states, and lets them run out.
func TestStateMetrics(t *testing.T) {
	t.Parallel()
	const size = 4
	clock := newClock()
	n := start(t, func(m *member.Options, _ *server.Options) { m.CacheSize, m.Now = size, clock.Now })
	c := newClient(t, 1)
	fill := func(prefix, limit string, keys int) {
		for i := range keys {
			item := fmt.Sprintf(`{"name":%q,"unique_key":"%d","limit":%s,"duration":60000}`, prefix, i, limit)
			n.check(t, c, message(item)).results(t)
		}
	}
	const used, drained = `weir_state_evictions_total{kind="used"}`, `weir_state_evictions_total{kind="drained"}`

	fill("used", "10", size)
	got := n.metrics(t, c)
	expect(t, got, "weir_state_entries", map[string]float64{"weir_state_entries": size})
	expect(t, got, "weir_state_evictions_total", map[string]float64{})

	fill("more", "10", 3)
	got = n.metrics(t, c)
	expect(t, got, "weir_state_entries", map[string]float64{"weir_state_entries": size})
	expect(t, got, "weir_state_evictions_total", map[string]float64{used: 3})

	fill("drained", "1", 10*size)
	got = n.metrics(t, c)
	if got[used]+got[drained] != 3+10*size || got[drained] == 0 {
		t.Errorf("%v used and %v drained states evicted, want %d in all", got[used], got[drained], 3+10*size)
	}
	expect(t, got, "weir_state_expired_total", map[string]float64{})

	clock.Add(time.Minute)
	n.limiter.Sweep()
	got = n.metrics(t, c)
	expect(t, got, "weir_state_entries", map[string]float64{})
	expect(t, got, "weir_state_expired_total", map[string]float64{"weir_state_expired_total": size})
}

// TestMetricsHideRequests: no text of a request gets into the metrics, and no request adds to their number.
func TestMetricsHideRequests(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	before := n.metrics(t, c)
	for i, odd := range []string{
		`secret`, `secret"`, `secret\`, "secret\n", `secret{}`, `secret"} 1`, "secret\u2028é\U0001f600", "secret\x7f",
		strings.Repeat("secret", 30),
	} {
		text := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(odd)
		for _, field := range []string{"name", "unique_key", "algorithm", "behavior", "time_zone"} {
			n.check(t, c, message(with(field, `"`+text+`"`))).results(t)
		}
		n.check(t, c, message(with(text, "1"))).refusal(t, 400)
		n.get(t, c, "/secret"+strconv.Itoa(i)).refusal(t, 404)
		do(t, c, n.request(t, "SECRET"+strconv.Itoa(i), "/v1/check", nil)).refusal(t, 405)
		n.check(t, c, message(item), "X-Request-Id", "secret"+strconv.Itoa(i), "Content-Encoding", "secret").refusal(t, 415)
	}
	if text := n.get(t, c, "/metrics").body; strings.Contains(strings.ToLower(text), "secret") {
		t.Errorf("text of requests in the metrics:\n%s", text)
	}
	after := n.metrics(t, c)
	if a, b := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)); !slices.Equal(a, b) {
		t.Errorf("series before: %d, after: %d", len(a), len(b))
	}
}

// TestMetricsOfTheProcess: what is running, and what it takes.
func TestMetricsOfTheProcess(t *testing.T) {
	t.Parallel()
	odd := "1.2.3 \"beta\" \\ é\n"
	n, c := start(t, func(_ *member.Options, o *server.Options) { o.Version = odd }), newClient(t, 1)
	got := n.metrics(t, c)
	info := ""
	for key, value := range got {
		if strings.HasPrefix(key, "weir_build_info{") {
			info = fmt.Sprint(key, " ", value)
		}
		if strings.HasPrefix(key, "weir_") && !(value >= 0) {
			t.Errorf("%s is %v", key, value)
		}
	}
	if !strings.Contains(info, "version="+strconv.Quote(odd)) || !strings.Contains(info, `goversion="go1.`) ||
		!strings.HasSuffix(info, " 1") {
		t.Errorf("weir_build_info: %q", info)
	}
	for _, key := range []string{
		"go_goroutines", "go_memstats_alloc_bytes", "process_cpu_seconds_total", "process_resident_memory_bytes",
		"process_start_time_seconds",
	} {
		if got[key] <= 0 && key != "process_cpu_seconds_total" {
			t.Errorf("%s is %v", key, got[key])
		}
		if _, ok := got[key]; !ok {
			t.Errorf("no %s", key)
		}
	}
}
