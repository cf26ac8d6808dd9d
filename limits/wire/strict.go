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

// A strict gives the tokens of a message in their order. It knows all of JSON, by the library that becomes the standard one.
// With the first thing it can't read, or is told is wrong, it fails: from then on there is nothing more, all it gives is zero,
// and its error says what is wrong and where.
type strict struct {
	dec     *jsontext.Decoder
	size    int
	lenient bool // skips unknown fields
	err     error
}

func newStrict(message []byte, lenient bool) *strict {
	return &strict{dec: jsontext.NewDecoder(bytes.NewBuffer(message)), size: len(message), lenient: lenient}
}

// open reads { or [.
func (s *strict) open(bracket byte) {
	want := "an object"
	if bracket == '[' {
		want = "a list"
	}
	s.expect(jsontext.Kind(bracket), want)
}

// more says whether a member or element follows; if none does, it reads the closing bracket.
func (s *strict) more(bracket byte) bool {
	if s.err != nil {
		return false
	}
	if s.dec.PeekKind() != jsontext.Kind(bracket) {
		return true
	}
	_, s.err = s.dec.ReadToken()
	return false
}

// name reads the name of a member.
func (s *strict) name() string { return s.text() }

// kind gives the kind of the next value: its first byte, or '0' for any number.
func (s *strict) kind() jsontext.Kind { return s.dec.PeekKind() }

func (s *strict) text() string {
	token, ok := s.expect('"', "a string")
	if !ok {
		return ""
	}
	return token.String()
}

// integer reads digits with at most a minus in front. Two spellings of one number (-0, 1.0, 1e3) would be a trap for
// whoever compares messages, and the larger ones would not be exact.
func (s *strict) integer() int64 {
	token, ok := s.expect('0', "an integer")
	if !ok {
		return 0
	}
	n, err := token.Int()
	switch {
	case errors.Is(err, strconv.ErrRange):
		s.wrong("integer beyond 64 bits")
	case err != nil, n == 0 && token.String() != "0":
		s.wrong("not a plain integer such as 100 (no fraction, exponent or -0)")
	}
	return n
}

// other reads a value of a kind that is not among those wanted, and fails.
func (s *strict) other(want string) { s.expect(0, want) }

// expect reads a token of one kind.
func (s *strict) expect(kind jsontext.Kind, want string) (token jsontext.Token, ok bool) {
	if s.err != nil {
		return token, false
	}
	found := s.dec.PeekKind()
	token, s.err = s.dec.ReadToken()
	if s.err == nil && found != kind {
		s.wrong(kindNames[found] + " where " + want + " is expected")
	}
	return token, s.err == nil
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 'f': "false", 't': "true", '"': "a string", '0': "a number",
	'{': "an object", '}': "an end of object", '[': "a list", ']': "an end of list",
}

// unknown is told that nobody knows the name just read: it skips its value, or fails.
func (s *strict) unknown() {
	switch {
	case s.err != nil:
	case s.lenient:
		s.err = s.dec.SkipValue()
	default:
		s.wrong("unknown field")
	}
}

// wrong is told what is wrong with what was just read.
func (s *strict) wrong(what string) {
	if s.err == nil {
		s.err = errors.New(place(s.dec.StackPointer()) + ": " + what)
	}
}

// end expects the end of the message, and gives the failure.
func (s *strict) end() error {
	if s.err != nil {
		return s.describe()
	}
	end := s.dec.InputOffset()
	if _, err := s.dec.ReadToken(); err != io.EOF {
		return fmt.Errorf("byte %d: unexpected data after the message", end)
	}
	return nil
}

// describe words what the JSON library found; errors of our own are as they should be.
func (s *strict) describe() error {
	var syntax *jsontext.SyntacticError
	switch {
	case s.err == io.EOF && s.size == 0:
		return errors.New(`empty body; send {"rate_limits": [...]}`)
	case s.err == io.EOF, errors.Is(s.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: it ends in the middle, at byte %d", s.size)
	case errors.Is(s.err, jsontext.ErrDuplicateName) && errors.As(s.err, &syntax):
		return errors.New(place(syntax.JSONPointer) + ": this field is there twice")
	case errors.As(s.err, &syntax):
		return fmt.Errorf("not JSON at byte %d, in %s: %v", syntax.ByteOffset, place(syntax.JSONPointer), syntax.Err)
	}
	return s.err
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
