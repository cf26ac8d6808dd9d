package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/limits"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// example is a command of the README and the answer that is printed below it.
var example = regexp.MustCompile("(?s)```sh\n(curl [^`]*)```\n+```(json|text)\n([^`]*)```")

// TestREADME runs every curl example of the README against one fresh node, in their order, and compares what it answers
// with what is printed. With WEIR_README_CURL set it has a shell and the real curl do it.
func TestREADME(t *testing.T) {
	text := readme(t)
	examples := example.FindAllStringSubmatch(text, -1)
	if commands := strings.Count(text, "\ncurl "); len(examples) == 0 || len(examples) != commands {
		t.Fatalf("%d of %d curl commands have an answer below them", len(examples), commands)
	}
	n := startNode(t, 1000)
	n.clock.Set(time.Now())
	for _, e := range examples {
		command := strings.ReplaceAll(e[1], "http://localhost:8080", n.url)
		if command == e[1] {
			t.Errorf("asks nobody that this test could start: %s", command)
			continue
		}
		run := curl
		if os.Getenv("WEIR_README_CURL") != "" {
			run = shell
		}
		answer, err := run(command)
		if err != nil {
			t.Errorf("%v: %s", err, command)
			continue
		}
		if e[2] == "json" {
			sameJSON(t, command, answer, []byte(e[3]))
		} else if !strings.Contains(string(answer), strings.TrimSpace(e[3])) {
			t.Errorf("%s\ngot  %s\nwant a part %s", command, answer, e[3])
		}
	}
}

func shell(command string) ([]byte, error) { return exec.Command("sh", "-c", command).Output() }

// word is one word of a shell command: quoted, or without spaces.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// curl does what curl would, for the few options that the README uses.
func curl(command string) ([]byte, error) {
	var url, data string
	words := word.FindAllString(strings.ReplaceAll(command, "\\\n", " "), -1)
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-s":
		case "-d":
			i++
			data = strings.Trim(words[i], `'"`)
		default:
			if strings.HasPrefix(words[i], "-") || url != "" {
				return nil, fmt.Errorf("this test does not know curl's %s", words[i])
			}
			url = strings.Trim(words[i], `'"`)
		}
	}
	resp, err := http.Get(url)
	if data != "" {
		resp, err = http.Post(url, "application/x-www-form-urlencoded", strings.NewReader(data))
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// varying are the members that differ from run to run.
var varying = map[string]bool{"reset_time": true, "retry_after": true, "owner": true}

func sameJSON(t *testing.T, command string, got, want []byte) {
	t.Helper()
	if g, w := parse(t, got), parse(t, want); !reflect.DeepEqual(g, w) {
		t.Errorf("%s\ngot  %s\nwant %s", command, got, want)
	}
}

// parse gives a JSON value with the varying numbers and names replaced by their kind.
func parse(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(bytes.TrimSpace(text), &v); err != nil {
		t.Errorf("%v in %s", err, text)
	}
	return blur(v)
}

func blur(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			if varying[name] {
				v[name] = reflect.TypeOf(v[name]).Kind().String()
			} else {
				v[name] = blur(v[name])
			}
		}
	case []any:
		for i := range v {
			v[i] = blur(v[i])
		}
	}
	return v
}

// TestREADMEPicture draws the picture of what each algorithm lets pass, and finds it in the README.
func TestREADMEPicture(t *testing.T) {
	text := readme(t)
	for _, row := range []struct {
		label     string
		algorithm limits.Algorithm
		burst     int64
	}{
		{"TOKEN_BUCKET          ", limits.TokenBucket, 0},
		{"LEAKY_BUCKET          ", limits.LeakyBucket, 0},
		{"LEAKY_BUCKET, burst 1 ", limits.LeakyBucket, 1},
		{"SLIDING_WINDOW        ", limits.SlidingWindow, 0},
	} {
		now := time.UnixMilli(0)
		l := limits.New(1, func() time.Time { return now })
		picture := row.label
		for range 60 {
			r := l.Check(limits.Request{Name: "picture", UniqueKey: "k", Hits: 1, Limit: 10, Duration: 10_000,
				Algorithm: row.algorithm, Burst: row.burst})
			if r.Status == limits.StatusOK {
				picture += "#"
			} else {
				picture += "."
			}
			now = now.Add(500 * time.Millisecond)
		}
		t.Log(picture)
		if !strings.Contains(text, picture) {
			t.Errorf("the README lacks %s", picture)
		}
	}
}
