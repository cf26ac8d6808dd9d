package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/server"
	member "weir/server/node"
)

// TestStopLosesNothing stops a node while it reads a request: the other one takes over its limits, and counts that
// request, too; or hears of it afterwards, if it can't be reached. Then that stops as the last one, and its successor
// goes on from what it has written.
func TestStopLosesNothing(t *testing.T) {
	for _, reached := range []bool{true, false} {
		t.Run(fmt.Sprint("reached ", reached), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "counts")
			snapshot := func(i int, m *member.Options, _ *server.Options) {
				if i > 0 {
					m.Snapshot = file
				}
			}
			c := startCluster(t, 2, snapshot)
			stops, stays := c.nodes[0], c.nodes[1]
			keys := append(c.keysOf(stops, 20), c.keysOf(stays, 20)...)
			stays.use(t, keys, 3)
			finish := stops.begin(t, keys[0])
			var stopping sync.WaitGroup
			stopping.Go(stops.stop)
			eventually(t, "it listens no more", func() bool {
				conn, err := net.Dial("tcp", stops.name)
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			counts := stays.name
			if !reached {
				c.wires.set(stops, stays, cut)
				counts = stops.name
			}
			if r := finish(); r.Status != "OK" || r.Metadata["owner"] != counts || (r.Metadata["degraded"] == "") != reached {
				t.Errorf("the request that it was reading: %s", describe(r))
			}
			c.wires.set(stops, stays, whole)
			stopping.Wait()
			wantAll(t, keys[:1], 6, stays)
			wantAll(t, keys[1:], 7, stays)
			if held := metrics(t, stays)["weir_state_entries"]; held != float64(len(keys)) {
				t.Errorf("the other one holds %v limits, want %d", held, len(keys))
			}
			stays.stop()
			next := c.again(t, stays, snapshot)
			next.know(next)
			wantAll(t, keys[:1], 6, next)
			wantAll(t, keys[1:], 7, next)
		})
	}
}

// begin sends the first half of a check, which the node begins to read. The function sends the rest and returns the
// result.
func (n *node) begin(t *testing.T, key string) (finish func() result) {
	t.Helper()
	text := fmt.Sprintf(`{"rate_limits":[%s]}`, item(key))
	body, w := io.Pipe()
	reads := make(chan struct{})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(reads) }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/check", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Expect", "100-continue")
	answers := make(chan result, 1)
	go func() {
		transport := &http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}
		var answer struct {
			RateLimits []result `json:"rate_limits"`
		}
		resp, err := transport.RoundTrip(r)
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&answer)
			resp.Body.Close()
		}
		if err != nil || len(answer.RateLimits) != 1 {
			answer.RateLimits = []result{{Error: fmt.Sprint("no answer: ", err)}}
		}
		answers <- answer.RateLimits[0]
	}()
	<-reads
	io.WriteString(w, text[:10])
	return func() result {
		io.Copy(w, strings.NewReader(text[10:]))
		w.Close()
		return <-answers
	}
}

// requests are items of a limit of 1,000,000 for some keys, in turn.
func requests(keys []string, count int) (all []limits.Request) {
	for i := range count {
		r := limits.Request{Name: "test", UniqueKey: keys[i%len(keys)], Hits: 1, Limit: 1_000_000, Duration: 60_000}
		all = append(all, r)
	}
	return all
}

// TestCheckOfMany asks a node for more items than a message holds, without HTTP: all are counted, and in order.
func TestCheckOfMany(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		c := startCluster(t, nodes)
		keys := someKeys(50)
		for i, r := range c.nodes[0].member.Check(t.Context(), requests(keys, 2500)) {
			want := int64(999_999 - i/len(keys))
			if r.Status != limits.StatusOK || r.Remaining != want || r.Metadata.Degraded != "" {
				t.Fatalf("item %d: %+v, want %d", i, r, want)
			}
		}
	}
}

// TestCheckIsCanceled has the caller give up while an owner is asked: its items become errors, others are decided.
func TestCheckIsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2, patient)
		c.isolate(c.nodes[1], slow)
		keys, owners := c.mixedKeys(5)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		results := make([]limits.Result, len(keys))
		for i := range results {
			results[i] = limits.Result{Status: limits.StatusOK} // of an earlier call
		}
		c.nodes[0].member.CheckAll(ctx, requests(keys, len(keys)), results)
		for i, r := range results {
			away, ok := owners[i] == c.nodes[1], r.Status == limits.StatusOK
			if ok == away || ok && r.Remaining != 999_999 || !ok && r.Error == "" {
				t.Errorf("item %d, is its owner away: %v: %+v", i, away, r)
			}
		}
		c.isolate(c.nodes[1], whole)
	})
}
