//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// bench makes runs.
type bench struct {
	options
	ctx        context.Context
	weir, load string // the programs
}

// figures are what came out of one run. The JSON is the generator's.
type figures struct {
	Seconds  float64            `json:"seconds"`
	Checks   float64            `json:"checks"`
	Rate     float64            `json:"checks_per_s"`
	P50      float64            `json:"p50_us"`
	P99      float64            `json:"p99_us"`
	P999     float64            `json:"p999_us"`
	CPU      float64            `json:"server_cpu_us_per_check"` // of all servers
	RSS      []float64          `json:"server_rss_mib"`
	OtherCPU float64            `json:"other_cpu_s"`
	Metrics  map[string]float64 `json:"metrics"` // by how much the counters of all servers grew

	// Only of live keys.
	Heap float64 `json:"-"` // bytes, garbage not counted
	GC   float64 `json:"-"` // the share of the processors' time that the garbage collector took
	keys float64
}

func (f *figures) others() float64    { return max(0, f.OtherCPU) / f.Seconds / float64(runtime.NumCPU()) }
func (f *figures) allocs() float64    { return f.Metrics["go_memstats_mallocs_total"] / f.Checks }
func (f *figures) bytes() float64     { return f.Metrics["go_memstats_alloc_bytes_total"] / f.Checks }
func (f *figures) forwarded() float64 { return f.Metrics["weir_peer_request_items_sum"] / f.Checks }

// shared says how many items a request from node to node had.
func (f *figures) shared() float64 {
	return f.Metrics["weir_peer_request_items_sum"] / f.Metrics["weir_peer_request_items_count"]
}

// roundTrip says how long a request from node to node took, in seconds.
func (f *figures) roundTrip() float64 {
	return f.Metrics["weir_peer_request_duration_seconds_sum"] / f.Metrics["weir_peer_request_duration_seconds_count"]
}

// warning tells of checks that another node than their owner decided, which costs less than it should. A machine that
// is too busy has some.
func (f *figures) warning() string {
	share := f.Metrics["weir_degraded_checks_total"] / f.Checks
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("; DEGRADED: %.2f %%", 100*share)
}

// parse reads what the generator printed.
func parse(line []byte) (f figures, err error) {
	if err := json.Unmarshal(line, &f); err != nil {
		return f, fmt.Errorf("%w: %.200s", err, line)
	}
	if f.Checks == 0 || f.Seconds == 0 {
		return f, fmt.Errorf("nothing was measured: %.200s", line)
	}
	return f, nil
}

// measure starts fresh servers, has them know all keys, makes r and ends them.
func (b *bench) measure(r run) (f figures, err error) {
	s, err := b.start(r)
	defer s.kill()
	if err != nil {
		return f, err
	}
	about := []string{"-urls", "http://" + strings.Join(s.addrs, ",http://"), "-keys", strconv.Itoa(r.keys)}
	about = append(about, r.flags...)
	if r.nodes == 0 {
		about = append(about, "-shape", "none")
	} else if !slices.Contains(r.flags, "global") { // which would make a copy of each key
		if _, err := b.run(append(about, "-fill")...); err != nil {
			return f, fmt.Errorf("while filling: %w", err)
		}
	}
	about = append(about, "-metrics", "-pids", s.pids(), "-batch", strconv.Itoa(r.batch), "-conns",
		strconv.Itoa(r.connections()))
	if r.live {
		return b.measureLive(r, s.addrs[0], about)
	}
	return b.generate(b.seconds, append(about, "-rate", strconv.Itoa(r.rate))...)
}

// connections are as many for each node.
func (r *run) connections() int {
	usual := map[int]int{100: 16, 1000: 4}
	conns := cmp.Or(r.conns, usual[r.batch], 64)
	return conns - conns%max(1, r.nodes)
}

// measureLive measures twice: latencies at a fixed rate; then, at full speed, memory and garbage collection.
//
// The sweep looks only at shards where it expects a limit to be whole again. So that this is all of them, the first
// part asks with a short window, which comes into force for the keys that it takes: all shards have some of them. Most
// keys stay as they are.
func (b *bench) measureLive(r run, addr string, about []string) (figures, error) {
	f, err := b.generate(5*b.seconds, append(about, "-rate", strconv.Itoa(r.rate), "-window", "2s")...)
	if err != nil {
		return f, err
	}
	lowest := watchHeap(addr)
	full, err := b.generate(5*b.seconds, about...)
	f.Heap, f.keys, f.RSS = lowest(), float64(r.keys), full.RSS
	f.GC = full.Metrics["go_gc_cpu_seconds_total"] / full.Seconds / float64(runtime.NumCPU())
	return f, err
}

// watchHeap looks at a server's heap again and again until the function that it returns is called, which returns how
// small it was at least. That is the size just after a collection, since no call asks for one: hardly more than what is
// live.
func watchHeap(addr string) (lowest func() float64) {
	stop, answer := make(chan struct{}), make(chan float64)
	go func() {
		least := math.Inf(1)
		for tick := time.Tick(100 * time.Millisecond); ; {
			select {
			case <-tick:
				if size, err := metric(addr, "go_memstats_heap_alloc_bytes"); err == nil {
					least = min(least, size)
				}
			case <-stop:
				answer <- least
				return
			}
		}
	}()
	return func() float64 {
		close(stop)
		return <-answer
	}
}

// metric asks a server for one of its numbers.
func metric(addr, name string) (float64, error) {
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no %s", name)
}

func (b *bench) generate(seconds int, flags ...string) (f figures, err error) {
	out, err := b.run(append(flags, "-duration", strconv.Itoa(seconds)+"s")...)
	if err != nil {
		return f, err
	}
	return parse(out)
}

// run runs the generator. That fails if a single answer is wrong.
func (b *bench) run(flags ...string) ([]byte, error) {
	cmd := exec.CommandContext(b.ctx, b.load, flags...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("generator: %w: %.1000s", err, out)
	}
	return out, nil
}

// servers are the processes of a run.
type servers struct {
	addrs []string
	procs []*exec.Cmd
}

// start starts what r asks, and waits until it is ready. What it gives is to be killed, even after an error.
func (b *bench) start(r run) (*servers, error) {
	s := &servers{}
	for i := range max(1, r.nodes) {
		s.addrs = append(s.addrs, fmt.Sprintf("127.0.0.1:%d", b.port+i))
	}
	for _, addr := range s.addrs {
		cmd := exec.Command(b.weir)
		cmd.Env = append(os.Environ(), "WEIR_LOG_LEVEL=error", "WEIR_LISTEN="+addr,
			"WEIR_CACHE_SIZE="+strconv.Itoa(r.cacheSize()))
		if r.nodes == 0 {
			cmd = exec.Command(b.load, "-floor", addr, "-batch", strconv.Itoa(r.batch), "-known", strconv.Itoa(r.known))
		} else if r.nodes > 1 {
			cmd.Env = append(cmd.Env, "WEIR_PEERS="+strings.Join(s.addrs, ","))
		}
		cmd.Stderr = os.Stderr
		// Should this process be killed, nothing else would end them.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return s, err
		}
		s.procs = append(s.procs, cmd)
	}
	for _, addr := range s.addrs {
		if err := b.waitFor(addr); err != nil {
			return s, err
		}
	}
	return s, nil
}

// cacheSize leaves room, since keys don't spread evenly over the shards. All numbers of live keys get the same.
func (r *run) cacheSize() int {
	if r.live {
		return 2 * slices.Max(lives)
	}
	return 1_000_000
}

func (b *bench) waitFor(addr string) error {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not become ready: %w", addr, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *servers) pids() string {
	var b bytes.Buffer
	for _, p := range s.procs {
		fmt.Fprintf(&b, "%d,", p.Process.Pid)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// kill ends all, without the time that it would take them to leave a cluster in good order.
func (s *servers) kill() {
	for _, p := range s.procs {
		p.Process.Kill()
	}
	for _, p := range s.procs {
		p.Wait()
	}
}
