package wire

import (
	"errors"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/limits/bucket"
)

// ReadRequests reads a message, {"rate_limits": [...]}, and appends its items to dst. Their strings may share memory with
// message, which must not change as long as they are used. The error says what can't be read and where; whoever gets it
// must not act on any item.
//
// It is strict about form: exact names, each once, plain integers of 64 bits, no null, valid UTF-8, nothing after the
// message, 1 to MaxItems items. Values that are well formed but wrong (an unknown algorithm, a limit that is missing) are
// for [Limiter.Check] to judge, item by item.
func ReadRequests(dst []bucket.Request, message []byte) ([]bucket.Request, error) {
	items := len(dst)
	dst, err := readRequests(dst, message, false)
	if err == nil && len(dst) == items {
		err = errors.New("rate_limits: required, must hold at least one item")
	}
	return dst, err
}

// ReadPeerRequests is ReadRequests for a message from another node. That may be newer, so unknown fields are skipped, and
// it may only want to know whether this node answers, so there may be no items.
func ReadPeerRequests(dst []bucket.Request, message []byte) ([]bucket.Request, error) {
	return readRequests(dst, message, true)
}

// readRequests reads quickly what has the plain form; all else is for what knows all of JSON, and words the errors.
func readRequests(dst []bucket.Request, message []byte, lenient bool) ([]bucket.Request, error) {
	if dst, ok := quickRequests(dst, message); ok {
		return dst, nil
	}
	return read(dst, message, lenient, readRequest)
}

// ReadPeerResults reads the answer to a message of requests, and appends its items to dst. Their strings may share memory
// with message. Unknown fields are skipped.
func ReadPeerResults(dst []bucket.Result, message []byte) ([]bucket.Result, error) {
	if dst, ok := quickResults(dst, message); ok {
		return dst, nil
	}
	return read(dst, message, true, readResult)
}

// read reads a message of items.
func read[Item any](dst []Item, message []byte, lenient bool, item func(*strict, *Item)) ([]Item, error) {
	s := newStrict(message, lenient)
	dst = readItems(s, dst, item)
	return dst, s.end()
}

// readItems reads the frame that all messages share.
func readItems[Item any](s *strict, dst []Item, item func(*strict, *Item)) []Item {
	var seen fields
	items := len(dst)
	for s.open('{'); s.more('}'); {
		if s.name() != "rate_limits" {
			s.unknown()
			continue
		}
		seen.once(s, 0)
		for s.open('['); s.more(']'); {
			if len(dst)-items == MaxItems {
				s.wrong("is the last; more than 1000 items are too many")
				break
			}
			var zero Item
			dst = append(dst, zero)
			item(s, &dst[len(dst)-1])
		}
	}
	return dst
}

// fields are those of an object that were read already.
type fields uint16

// once fails where a field is there twice. Each field of an object has a number.
func (f *fields) once(s *strict, field int) {
	if *f&(1<<field) != 0 {
		s.wrong("this field is there twice")
	}
	*f |= 1 << field
}

func readRequest(s *strict, r *bucket.Request) {
	r.Hits, r.Limit, r.Duration = 1, absent, absent
	var seen fields
	for s.open('{'); s.more('}'); {
		switch s.name() {
		case "name":
			seen.once(s, 0)
			r.Name = s.text()
		case "unique_key":
			seen.once(s, 1)
			r.UniqueKey = s.text()
		case "hits":
			seen.once(s, 2)
			r.Hits = s.integer()
		case "limit":
			seen.once(s, 3)
			r.Limit = s.integer()
		case "duration":
			seen.once(s, 4)
			r.Duration = s.integer()
		case "algorithm":
			seen.once(s, 5)
			r.Algorithm = readAlgorithm(s)
		case "behavior":
			seen.once(s, 6)
			r.Behavior = readBehavior(s)
		case "burst":
			seen.once(s, 7)
			r.Burst = s.integer()
		case "time_zone":
			seen.once(s, 8)
			r.TimeZone = s.text()
		default:
			s.unknown()
		}
	}
}

func readAlgorithm(s *strict) bucket.Algorithm {
	switch s.kind() {
	case '"':
		return algorithmOf(s.text())
	case '0':
		return algorithmOfNumber(s.integer())
	}
	s.other("a name or a number")
	return unknownAlgorithm
}

// What no valid request has stands for what is not there, or not known.
const (
	absent           = math.MinInt64
	unknownAlgorithm = bucket.Algorithm(math.MaxUint8)
	unknownBehavior  = bucket.Behavior(128)
)

const (
	lastAlgorithm  = bucket.SlidingWindow
	knownBehaviors = bucket.NoBatching | bucket.Global | bucket.DurationIsGregorian | bucket.ResetRemaining |
		bucket.DrainOverLimit | bucket.StandIn
)

func algorithmOf(name string) bucket.Algorithm {
	for a := range lastAlgorithm + 1 {
		if name == a.String() {
			return a
		}
	}
	return unknownAlgorithm
}

func algorithmOfNumber(n int64) bucket.Algorithm {
	if n >= 0 && n <= int64(lastAlgorithm) {
		return bucket.Algorithm(n)
	}
	return unknownAlgorithm
}

// readBehavior reads one name, a list of names, or the sum of the flags.
func readBehavior(s *strict) (b bucket.Behavior) {
	switch s.kind() {
	case '"':
		return flagOf(s.text())
	case '[':
		for s.open('['); s.more(']'); {
			b |= flagOf(s.text())
		}
		return b
	case '0':
		return behaviorOfNumber(s.integer())
	}
	s.other("a name, a list of names or a number")
	return unknownBehavior
}

func flagOf(name string) bucket.Behavior {
	switch name {
	case "BATCHING":
		return bucket.Batching
	case "NO_BATCHING":
		return bucket.NoBatching
	case "GLOBAL":
		return bucket.Global
	case "DURATION_IS_GREGORIAN":
		return bucket.DurationIsGregorian
	case "RESET_REMAINING":
		return bucket.ResetRemaining
	case "DRAIN_OVER_LIMIT":
		return bucket.DrainOverLimit
	}
	return unknownBehavior
}

func behaviorOfNumber(n int64) bucket.Behavior {
	if n&^int64(knownBehaviors) == 0 { // the last is refused from clients, by Validate
		return bucket.Behavior(n)
	}
	return unknownBehavior
}

func readResult(s *strict, r *bucket.Result) {
	var seen fields
	for s.open('{'); s.more('}'); {
		switch s.name() {
		case "status":
			seen.once(s, 0)
			r.Status = readStatus(s)
		case "limit":
			seen.once(s, 1)
			r.Limit = s.integer()
		case "remaining":
			seen.once(s, 2)
			r.Remaining = s.integer()
		case "reset_time":
			seen.once(s, 3)
			r.ResetTime = s.integer()
		case "retry_after":
			seen.once(s, 4)
			r.RetryAfter = s.integer()
		case "error":
			seen.once(s, 5)
			r.Error = s.text()
		case "metadata":
			seen.once(s, 6)
			readMetadata(s, &r.Metadata)
		case "state":
			seen.once(s, 7)
			r.State = new(bucket.Snapshot)
			readSnapshot(s, r.State)
		default:
			s.unknown()
		}
	}
}

func readStatus(s *strict) bucket.Status {
	status, known := statusOf(s.text())
	if !known {
		s.wrong("unknown status")
	}
	return status
}

func statusOf(name string) (status bucket.Status, known bool) {
	for status := range bucket.StatusOverLimit + 1 {
		if name == status.String() {
			return status, true
		}
	}
	return bucket.StatusError, false
}

func readMetadata(s *strict, m *bucket.Metadata) {
	var seen fields
	for s.open('{'); s.more('}'); {
		switch s.name() {
		case "owner":
			seen.once(s, 0)
			m.Owner = s.text()
		case "degraded":
			seen.once(s, 1)
			m.Degraded = s.text()
		case "reason":
			seen.once(s, 2)
			m.Reason = s.text()
		case "source":
			seen.once(s, 3)
			m.Source = s.text()
		default:
			s.unknown()
		}
	}
}

func readSnapshot(s *strict, n *bucket.Snapshot) {
	var seen fields
	integer := func(field int, to *int64) {
		seen.once(s, field)
		*to = s.integer()
	}
	for s.open('{'); s.more('}'); {
		switch s.name() {
		case "start":
			integer(0, &n.Start)
		case "epoch":
			integer(1, &n.Epoch)
		case "version":
			integer(2, &n.Version)
		case "acked":
			integer(3, &n.Acked)
		case "now":
			integer(4, &n.Now)
		case "algorithm":
			seen.once(s, 5)
			n.Algorithm = readAlgorithm(s)
		case "limit":
			integer(6, &n.Limit)
		case "duration":
			integer(7, &n.Duration)
		case "age":
			integer(8, &n.Age)
		case "used":
			integer(9, &n.Used)
		case "rest":
			integer(10, &n.Rest)
		default:
			s.unknown()
		}
	}
}

// AppendRequests appends the message of some requests, which are valid.
func AppendRequests(dst []byte, requests []bucket.Request) []byte {
	return appendMessage(dst, requests, appendRequest)
}

// AppendResults appends the message that answers a message of requests.
func AppendResults(dst []byte, results []bucket.Result) []byte {
	return appendMessage(dst, results, appendResult)
}

func appendMessage[Item any](dst []byte, items []Item, one func([]byte, *Item) []byte) []byte {
	dst = append(dst, `{"rate_limits":[`...)
	for i := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, &items[i])
	}
	return append(dst, "]}\n"...)
}

func appendRequest(dst []byte, r *bucket.Request) []byte {
	dst = appendText(append(dst, `{"name":`...), r.Name)
	dst = appendText(append(dst, `,"unique_key":`...), r.UniqueKey)
	dst = appendField(dst, `,"hits":`, r.Hits)
	dst = appendField(dst, `,"limit":`, r.Limit)
	dst = appendField(dst, `,"duration":`, r.Duration)
	if r.Algorithm != bucket.TokenBucket {
		dst = appendField(dst, `,"algorithm":`, int64(r.Algorithm))
	}
	if r.Behavior != bucket.Batching {
		dst = appendField(dst, `,"behavior":`, int64(r.Behavior))
	}
	if r.Burst != 0 {
		dst = appendField(dst, `,"burst":`, r.Burst)
	}
	if r.TimeZone != "" {
		dst = appendText(append(dst, `,"time_zone":`...), r.TimeZone)
	}
	return append(dst, '}')
}

func appendResult(dst []byte, r *bucket.Result) []byte {
	dst = append(append(append(dst, `{"status":"`...), r.Status.String()...), '"')
	if r.Status == bucket.StatusOK || r.Status == bucket.StatusOverLimit {
		dst = appendField(dst, `,"limit":`, r.Limit)
		dst = appendField(dst, `,"remaining":`, r.Remaining)
		dst = appendField(dst, `,"reset_time":`, r.ResetTime)
		if r.RetryAfter > 0 {
			dst = appendField(dst, `,"retry_after":`, r.RetryAfter)
		}
	} else {
		dst = appendText(append(dst, `,"error":`...), r.Error)
	}
	dst = append(dst, `,"metadata":{`...)
	dst = appendMember(dst, `"owner":`, r.Metadata.Owner)
	dst = appendMember(dst, `"degraded":`, r.Metadata.Degraded)
	dst = appendMember(dst, `"reason":`, r.Metadata.Reason)
	dst = appendMember(dst, `"source":`, r.Metadata.Source)
	dst = append(dst, '}')
	if r.State != nil {
		dst = appendSnapshot(append(dst, `,"state":`...), r.State)
	}
	return append(dst, '}')
}

func appendSnapshot(dst []byte, s *bucket.Snapshot) []byte {
	return append(appendSnapshotMembers(append(dst, '{'), s), '}')
}

func appendSnapshotMembers(dst []byte, s *bucket.Snapshot) []byte {
	dst = appendField(dst, `"start":`, s.Start)
	dst = appendField(dst, `,"epoch":`, s.Epoch)
	dst = appendField(dst, `,"version":`, s.Version)
	dst = appendField(dst, `,"acked":`, s.Acked)
	dst = appendField(dst, `,"now":`, s.Now)
	dst = appendField(dst, `,"algorithm":`, int64(s.Algorithm))
	dst = appendField(dst, `,"limit":`, s.Limit)
	dst = appendField(dst, `,"duration":`, s.Duration)
	dst = appendField(dst, `,"age":`, s.Age)
	dst = appendField(dst, `,"used":`, s.Used)
	return appendField(dst, `,"rest":`, s.Rest)
}

func appendField(dst []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(dst, name...), n, 10)
}

// appendMember appends a member of an object unless its text is empty.
func appendMember(dst []byte, name, text string) []byte {
	if text == "" {
		return dst
	}
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return appendText(append(dst, name...), text)
}

// appendText appends a JSON string. Invalid UTF-8, which no text of ours has, becomes the replacement character.
func appendText(dst []byte, text string) []byte {
	if isBare(text) {
		return append(append(append(dst, '"'), text...), '"')
	}
	dst, _ = jsontext.AppendQuote(dst, text)
	return dst
}
