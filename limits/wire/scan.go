package wire

import (
	"math"
	"math/bits"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// A scanner reads messages in the form in which nearly all come: members that are known, strings without escapes, integers
// of at most 19 digits. It copies nothing: texts share the memory of the message. At anything else, right or wrong, it fails,
// and gives nothing more: then somebody else begins anew, who knows all of JSON and says what is wrong.
type scanner struct {
	message string
	at      int // what is before has been read
	failed  bool
}

func newScanner(message []byte) scanner {
	return scanner{message: unsafe.String(unsafe.SliceData(message), len(message))}
}

func (s *scanner) fail() { s.failed, s.at = true, len(s.message) }

// peek gives the next byte that is not white space; 0 if there is none.
func (s *scanner) peek() byte {
	if s.at < len(s.message) && s.message[s.at] > ' ' {
		return s.message[s.at]
	}
	return s.peekFar()
}

func (s *scanner) peekFar() byte {
	for ; s.at < len(s.message); s.at++ {
		switch c := s.message[s.at]; c {
		case ' ', '\n', '\r', '\t':
		default:
			return c
		}
	}
	return 0
}

// eat reads one byte, which must be the next.
func (s *scanner) eat(c byte) {
	if s.peek() != c {
		s.fail()
		return
	}
	s.at++
}

// more says whether a member or element follows the n that have been read; if none does, it reads the bracket that closes.
func (s *scanner) more(bracket byte, n int) bool {
	c := s.peek()
	if c == bracket {
		s.at++
		return false
	}
	if n == 0 {
		return !s.failed
	}
	s.eat(',')
	return !s.failed
}

// name reads the name of a member.
func (s *scanner) name() string {
	name := s.text()
	s.eat(':')
	return name
}

// text reads a string, eight bytes at a time, since most of all messages is in strings.
func (s *scanner) text() string {
	s.eat('"')
	m, start := s.message, s.at
	end := start
	for ; end+8 <= len(m); end += 8 {
		if odd := oddBytes(word(m[end : end+8])); odd != 0 {
			end += bits.TrailingZeros64(odd) / 8
			break
		}
	}
	for end < len(m) && m[end] < utf8.RuneSelf && !isEscaped(rune(m[end])) { // no more than the last bytes of the message
		end++
	}
	if end < len(m) && m[end] == '"' && !s.failed {
		s.at = end + 1
		return m[start:end]
	}
	return s.textBeyondASCII()
}

func (s *scanner) textBeyondASCII() string {
	rest := s.message[s.at:]
	end := strings.IndexByte(rest, '"')
	if end < 0 || !utf8.ValidString(rest[:end]) || strings.ContainsFunc(rest[:end], isEscaped) {
		s.fail()
		return ""
	}
	s.at += end + 1
	return rest[:end]
}

// integer reads a plain integer.
func (s *scanner) integer() int64 {
	negative := s.peek() == '-'
	if negative {
		s.at++
	}
	m, start, n := s.message, s.at, uint64(0)
	end := start
	for ; end < len(m) && m[end]-'0' <= 9; end++ {
		n = 10*n + uint64(m[end]-'0') // may overflow, where it is refused
	}
	// 20 digits may overflow. 007 and -0 are no JSON or no plain integers. What follows is for others to see.
	if digits := end - start; digits == 0 || digits > 19 || n > math.MaxInt64 || m[start] == '0' && (digits > 1 || negative) {
		s.fail()
		return 0
	}
	s.at = end
	if negative {
		return -int64(n)
	}
	return int64(n)
}

// octet reads a plain integer from 0 to 255.
func (s *scanner) octet() uint8 {
	n := s.integer()
	if n < 0 || n > 255 {
		s.fail()
	}
	return uint8(n)
}

// truth reads the one truth value that messages have, since the other is left out.
func (s *scanner) truth() bool {
	s.peek()
	if !strings.HasPrefix(s.message[s.at:], "true") {
		s.fail()
		return false
	}
	s.at += len("true")
	return true
}

// end says whether all of the message has been read.
func (s *scanner) end() bool { return s.peek() == 0 && s.at == len(s.message) && !s.failed }

// isEscaped says whether JSON strings have r only behind a backslash, or as one.
func isEscaped(r rune) bool { return r < ' ' || r == '"' || r == '\\' }

// oddBytes marks, in the top bit, each of eight bytes that is not ASCII or isEscaped. A byte above a marked one may be marked
// without being such.
func oddBytes(w uint64) uint64 {
	quote, backslash := w^('"'*ones), w^('\\'*ones)
	return (w | (w - ' '*ones) | (quote - ones) | (backslash - ones)) & tops
}

// isBare says whether s is ASCII without anything that isEscaped.
func isBare(s string) bool {
	for ; len(s) >= 8; s = s[8:] {
		if oddBytes(word(s)) != 0 {
			return false
		}
	}
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf || isEscaped(rune(s[i])) {
			return false
		}
	}
	return true
}

// For eight bytes at a time.
const ones, tops = 0x0101010101010101, 0x8080808080808080

// word returns the first eight bytes of s as a number.
func word(s string) uint64 {
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
