//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// fill asks the first server for each key once, one request after the other.
func fill(cfg *config) error {
	const batch = 1000
	body, at := cfg.shape.body(batch)
	for key := 0; key < cfg.keys; key += batch {
		for i, a := range at {
			putDigits(body[a:a+keyDigits], uint64((key+i)%cfg.keys))
		}
		resp, err := http.Post(cfg.urls[0], "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d: %.200s", resp.StatusCode, answer)
		}
		if _, err := cfg.shape.verify(answer, batch); err != nil {
			return err
		}
	}
	return nil
}

// countersOf reads the counters of all servers, and adds up those of one name, whatever their labels and server. It
// asks all at once, since they count on meanwhile.
func countersOf(urls []string) map[string]float64 {
	var mu sync.Mutex
	var wg sync.WaitGroup
	sums := map[string]float64{}
	for _, u := range urls {
		wg.Go(func() {
			text, err := metricsOf(u)
			if err != nil {
				fatal("%v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			addCounters(sums, bytes.NewReader(text))
		})
	}
	wg.Wait()
	return sums
}

func metricsOf(rawURL string) ([]byte, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	resp, err := http.Get("http://" + u.Host + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

func addCounters(sums map[string]float64, text io.Reader) {
	for lines := bufio.NewScanner(text); lines.Scan(); {
		line := lines.Text()
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		counts := strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count")
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if counts && err == nil {
			sums[name] += value
		}
	}
}

// growth says by how much each counter has grown, of those that have.
func growth(before, after map[string]float64) map[string]float64 {
	grown := map[string]float64{}
	for name, value := range after {
		if value > before[name] {
			grown[name] = value - before[name]
		}
	}
	return grown
}
