package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A replay reads a message once more that a [scanner] could not read, to tell what is wrong and where. It knows all of
// JSON by the library that becomes the standard one, and returns the tokens in their order. With the first thing that
// it can't read, or that is wrong, it fails: from then on all it returns is zero.
type replay struct {
	dec     *jsontext.Decoder
	size    int
	lenient bool   // skips unknown fields
	hint    string // for an empty message
	err     error
}

func newReplay(message []byte, lenient bool) *replay {
	return &replay{dec: jsontext.NewDecoder(bytes.NewBuffer(message)), size: len(message), lenient: lenient}
}

// open reads { or [.
func (r *replay) open(bracket byte) {
	want := "an object"
	if bracket == '[' {
		want = "a list"
	}
	r.expect(jsontext.Kind(bracket), want)
}

// more reports whether a member or element follows; if none does, it reads the closing bracket.
func (r *replay) more(bracket byte) bool {
	if r.err != nil {
		return false
	}
	if r.dec.PeekKind() != jsontext.Kind(bracket) {
		return true
	}
	_, r.err = r.dec.ReadToken()
	return false
}

// kind returns the kind of the next value: its first byte, or '0' for any number.
func (r *replay) kind() jsontext.Kind { return r.dec.PeekKind() }

func (r *replay) text() string {
	token, ok := r.expect('"', "a string")
	if !ok {
		return ""
	}
	return token.String()
}

// integer reads digits with at most a minus in front. Two spellings of one number (-0, 1.0, 1e3) would be a trap for
// programs that compare messages, and the larger ones would not be exact.
func (r *replay) integer() int64 {
	token, ok := r.expect('0', "an integer")
	if !ok {
		return 0
	}
	n, err := token.Int()
	switch {
	case errors.Is(err, strconv.ErrRange):
		r.wrong("integer beyond 64 bits")
	case err != nil, n == 0 && token.String() != "0":
		r.wrong("not a plain integer such as 100 (no fraction, exponent or -0)")
	}
	return n
}

// other reads a value of a kind that is not among those wanted, and fails.
func (r *replay) other(want string) { r.expect(0, want) }

// expect reads a token of one kind.
func (r *replay) expect(kind jsontext.Kind, want string) (token jsontext.Token, ok bool) {
	if r.err != nil {
		return token, false
	}
	found := r.dec.PeekKind()
	token, r.err = r.dec.ReadToken()
	if r.err == nil && found != kind {
		r.wrong(kindNames[found] + " where " + want + " is expected")
	}
	return token, r.err == nil
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 'f': "false", 't': "true", '"': "a string", '0': "a number",
	'{': "an object", '}': "an end of object", '[': "a list", ']': "an end of list",
}

// skip reads a value of any kind.
func (r *replay) skip() {
	if r.err == nil {
		r.err = r.dec.SkipValue()
	}
}

// unknown skips the value of a member whose name is unknown, or fails.
func (r *replay) unknown() {
	if r.lenient {
		r.skip()
	} else {
		r.wrong("unknown field")
	}
}

// wrong fails: what was just read is wrong.
func (r *replay) wrong(what string) {
	if r.err == nil {
		r.err = errors.New(place(r.dec.StackPointer()) + ": " + what)
	}
}

// items returns what is wrong with a message of items.
func (r *replay) items(o *object) error {
	r.hint = `; send {"rate_limits": [...]}`
	var seen seen
	for r.open('{'); r.more('}'); {
		if r.text() != "rate_limits" {
			r.unknown()
			continue
		}
		if seen.again(0) {
			r.wrong("this field is there twice")
		}
		n := 0
		for r.open('['); r.more(']'); n++ {
			if n == MaxItems {
				r.wrong("is the last; more than 1000 items are too many")
				break
			}
			o.replay(r)
		}
	}
	return r.end()
}

// end expects the end of the message, and returns the failure.
func (r *replay) end() error {
	if r.err != nil {
		return r.describe()
	}
	end := r.dec.InputOffset()
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return fmt.Errorf("byte %d: unexpected data after the message", end)
	}
	return errUnexplained
}

// errUnexplained is never returned, unless the scanner refuses what is right.
var errUnexplained = errors.New("not readable")

// describe words what the JSON library found; errors of this package are as they should be.
func (r *replay) describe() error {
	var syntax *jsontext.SyntacticError
	switch {
	case r.err == io.EOF && r.size == 0:
		return errors.New("empty body" + r.hint)
	case r.err == io.EOF, errors.Is(r.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: it ends in the middle, at byte %d", r.size)
	case errors.Is(r.err, jsontext.ErrDuplicateName) && errors.As(r.err, &syntax):
		return errors.New(place(syntax.JSONPointer) + ": this field is there twice")
	case errors.As(r.err, &syntax):
		return fmt.Errorf("not JSON at byte %d, in %s: %v", syntax.ByteOffset, place(syntax.JSONPointer), syntax.Err)
	}
	return r.err
}

// maxPlace bounds what an error repeats of the message.
const maxPlace = 100

// place words a JSON pointer as programmers write it: rate_limits[3].hits.
func place(p jsontext.Pointer) string {
	var b strings.Builder
	for name := range p.Tokens() {
		switch _, err := strconv.Atoi(name); {
		case b.Len() == 0:
			b.WriteString(name)
		case err == nil:
			b.WriteString("[" + name + "]")
		default:
			b.WriteString("." + name)
		}
		if b.Len() > maxPlace {
			return strconv.Quote(b.String()[:maxPlace]) + "..."
		}
	}
	if b.Len() == 0 {
		return "body"
	}
	return b.String()
}
