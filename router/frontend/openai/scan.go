package openai

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

// MaxDepth is the number of arrays and objects that may contain one another.
const MaxDepth = 64

// scanner walks over one JSON text. The first error stays: after it every method
// returns zero values. Strings are checked for the syntax of JSON, not for UTF-8.
type scanner struct {
	data  []byte
	pos   int
	depth int
	err   error
}

// fail records what was wanted at the position of the scanner.
func (s *scanner) fail(want string) {
	if s.err == nil {
		s.err = &syntaxError{offset: s.pos, want: want, end: s.pos >= len(s.data)}
	}
}

// peek returns the next byte, or 0 at the end and after an error.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) && s.err == nil {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// end checks that nothing but white space follows.
func (s *scanner) end() {
	if s.space(); s.err == nil && s.pos < len(s.data) {
		s.fail("the end of the body")
	}
}

// value passes over one value and returns its bytes. The scanner stands at its first byte.
func (s *scanner) value() []byte {
	start := s.pos
	switch c := s.peek(); {
	case c == '"':
		return s.text()
	case c == '{':
		for l := s.open(); l.next(); {
			l.key()
			s.value()
		}
	case c == '[':
		for l := s.open(); l.next(); {
			s.value()
		}
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	default:
		s.fail("a JSON value")
	}
	return s.since(start)
}

func (s *scanner) since(start int) []byte {
	if s.err != nil {
		return nil
	}
	return s.data[start:s.pos]
}

func (s *scanner) literal(word string) []byte {
	start := s.pos
	if end := start + len(word); end <= len(s.data) && string(s.data[start:end]) == word {
		s.pos = end
		return s.data[start:end]
	}
	s.fail(word)
	return nil
}

func (s *scanner) digits() {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos]-'0' <= 9 {
		s.pos++
	}
	if s.pos == start {
		s.fail("a digit")
	}
}

func (s *scanner) number() []byte {
	start := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else {
		s.digits()
	}
	if s.peek() == '.' {
		s.pos++
		s.digits()
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		s.digits()
	}
	return s.since(start)
}

// text passes over a string and returns its bytes, quotes included.
func (s *scanner) text() []byte {
	start := s.pos
	if s.peek() != '"' {
		s.fail("a string")
		return nil
	}
	s.pos++
	for {
		s.pos += plain(s.data[s.pos:])
		switch c := s.peek(); {
		case c == '"':
			s.pos++
			return s.data[start:s.pos]
		case c == '\\':
			s.escape()
		default:
			s.fail("a character of a string")
		}
		if s.err != nil {
			return nil
		}
	}
}

func (s *scanner) escape() {
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
	case 'u':
		s.pos++
		for range 4 {
			if c := s.peek(); c-'0' > 9 && (c|0x20)-'a' > 5 {
				s.fail("a hexadecimal digit")
				return
			}
			s.pos++
		}
	default:
		s.fail("an escape")
	}
}

// plain returns the number of bytes before the first quote, backslash or control
// character. It looks at eight bytes at a time.
func plain(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The lowest set bit is exact: borrows reach higher bytes only.
		found := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w) & highs
		if found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	for ; n < len(b); n++ {
		if c := b[n]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return n
}

// list walks over the members of an object or the elements of an array. The caller
// reads each key, if there are keys, and passes over each value.
type list struct {
	s     *scanner
	close byte
	begun bool
}

// open enters the array or object at the scanner.
func (s *scanner) open() list {
	l := list{s: s, close: ']'}
	switch s.peek() {
	case '{':
		l.close = '}'
	case '[':
	default:
		s.fail("an array or an object")
		return l
	}
	if s.depth++; s.depth > MaxDepth {
		if s.err == nil {
			s.err = errDepth
		}
		return l
	}
	s.pos++
	return l
}

// next moves to the next element or key. It leaves the list at its end.
func (l *list) next() bool {
	s := l.s
	s.space()
	c := s.peek()
	if s.err != nil {
		return false
	}
	if c == l.close {
		s.pos++
		s.depth--
		return false
	}
	if !l.begun {
		l.begun = true
		return true
	}
	if c != ',' {
		s.fail("a comma or the end of the list")
		return false
	}
	s.pos++
	if s.space(); s.peek() == l.close {
		s.fail("a value after the comma")
		return false
	}
	return true
}

// key returns the name of a member with its quotes and moves to the value.
func (l *list) key() []byte {
	s := l.s
	k := s.text()
	if s.space(); s.peek() != ':' {
		s.fail("a colon")
		return nil
	}
	s.pos++
	s.space()
	return k
}

// unquote returns the text of a string that the scanner has accepted. The result
// aliases raw unless raw has escapes.
func unquote(raw []byte) []byte {
	if len(raw) < 2 {
		return nil
	}
	inner := raw[1 : len(raw)-1]
	for _, c := range inner {
		if c == '\\' {
			var text string
			if json.Unmarshal(raw, &text) != nil {
				return nil
			}
			return []byte(text)
		}
	}
	return inner
}
