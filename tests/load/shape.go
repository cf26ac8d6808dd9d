//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A shape knows how a request body is built and how an answer is checked.
type shape struct {
	kind      string
	path      string
	open      string // JSON before the list of checks
	item      string // JSON of one check, {key} for the key
	close     string // JSON after the list
	list      string // name of the answer's list, for full decoding
	count     []byte // occurs once per result
	over      []byte // follows count, in any case, when the check is over the limit
	keyPrefix string
}

type shapeOptions struct {
	shape, name, keyPrefix, behavior, algorithm string
	hits, limit                                 int
	window                                      time.Duration
}

const defaultKeyPrefix = "tenant-7f3a9c04:user-session-id" // 31 bytes + 9 digits = 40

func newShape(o shapeOptions) (shape, error) {
	s := shape{kind: o.shape, keyPrefix: o.keyPrefix}
	if s.keyPrefix == "" {
		s.keyPrefix = defaultKeyPrefix
	}
	algo, ok := map[string]int{"token": 0, "leaky": 1, "sliding": 2}[o.algorithm]
	if !ok {
		return s, fmt.Errorf("unknown -algorithm %q", o.algorithm)
	}
	_, ok = map[string]int{"batching": 0, "no_batching": 1, "global": 2}[o.behavior]
	if !ok {
		return s, fmt.Errorf("unknown -behavior %q", o.behavior)
	}
	algoName := []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}[algo]
	behaviorName := strings.ToUpper(o.behavior)
	check := fmt.Sprintf(`{"name":%q,"unique_key":"{key}","hits":%d,"limit":%d,"duration":%d,"algorithm":%q,"behavior":%q}`,
		o.name, o.hits, o.limit, o.window.Milliseconds(), algoName, behaviorName)

	switch o.shape {
	case "weir", "none":
		s.path, s.open, s.close = "/v1/check", `{"rate_limits":[`, `]}`
		s.item, s.list = check, "rate_limits"
		s.count, s.over = []byte(`"status":"`), []byte("over")
		if o.shape == "none" {
			s.count = nil
		}
	default:
		return s, fmt.Errorf("unknown -shape %q", o.shape)
	}
	return s, nil
}

// body returns a request body for batch checks and the offsets of the digits
// of their keys.
func (s *shape) body(batch int) ([]byte, []int) {
	const mark = "~~~~~~~~~" // keyDigits bytes that occur nowhere else
	var b []byte
	it := strings.ReplaceAll(s.item, "{key}", s.keyPrefix+mark)
	b = append(b, s.open...)
	for i := range batch {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, it...)
	}
	b = append(b, s.close...)
	var at []int
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(mark))
		if i < 0 {
			return b, at
		}
		at = append(at, from+i)
		from += i + keyDigits
	}
}

var errorField = []byte(`"error":`)

// verify checks a JSON answer: as many results as checks, none with an error.
// It returns how many results say "over the limit".
func (s *shape) verify(body []byte, batch int) (over int, err error) {
	if s.count == nil {
		return 0, nil
	}
	n := 0
	for b := body; ; n++ {
		i := bytes.Index(b, s.count)
		if i < 0 {
			break
		}
		i += len(s.count)
		b = b[i:]
		if len(b) >= len(s.over) && bytes.EqualFold(b[:len(s.over)], s.over) {
			over++
		}
	}
	if n != batch {
		return over, fmt.Errorf("%d results for %d checks: %.300s", n, batch, body)
	}
	for b := body; ; {
		i := bytes.Index(b, errorField)
		if i < 0 {
			break
		}
		b = bytes.TrimLeft(b[i+len(errorField):], " ")
		if !bytes.HasPrefix(b, []byte(`""`)) && !bytes.HasPrefix(b, []byte(`null`)) {
			return over, fmt.Errorf("error in a result: %.200s", b)
		}
	}
	return over, nil
}

// decode parses an answer fully and checks the length of its list.
func (s *shape) decode(body []byte, batch int) error {
	if s.count == nil {
		return nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("answer is not JSON: %v: %.200s", err, body)
	}
	raw, ok := m[s.list]
	if !ok { // any one list will do: an answer has only one
		for _, v := range m {
			if len(v) > 0 && v[0] == '[' {
				raw = v
			}
		}
	}
	var l []map[string]any
	if err := json.Unmarshal(raw, &l); err != nil {
		return fmt.Errorf("answer has no list: %v: %.200s", err, body)
	}
	if len(l) != batch {
		return fmt.Errorf("%d results for %d checks", len(l), batch)
	}
	return nil
}
