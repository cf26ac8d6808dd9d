//go:build linux

// Command load is a load generator for weir and for what weir is compared with. It runs on Linux.
//
// It sends requests that each carry a list of checks, verifies every answer
// (status, number of results, no error), and prints one JSON line with
// throughput, latency percentiles and, when given the servers' process ids,
// the CPU time the servers spent per check.
//
// Closed loop (-rate 0): every connection sends its next request as soon as the
// previous answer has arrived. Open loop (-rate R): requests have fixed planned
// times; latency is counted from the planned time, so a stalled server can not
// hide its stall (no coordinated omission).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type config struct {
	urls     []string // full URLs; one connection keeps to one of them
	shape    shape
	batch    int
	conns    int
	threads  int
	warmup   time.Duration
	duration time.Duration
	rate     float64
	keys     int
	zipf     float64
	seed     uint64
	sample   int
}

func main() {
	var (
		urlF   = flag.String("url", "", "base URL of the server, for example http://127.0.0.1:8080")
		urlsF  = flag.String("urls", "", "comma-separated base URLs; connections are spread over them round robin")
		shapeF = flag.String("shape", "weir",
			"answers: weir, or none (a fixed answer, of which only the status is checked)")
		batch    = flag.Int("batch", 1, "checks per request")
		keys     = flag.Int("keys", 100000, "number of distinct keys")
		keyPre   = flag.String("key-prefix", "", "key prefix (default: a fixed 31 characters, so that keys are 40 bytes)")
		zipf     = flag.Float64("zipf", 0, "Zipf exponent of key popularity; 0 = uniform")
		behavior = flag.String("behavior", "batching", "batching | no_batching | global")
		algo     = flag.String("algorithm", "token", "token | leaky | sliding")
		name     = flag.String("name", "bench", "name of the limit")
		hits     = flag.Int("hits", 1, "hits per check")
		limit    = flag.Int("limit", 1000000000, "limit per window")
		window   = flag.Duration("window", time.Hour, "length of the window")
		conns    = flag.Int("conns", 64, "connections")
		threads  = flag.Int("threads", 1, "generator threads ")
		warmup   = flag.Duration("warmup", time.Second, "time before the measured part")
		duration = flag.Duration("duration", 10*time.Second, "measured time")
		rate     = flag.Float64("rate", 0, "requests per second in all (open loop); 0 = closed loop")
		seed     = flag.Uint64("seed", 1, "seed of the key choice")
		pidsF    = flag.String("pids", "", "comma-separated process ids of the servers, for CPU time and memory")
		sample   = flag.Int("sample", 2000, "decode every n-th answer fully with encoding/json (0 = never)")
		floor    = flag.String("floor", "", "serve the floor at this address instead, with answers to -batch checks")
		known    = flag.Int("known", 0, "keys that the floor remembers")
		fillOnly = flag.Bool("fill", false, "ask for each of the -keys once, 1,000 in a request, print nothing and end")
		counters = flag.Bool("metrics", false, "add what the counters on the servers' /metrics grew by")
		label    = flag.String("label", "", "free text copied to the output")
	)
	flag.Parse()
	debug.SetGCPercent(400)

	if *floor != "" {
		fatal("%v", serveFloor(*floor, *batch, *known))
	}
	bases := strings.Split(*urlsF, ",")
	if *urlsF == "" {
		if *urlF == "" {
			fatal("give -url or -urls")
		}
		bases = []string{*urlF}
	}
	sh, err := newShape(shapeOptions{
		shape: *shapeF, name: *name, keyPrefix: *keyPre, behavior: *behavior, algorithm: *algo,
		hits: *hits, limit: *limit, window: *window,
	})
	if err != nil {
		fatal("%v", err)
	}
	cfg := config{
		shape: sh, batch: *batch, conns: *conns, threads: min(*threads, *conns), warmup: *warmup, duration: *duration,
		rate: *rate, keys: *keys, zipf: *zipf, seed: *seed, sample: *sample,
	}
	for _, b := range bases {
		u, err := url.Parse(strings.TrimSpace(b))
		if err != nil || u.Host == "" {
			fatal("bad URL %q", b)
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = sh.path
		}
		cfg.urls = append(cfg.urls, u.String())
	}
	pids, err := parsePids(*pidsF)
	if err != nil {
		fatal("%v", err)
	}

	if *fillOnly {
		if err := fill(&cfg); err != nil {
			fatal("%v", err)
		}
		return
	}

	// One thread per loop, one to spare for the runtime.
	runtime.GOMAXPROCS(min(runtime.NumCPU(), cfg.threads+1))

	clk := newClock(cfg.warmup, cfg.duration)
	var srv0, srv1 []procUsage
	var own0, own1 time.Duration
	var mach0, mach1 machineUsage
	var counted0, counted1 map[string]float64
	clk.onStart = func() {
		srv0, own0, mach0 = usageOf(pids), ownCPU(), machine()
		if *counters {
			counted0 = countersOf(cfg.urls)
		}
	}
	clk.onEnd = func() {
		srv1, own1, mach1 = usageOf(pids), ownCPU(), machine()
		if *counters {
			counted1 = countersOf(cfg.urls)
		}
	}
	st, err := runHTTP1(&cfg, clk)
	if err != nil {
		fatal("%v", err)
	}
	clk.wait()

	secs := clk.measured.Seconds()
	out := result{
		Label: *label, Shape: *shapeF, Batch: *batch, Conns: *conns,
		Keys: *keys, Zipf: *zipf, Behavior: *behavior, Algorithm: *algo, Rate: *rate,
		Seconds: round(secs, 3), Requests: st.requests, Checks: st.checks,
		RequestsPerS: round(float64(st.requests)/secs, 1), ChecksPerS: round(float64(st.checks)/secs, 1),
		P50: st.hist.quantile(0.50), P90: st.hist.quantile(0.90), P99: st.hist.quantile(0.99),
		P999: st.hist.quantile(0.999), Max: round(float64(st.hist.max)/1e3, 1), Mean: round(st.hist.mean()/1e3, 1),
		Errors: st.errors, FirstError: st.firstError, OverLimit: st.overLimit,
		Admitted: int64(st.checks) - int64(st.overLimit), Sampled: st.sampled,
		BytesOut: st.bytesOut, BytesIn: st.bytesIn,
		GenCPUSeconds: round((own1 - own0).Seconds(), 3), Metrics: growth(counted0, counted1),
	}
	if st.requests > 0 {
		out.GenCPUPerReq = round((own1-own0).Seconds()*1e6/float64(st.requests), 3)
	}
	var cpu time.Duration
	for i := range srv1 {
		d := srv1[i].cpu - srv0[i].cpu
		cpu += d
		out.ServerCPU = append(out.ServerCPU, round(d.Seconds(), 3))
		out.ServerRSSMiB = append(out.ServerRSSMiB, round(float64(srv1[i].rss)/(1<<20), 1))
	}
	if len(pids) > 0 {
		// What neither the servers nor this program used: noise from others.
		out.OtherCPU = round((mach1.busy - mach0.busy - cpu - (own1 - own0)).Seconds(), 3)
	}
	out.Steal = round((mach1.steal - mach0.steal).Seconds(), 3)
	if len(pids) > 0 && st.checks > 0 {
		out.ServerCPUPerCheck = round(cpu.Seconds()*1e6/float64(st.checks), 4)
		out.ServerCPUPerReq = round(cpu.Seconds()*1e6/float64(st.requests), 3)
	}
	b, _ := json.Marshal(out)
	fmt.Println(string(b))
	if st.errors > 0 {
		os.Exit(3)
	}
}

type result struct {
	Label             string    `json:"label,omitempty"`
	Shape             string    `json:"shape"`
	Batch             int       `json:"batch"`
	Conns             int       `json:"conns"`
	Keys              int       `json:"keys"`
	Zipf              float64   `json:"zipf"`
	Behavior          string    `json:"behavior"`
	Algorithm         string    `json:"algorithm"`
	Rate              float64   `json:"rate"`
	Seconds           float64   `json:"seconds"`
	Requests          uint64    `json:"requests"`
	Checks            uint64    `json:"checks"`
	RequestsPerS      float64   `json:"requests_per_s"`
	ChecksPerS        float64   `json:"checks_per_s"`
	Mean              float64   `json:"mean_us"`
	P50               float64   `json:"p50_us"`
	P90               float64   `json:"p90_us"`
	P99               float64   `json:"p99_us"`
	P999              float64   `json:"p999_us"`
	Max               float64   `json:"max_us"`
	Errors            uint64    `json:"errors"`
	FirstError        string    `json:"first_error,omitempty"`
	OverLimit         uint64    `json:"over_limit"`
	Admitted          int64     `json:"admitted"`
	Sampled           uint64    `json:"fully_decoded"`
	BytesOut          uint64    `json:"bytes_out"`
	BytesIn           uint64    `json:"bytes_in"`
	GenCPUSeconds     float64   `json:"gen_cpu_s"`
	GenCPUPerReq      float64   `json:"gen_cpu_us_per_req"`
	ServerCPU         []float64 `json:"server_cpu_s,omitempty"`
	ServerCPUPerReq   float64   `json:"server_cpu_us_per_req,omitempty"`
	ServerCPUPerCheck float64   `json:"server_cpu_us_per_check,omitempty"`
	ServerRSSMiB      []float64 `json:"server_rss_mib,omitempty"`
	OtherCPU          float64   `json:"other_cpu_s,omitempty"`
	Steal             float64   `json:"steal_s"`

	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// stats is what one worker counts; only requests answered inside the measured
// time count.
type stats struct {
	hist       histogram
	requests   uint64
	checks     uint64
	overLimit  uint64
	errors     uint64
	sampled    uint64
	bytesIn    uint64
	bytesOut   uint64
	firstError string
}

func (s *stats) fail(format string, args ...any) {
	s.errors++
	if s.firstError == "" {
		s.firstError = fmt.Sprintf(format, args...)
	}
}

func (s *stats) merge(o *stats) {
	s.hist.merge(&o.hist)
	s.requests += o.requests
	s.checks += o.checks
	s.overLimit += o.overLimit
	s.errors += o.errors
	s.sampled += o.sampled
	s.bytesIn += o.bytesIn
	s.bytesOut += o.bytesOut
	if s.firstError == "" {
		s.firstError = o.firstError
	}
}

// clock marks the measured part of a run: [start+warmup, start+warmup+duration).
type clock struct {
	base     time.Time
	from, to time.Duration // since base
	onStart  func()
	onEnd    func()
	measured time.Duration
	done     chan struct{}
}

func newClock(warmup, duration time.Duration) *clock {
	return &clock{from: warmup, to: warmup + duration, done: make(chan struct{})}
}

func (c *clock) begin() {
	c.base = time.Now()
	go func() {
		time.Sleep(time.Until(c.base.Add(c.from)))
		t0 := time.Now()
		c.onStart()
		time.Sleep(time.Until(c.base.Add(c.to)))
		c.onEnd()
		c.measured = time.Since(t0)
		close(c.done)
	}()
}

func (c *clock) now() time.Duration            { return time.Since(c.base) }
func (c *clock) inside(t time.Duration) bool   { return t >= c.from && t < c.to }
func (c *clock) finished(t time.Duration) bool { return t >= c.to }
func (c *clock) wait()                         { <-c.done }

func parsePids(s string) ([]int, error) {
	var pids []int
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("bad process id %q", f)
		}
		pids = append(pids, p)
	}
	return pids, nil
}

type procUsage struct {
	cpu time.Duration
	rss uint64
}

// usageOf reads user+system time and resident memory of each process.
func usageOf(pids []int) []procUsage {
	us := make([]procUsage, len(pids))
	for i, p := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			fatal("process %d: %v", p, err)
		}
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+2:])
		ut, _ := strconv.ParseInt(f[11], 10, 64)
		st, _ := strconv.ParseInt(f[12], 10, 64)
		pages, _ := strconv.ParseUint(f[21], 10, 64)
		us[i] = procUsage{cpu: time.Duration(ut+st) * (time.Second / 100), rss: pages * uint64(os.Getpagesize())}
	}
	return us
}

type machineUsage struct{ busy, steal time.Duration }

// machine reads the whole machine's busy and stolen CPU time.
func machine() (m machineUsage) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		v, _ := strconv.ParseInt(f, 10, 64)
		d := time.Duration(v) * (time.Second / 100)
		switch i {
		case 0, 1, 2, 5, 6: // user, nice, system, irq, softirq
			m.busy += d
		case 7:
			m.steal += d
		}
	}
	return m
}

func ownCPU() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func round(x float64, digits int) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', digits, 64), 64)
	return r
}

func fatal(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "load: "+format+"\n", args...)
	os.Exit(2)
}
