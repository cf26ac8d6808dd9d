package limits

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// A scanner is the quick source. It copies nothing, and knows the form in which nearly all messages come: strings without
// escapes, and integers of at most 18 digits. At anything else, right or wrong, it fails, and a strict begins anew.
type scanner struct {
	left   []byte // not yet read; nil once failed
	inside bool   // of an object or list that is not empty, so that a comma must follow
}

// errOdd is the failure of a scanner. Nobody gets to see it.
var errOdd = errors.New("not the plain form")

func (s *scanner) fail() { s.left = nil }

func (s *scanner) wrong(string) { s.fail() }
func (s *scanner) other(string) { s.fail() }
func (s *scanner) unknown()     { s.fail() }

// peek gives the next byte that is not white space; 0 if there is none.
func (s *scanner) peek() byte {
	for len(s.left) > 0 {
		switch c := s.left[0]; c {
		case ' ', '\n', '\r', '\t':
			s.left = s.left[1:]
		default:
			return c
		}
	}
	return 0
}

// eat reads one byte if it is the next.
func (s *scanner) eat(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.left = s.left[1:]
	return true
}

func (s *scanner) open(bracket byte) {
	if !s.eat(bracket) {
		s.fail()
	}
	s.inside = false
}

func (s *scanner) more(bracket byte) bool {
	if s.eat(bracket) {
		s.inside = true // of what surrounds it
		return false
	}
	if s.inside && !s.eat(',') || len(s.left) == 0 {
		s.fail()
		return false
	}
	s.inside = true
	return true
}

func (s *scanner) name() string {
	name := s.text()
	if !s.eat(':') {
		s.fail()
	}
	return name
}

func (s *scanner) kind() byte {
	c := s.peek()
	if c == '-' || '0' <= c && c <= '9' {
		return 0
	}
	return c
}

func (s *scanner) text() string {
	if !s.eat('"') {
		s.fail()
		return ""
	}
	end := bytes.IndexByte(s.left, '"')
	if end < 0 {
		s.fail()
		return ""
	}
	text := unsafe.String(unsafe.SliceData(s.left), end)
	if !isBare(text) && (!utf8.ValidString(text) || strings.ContainsFunc(text, isEscaped)) {
		s.fail()
		return ""
	}
	s.left = s.left[end+1:]
	return text
}

// isEscaped says whether JSON strings have r only behind a backslash, or as one.
func isEscaped(r rune) bool { return r < ' ' || r == '"' || r == '\\' }

// isBare says whether s is ASCII without anything that isEscaped. It takes eight bytes at a time, since all strings of all
// messages pass here.
func isBare(s string) bool {
	for ; len(s) >= 8; s = s[8:] {
		w := word(s)
		quote, backslash := w^('"'*ones), w^('\\'*ones)
		if (w|(w-' '*ones)|(quote-ones)|(backslash-ones))&tops != 0 {
			return false // or a byte beside such a one, which is as well: others look closer
		}
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf || isEscaped(rune(s[i])) {
			return false
		}
	}
	return true
}

func (s *scanner) integer() int64 {
	negative := s.eat('-')
	digits := 0
	n := int64(0)
	for digits < len(s.left) && '0' <= s.left[digits] && s.left[digits] <= '9' {
		if digits == 18 {
			s.fail() // it may be beyond 64 bits
			return 0
		}
		n = 10*n + int64(s.left[digits]-'0')
		digits++
	}
	// 007 and -0 are no JSON or no plain integers. What follows a good one is for more to see.
	if digits == 0 || s.left[0] == '0' && (digits > 1 || negative) {
		s.fail()
		return 0
	}
	s.left = s.left[digits:]
	if negative {
		return -n
	}
	return n
}

func (s *scanner) end() error {
	s.peek()
	if s.left == nil || len(s.left) > 0 {
		return errOdd
	}
	return nil
}
