package wire

import (
	"bytes"
	"math"
	"math/bits"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// A scanner reads the tokens of a message. Texts share the memory of the message, but for those with escapes. With the
// first thing that is wrong it fails, and returns nothing more: what is wrong is for a [replay] to tell.
type scanner struct {
	message string
	at      int // what is before has been read
	lenient bool
	failed  bool
	valid   bool   // all of the message is known to be JSON
	arena   []byte // for texts that had escapes
}

// stringOf returns b as a string that shares its memory.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns the bytes of s, which must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func (s *scanner) fail() { s.failed, s.at = true, len(s.message) }

// peek returns the next byte that is not white space; 0 if there is none.
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

// more reports whether a member or element follows the n that have been read; if none does, it reads the bracket that
// closes.
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

// A pattern is a text of at most 16 bytes, in a form that is compared with two words of a message.
type pattern struct {
	words, mask [2]uint64
	size        int
}

func newPattern(text string) pattern {
	p := pattern{size: len(text)}
	for i := range text {
		p.words[i/8] |= uint64(text[i]) << (i % 8 * 8)
		p.mask[i/8] |= 0xff << (i % 8 * 8)
	}
	return p
}

// eatPattern reads p if it is next. It does not look at the last bytes of a message.
func (s *scanner) eatPattern(p *pattern) bool {
	s.peek()
	if len(s.message)-s.at < 16 {
		return false
	}
	next := s.message[s.at : s.at+16]
	if (word(next)^p.words[0])&p.mask[0]|(word(next[8:])^p.words[1])&p.mask[1] != 0 {
		return false
	}
	s.at += p.size
	return true
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
	if end > 0 && strings.IndexByte(rest[:end], '\\') >= 0 {
		return s.textWithEscapes()
	}
	if end < 0 || !utf8.ValidString(rest[:end]) || strings.ContainsFunc(rest[:end], isEscaped) {
		s.fail()
		return ""
	}
	s.at += end + 1
	return rest[:end]
}

// arenaSize is the memory that texts with escapes share.
const arenaSize = 64 << 10

func (s *scanner) textWithEscapes() string {
	rest := s.message[s.at-1:] // with the first quote
	end := 1
	for end < len(rest) && rest[end] != '"' {
		if rest[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(rest) {
		s.fail()
		return ""
	}
	quoted := rest[:end+1]
	if cap(s.arena)-len(s.arena) < len(quoted) {
		s.arena = make([]byte, 0, max(len(quoted), min(len(rest), arenaSize)))
	}
	all, err := jsontext.AppendUnquote(s.arena, bytesOf(quoted))
	if err != nil { // also for half of a surrogate pair
		s.fail()
		return ""
	}
	text := stringOf(all[len(s.arena):])
	s.arena, s.at = all, s.at+end
	return text
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
	most := uint64(math.MaxInt64)
	if negative {
		most++
	}
	// 20 digits may overflow. 007 and -0 are no JSON or no plain integers.
	if digits := end - start; digits == 0 || digits > 19 || n > most || m[start] == '0' && (digits > 1 || negative) {
		s.fail()
		return 0
	}
	s.at = end
	if negative {
		return int64(-n)
	}
	return int64(n)
}

// unknown skips the value of a member whose name is unknown, if these are allowed. They are rare, so that the JSON
// library may check them: the value by itself, and once the message, in which such a name might be there twice.
func (s *scanner) unknown() {
	s.valid = s.valid || s.lenient && jsontext.Value(bytesOf(s.message)).IsValid()
	if !s.valid {
		s.fail()
		return
	}
	value := jsontext.NewDecoder(bytes.NewBuffer(bytesOf(s.message[s.at:])))
	if err := value.SkipValue(); err != nil {
		s.fail()
		return
	}
	s.at += int(value.InputOffset())
}

// end reports whether all of the message has been read.
func (s *scanner) end() bool { return s.peek() == 0 && s.at == len(s.message) && !s.failed }

// isEscaped reports whether JSON strings have r only behind a backslash, or as one.
func isEscaped(r rune) bool { return r < ' ' || r == '"' || r == '\\' }

// For eight bytes at a time.
const ones, tops = 0x0101010101010101, 0x8080808080808080

// word returns the first eight bytes of s as a number.
func word(s string) uint64 {
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// oddBytes marks, in the top bit, each of eight bytes that is not ASCII or isEscaped. A byte above a marked one may be
// marked without being such.
func oddBytes(w uint64) uint64 {
	quote, backslash := w^('"'*ones), w^('\\'*ones)
	return (w | (w - ' '*ones) | (quote - ones) | (backslash - ones)) & tops
}

// isBare reports whether s is ASCII without anything that isEscaped.
func isBare(s string) bool {
	if len(s) < 8 {
		for i := range len(s) {
			if s[i] >= utf8.RuneSelf || isEscaped(rune(s[i])) {
				return false
			}
		}
		return true
	}
	for rest := s; len(rest) > 8; rest = rest[8:] {
		if oddBytes(word(rest)) != 0 {
			return false
		}
	}
	return oddBytes(word(s[len(s)-8:])) == 0 // some of them for the second time
}

// appendText appends a JSON string. Invalid UTF-8, which no text of ours has, becomes the replacement character.
func appendText(dst []byte, text string) []byte {
	if isBare(text) {
		return append(append(append(dst, '"'), text...), '"')
	}
	dst, _ = jsontext.AppendQuote(dst, text)
	return dst
}
