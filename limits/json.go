package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxItems bounds the requests in one message.
const MaxItems = 1000

// ReadRequests reads a message, {"rate_limits": [...]}, and appends its items to dst. The error says what can't be read
// and where; whoever gets it must not act on any item.
//
// It is strict about form: exact names, each once, plain integers of 64 bits, no null, valid UTF-8, nothing after the
// message, 1 to MaxItems items. Values that are well formed but wrong (an unknown algorithm, a limit that is missing) are
// for [Limiter.Check] to judge, item by item.
func ReadRequests(dst []Request, message []byte) ([]Request, error) {
	items := len(dst)
	dst, err := newDecoder(message).requests(dst)
	if err == nil && len(dst) == items {
		err = errors.New("rate_limits: required, must hold at least one item")
	}
	return dst, err
}

// ReadPeerRequests is ReadRequests for a message from another node. That may be newer, so unknown fields are skipped, and
// it may only want to know whether this node answers, so there may be no items.
func ReadPeerRequests(dst []Request, message []byte) ([]Request, error) {
	d := newDecoder(message)
	d.lenient = true
	return d.requests(dst)
}

// ReadPeerResults reads the answer to a message of requests, and appends its items to dst. Unknown fields are skipped.
func ReadPeerResults(dst []Result, message []byte) ([]Result, error) {
	d := newDecoder(message)
	d.lenient = true
	return d.results(dst)
}

// A decoder reads one message, token by token.
type decoder struct {
	dec     *jsontext.Decoder
	size    int
	lenient bool // skips unknown fields
}

func newDecoder(message []byte) *decoder {
	return &decoder{dec: jsontext.NewDecoder(bytes.NewBuffer(message)), size: len(message)}
}

func (d *decoder) requests(dst []Request) ([]Request, error) {
	items := len(dst)
	err := d.message(func() error {
		if len(dst)-items == MaxItems {
			return fmt.Errorf("rate_limits: more than %d items", MaxItems)
		}
		dst = append(dst, Request{Hits: 1, Limit: absent, Duration: absent})
		return d.request(&dst[len(dst)-1])
	})
	return dst, err
}

func (d *decoder) results(dst []Result) ([]Result, error) {
	err := d.message(func() error {
		dst = append(dst, Result{})
		return d.result(&dst[len(dst)-1])
	})
	return dst, err
}

// message reads the frame that requests and results share, and has item read each item.
func (d *decoder) message(item func() error) error {
	err := d.object(func(name string) error {
		if name != "rate_limits" {
			return d.unknown()
		}
		return d.array(item)
	})
	if err != nil {
		return describe(err, d.size)
	}
	if _, err := d.dec.ReadToken(); err != io.EOF {
		return fmt.Errorf("byte %d: unexpected data after the message", d.dec.InputOffset())
	}
	return nil
}

func (d *decoder) request(r *Request) error {
	return d.object(func(name string) (err error) {
		switch name {
		case "name":
			r.Name, err = d.text()
		case "unique_key":
			r.UniqueKey, err = d.text()
		case "hits":
			r.Hits, err = d.integer()
		case "limit":
			r.Limit, err = d.integer()
		case "duration":
			r.Duration, err = d.integer()
		case "burst":
			r.Burst, err = d.integer()
		case "time_zone":
			r.TimeZone, err = d.text()
		case "algorithm":
			r.Algorithm, err = d.algorithm()
		case "behavior":
			r.Behavior, err = d.behavior()
		default:
			err = d.unknown()
		}
		return err
	})
}

func (d *decoder) result(r *Result) error {
	return d.object(func(name string) (err error) {
		switch name {
		case "status":
			r.Status, err = d.status()
		case "limit":
			r.Limit, err = d.integer()
		case "remaining":
			r.Remaining, err = d.integer()
		case "reset_time":
			r.ResetTime, err = d.integer()
		case "retry_after":
			r.RetryAfter, err = d.integer()
		case "error":
			r.Error, err = d.text()
		case "metadata":
			err = d.metadata(&r.Metadata)
		default:
			err = d.unknown()
		}
		return err
	})
}

func (d *decoder) metadata(m *Metadata) error {
	return d.object(func(name string) (err error) {
		switch name {
		case "owner":
			m.Owner, err = d.text()
		case "reason":
			m.Reason, err = d.text()
		case "degraded":
			m.Degraded, err = d.text()
		default:
			err = d.unknown()
		}
		return err
	})
}

func (d *decoder) status() (Status, error) {
	name, err := d.text()
	if err != nil {
		return StatusError, err
	}
	for s := range Status(statuses) {
		if name == s.String() {
			return s, nil
		}
	}
	return StatusError, d.wrong("unknown status")
}

// unknown is what becomes of a member of an object that nobody knows.
func (d *decoder) unknown() error {
	if d.lenient {
		return d.dec.SkipValue()
	}
	return d.wrong("unknown field")
}

func (d *decoder) algorithm() (Algorithm, error) {
	switch d.dec.PeekKind() {
	case '0':
		n, err := d.integer()
		if n < 0 || n >= algorithms {
			return unknownAlgorithm, err
		}
		return Algorithm(n), err
	case '"':
		name, err := d.text()
		for a := range Algorithm(algorithms) {
			if name == a.String() {
				return a, err
			}
		}
		return unknownAlgorithm, err
	}
	return 0, d.unexpected("a name or a number")
}

// behavior reads one name, a list of names, or the sum of the flags.
func (d *decoder) behavior() (b Behavior, err error) {
	switch d.dec.PeekKind() {
	case '0':
		n, err := d.integer()
		if n&^int64(knownBehaviors) != 0 {
			return unknownBehavior, err
		}
		return Behavior(n), err
	case '"':
		return d.flag()
	case '[':
		err = d.array(func() error {
			flag, err := d.flag()
			b |= flag
			return err
		})
		return b, err
	}
	return 0, d.unexpected("a name, a list of names or a number")
}

func (d *decoder) flag() (Behavior, error) {
	name, err := d.text()
	if err != nil {
		return 0, err
	}
	switch name {
	case "BATCHING":
		return Batching, nil
	case "NO_BATCHING":
		return NoBatching, nil
	case "GLOBAL":
		return Global, nil
	case "DURATION_IS_GREGORIAN":
		return DurationIsGregorian, nil
	case "RESET_REMAINING":
		return ResetRemaining, nil
	case "DRAIN_OVER_LIMIT":
		return DrainOverLimit, nil
	}
	return unknownBehavior, nil
}

// object reads an object and has value read each member's value.
func (d *decoder) object(value func(name string) error) error {
	if d.dec.PeekKind() != '{' {
		return d.unexpected("an object")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	for d.dec.PeekKind() != '}' {
		name, err := d.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := value(name.String()); err != nil {
			return err
		}
	}
	_, err := d.dec.ReadToken()
	return err
}

// array reads an array and has item read each of its values.
func (d *decoder) array(item func() error) error {
	if d.dec.PeekKind() != '[' {
		return d.unexpected("a list")
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	for d.dec.PeekKind() != ']' {
		if err := item(); err != nil {
			return err
		}
	}
	_, err := d.dec.ReadToken()
	return err
}

func (d *decoder) text() (string, error) {
	if d.dec.PeekKind() != '"' {
		return "", d.unexpected("a string")
	}
	token, err := d.dec.ReadToken()
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

// integer reads a plain integer: digits with at most a minus in front. Two spellings of one number (-0, 1.0, 1e3) would be
// a trap for whoever compares messages, and the larger ones would not be exact.
func (d *decoder) integer() (int64, error) {
	if d.dec.PeekKind() != '0' {
		return 0, d.unexpected("an integer")
	}
	token, err := d.dec.ReadToken()
	if err != nil {
		return 0, err
	}
	n, err := token.Int()
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, d.wrong("integer beyond 64 bits")
	case err != nil, n == 0 && token.String() != "0":
		return 0, d.wrong("not a plain integer such as 100 (no fraction, exponent or -0)")
	}
	return n, nil
}

// unexpected is the error for a value of another kind than want. Where there is no value at all, it is the syntax error.
func (d *decoder) unexpected(want string) error {
	kind := d.dec.PeekKind()
	if kind == 0 {
		_, err := d.dec.ReadToken()
		return err
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	return d.wrong("%s where %s is expected", kindNames[kind], want)
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 'f': "false", 't': "true", '"': "a string", '0': "a number",
	'{': "an object", '}': "an end of object", '[': "a list", ']': "an end of list",
}

// wrong is the error for what was just read.
func (d *decoder) wrong(format string, args ...any) error {
	return fmt.Errorf("%s: %s", place(d.dec.StackPointer()), fmt.Sprintf(format, args...))
}

// describe words what the JSON library found; errors of the decoder's own pass as they are.
func describe(err error, size int) error {
	var syntax *jsontext.SyntacticError
	switch {
	case err == io.EOF && size == 0:
		return errors.New(`empty body; send {"rate_limits": [...]}`)
	case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: it ends in the middle, at byte %d", size)
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return fmt.Errorf("%s: this field is there twice", place(syntax.JSONPointer))
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d, in %s: %v", syntax.ByteOffset, place(syntax.JSONPointer), syntax.Err)
	}
	return err
}

// maxPlace bounds what an error repeats of the message.
const maxPlace = 100

// place words a JSON pointer as programmers write it: rate_limits[3].hits.
func place(p jsontext.Pointer) string {
	var b []byte
	depth := 0
	for name := range p.Tokens() {
		switch {
		case depth == 0:
			b = append(b, name...)
		case isIndex(name):
			b = append(append(append(b, '['), name...), ']')
		default:
			b = append(append(b, '.'), name...)
		}
		if depth++; len(b) > maxPlace {
			return strconv.Quote(string(b[:maxPlace])) + "..."
		}
	}
	if depth == 0 {
		return "body"
	}
	return string(b)
}

func isIndex(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// AppendRequests appends the message of some requests, which are valid.
func AppendRequests(dst []byte, requests []Request) []byte {
	dst = append(dst, messageStart...)
	for i := range requests {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendRequest(dst, &requests[i])
	}
	return append(dst, messageEnd...)
}

const (
	messageStart = `{"rate_limits":[`
	messageEnd   = "]}\n"
)

func appendRequest(dst []byte, r *Request) []byte {
	dst = appendText(append(dst, `{"name":`...), r.Name)
	dst = appendText(append(dst, `,"unique_key":`...), r.UniqueKey)
	dst = appendField(dst, `,"hits":`, r.Hits)
	dst = appendField(dst, `,"limit":`, r.Limit)
	dst = appendField(dst, `,"duration":`, r.Duration)
	if r.Algorithm != TokenBucket {
		dst = appendField(dst, `,"algorithm":`, int64(r.Algorithm))
	}
	if r.Behavior != Batching {
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

// AppendResults appends the message that answers a message of requests.
func AppendResults(dst []byte, results []Result) []byte {
	dst = append(dst, messageStart...)
	for i := range results {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendResult(dst, &results[i])
	}
	return append(dst, messageEnd...)
}

func appendResult(dst []byte, r *Result) []byte {
	dst = append(append(append(dst, `{"status":"`...), r.Status.String()...), '"')
	if r.Status == StatusOK || r.Status == StatusOverLimit {
		dst = appendField(dst, `,"limit":`, r.Limit)
		dst = appendField(dst, `,"remaining":`, r.Remaining)
		dst = appendField(dst, `,"reset_time":`, r.ResetTime)
		if r.RetryAfter > 0 {
			dst = appendField(dst, `,"retry_after":`, r.RetryAfter)
		}
	} else {
		dst = append(dst, `,"error":`...)
		dst = appendText(dst, r.Error)
	}
	dst = append(dst, `,"metadata":{`...)
	dst = appendMember(dst, `"owner":`, r.Metadata.Owner)
	dst = appendMember(dst, `"degraded":`, r.Metadata.Degraded)
	dst = appendMember(dst, `"reason":`, r.Metadata.Reason)
	return append(dst, "}}"...)
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
	dst, _ = jsontext.AppendQuote(dst, text)
	return dst
}
