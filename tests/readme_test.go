package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/limits"
)

// A document is one of the Markdown files that come with weir. Its name is its path from the repository's root.
type document struct{ name, text string }

// documents returns all of them.
func documents(t *testing.T) (list []document) {
	t.Helper()
	for _, pattern := range []string{"README.md", "docs/*.md", "examples/*.md"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, file := range files {
			list = append(list, read(t, strings.TrimPrefix(filepath.ToSlash(file), "../")))
		}
	}
	return list
}

func read(t *testing.T, name string) document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return document{name, string(text)}
}

// A block is a fenced one of a document, and the one that follows it without a word between them, if there is one.
type block struct {
	language, text string
	next           *block
}

// fence matches a block.
var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```\n")

// blocks returns the fenced blocks of d, in their order.
func (d document) blocks() (list []*block) {
	end := 0
	for _, at := range fence.FindAllStringSubmatchIndex(d.text, -1) {
		b := &block{language: d.text[at[2]:at[3]], text: d.text[at[4]:at[5]]}
		if len(list) > 0 && strings.TrimSpace(d.text[end:at[0]]) == "" {
			list[len(list)-1].next = b
		}
		list, end = append(list, b), at[1]
	}
	return list
}

// TestREADME runs every curl command of the README and of the other documents, in their order, and compares the answers
// with what is printed below. Each document has fresh nodes of its own: one at localhost:8080, a cluster of three at
// 8081 to 8083. With WEIR_README_CURL set a shell and the real curl run them.
func TestREADME(t *testing.T) {
	run := imitateCurl
	if os.Getenv("WEIR_README_CURL") != "" {
		run = shell
	}
	for _, d := range documents(t) {
		if !strings.Contains(d.text, "\ncurl ") {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			there, commands := &places{}, 0
			for _, b := range d.blocks() {
				if b.language != "sh" || !strings.HasPrefix(b.text, "curl ") {
					continue
				}
				commands += strings.Count("\n"+b.text, "\ncurl ")
				if b.next == nil {
					t.Errorf("no answer follows\n%s", b.text)
					continue
				}
				answer, err := run(there.in(t, b.text))
				if err != nil {
					t.Errorf("%v\n%s", err, b.text)
					continue
				}
				b.next.compare(t, b.text, answer)
			}
			if all := strings.Count(d.text, "\ncurl "); commands != all {
				t.Errorf("%d of %d curl commands stand in a block of sh", commands, all)
			}
		})
	}
}

// places are the nodes that the commands of one document ask. They start when the first command needs them.
type places struct {
	alone   *node
	cluster []*node
}

var localhost = regexp.MustCompile(`http://localhost:808([0-3])\b`)

// in returns the commands with the addresses of the nodes.
func (p *places) in(t *testing.T, commands string) string {
	t.Helper()
	return localhost.ReplaceAllStringFunc(commands, func(url string) string {
		i := int(url[len(url)-1] - '0')
		if i == 0 {
			if p.alone == nil {
				p.alone = startNode(t, 1000)
				p.alone.clock.Set(time.Now())
			}
			return p.alone.url
		}
		if p.cluster == nil {
			c := startCluster(t, 3)
			c.clock.Set(time.Now())
			for _, n := range c.nodes {
				if err := n.peers.Static(t.Context(), c.members(), n.name, netip.AddrPort{}); err != nil {
					t.Fatal(err)
				}
			}
			p.cluster = c.nodes
			slices.SortFunc(p.cluster, func(a, b *node) int { return strings.Compare(a.name, b.name) })
		}
		return p.cluster[i-1].url
	})
}

func shell(commands string) ([]byte, error) { return exec.Command("sh", "-c", commands).Output() }

// word is one word of a shell command: quoted, or without spaces.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// imitateCurl does what curl would, for the few options that the documents use.
func imitateCurl(commands string) (answers []byte, err error) {
	for _, command := range strings.Split("\n"+commands, "\ncurl ")[1:] {
		answer, failed := imitateOne(word.FindAllString(strings.ReplaceAll(command, "\\\n", " "), -1))
		answers, err = append(answers, answer...), errors.Join(err, failed)
	}
	return answers, err
}

func imitateOne(words []string) ([]byte, error) {
	request, head := &http.Request{Method: http.MethodGet, Header: http.Header{}}, false
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "-s":
		case "-si":
			head = true
		case "-d":
			i++
			data := strings.Trim(words[i], `'"`)
			request.Method, request.ContentLength = http.MethodPost, int64(len(data))
			request.Body = io.NopCloser(strings.NewReader(data))
		case "-H":
			i++
			name, value, _ := strings.Cut(strings.Trim(words[i], `'"`), ": ")
			request.Header.Set(name, value)
		default:
			url, err := http.NewRequest(http.MethodGet, words[i], nil)
			if err != nil || request.URL != nil || strings.HasPrefix(words[i], "-") {
				return nil, fmt.Errorf("this test does not know curl's %s", words[i])
			}
			request.URL = url.URL
		}
	}
	return ask(request, head)
}

// ask returns the answer's body, with its head before it if that is wanted.
func ask(r *http.Request, head bool) ([]byte, error) {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer bytes.Buffer
	if head {
		fmt.Fprintf(&answer, "%s %s\n", resp.Proto, resp.Status)
		for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
			fmt.Fprintf(&answer, "%s: %s\n", name, resp.Header.Get(name))
		}
	}
	_, err = io.Copy(&answer, resp.Body)
	return answer.Bytes(), err
}

// compare wants an answer to be as printed: JSON but for what differs from run to run, of text each line but "...".
func (b *block) compare(t *testing.T, command string, answer []byte) {
	t.Helper()
	switch b.language {
	case "json":
		if got, want := parse(t, answer), parse(t, []byte(b.text)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", command, answer, b.text)
		}
	case "text":
		for line := range strings.Lines(b.text) {
			if line = strings.TrimSpace(line); line != "..." && !bytes.Contains(answer, []byte(line)) {
				t.Errorf("%s\ngot  %s\nwant %s", command, answer, line)
			}
		}
	default:
		t.Errorf("%s\nis followed by a block of %q, not json or text", command, b.language)
	}
}

// varying are the members that differ from run to run.
var varying = map[string]bool{
	"reset_time": true, "retry_after": true, "owner": true, // of results
	"self": true, "name": true, "ring": true, "share": true, "at": true, // of the list of nodes
}

// parse returns JSON values, one after the other, with the varying members replaced by their kind.
func parse(t *testing.T, text []byte) (all []any) {
	t.Helper()
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var v any
		switch err := decoder.Decode(&v); err {
		case nil:
			all = append(all, blur(v))
		case io.EOF:
			return all
		default:
			t.Errorf("%v in %s", err, text)
			return all
		}
	}
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
	text := read(t, "README.md").text
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

// TestREADMEIsShort holds the README to what a newcomer reads in five minutes.
func TestREADMEIsShort(t *testing.T) {
	const most = 1500
	if words := len(strings.Fields(read(t, "README.md").text)); words > most {
		t.Errorf("it has %d words, want %d at most", words, most)
	}
}
