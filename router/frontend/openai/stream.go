package openai

import (
	"bytes"
	"errors"
	"io"
)

// ErrEventTooLarge says that a stream has an event beyond the bound of the Scanner.
var ErrEventTooLarge = errors.New("openai: event exceeds the size limit")

// firstBuffer holds an event with a few tokens. An open stream keeps its buffer.
const firstBuffer = 1 << 10

// Event is one server-sent event. Its bytes are valid until the next call of Next.
type Event struct {
	Raw  []byte // the bytes of the stream, blank line included
	Name []byte // the last "event" field
	Data []byte // the "data" fields, joined by line feeds; nil when there is none
}

// Done reports whether the event is OpenAI's end of the stream.
func (e *Event) Done() bool { return string(e.Data) == "[DONE]" }

// Comment reports whether the event has no data: comments, or a name alone.
func (e *Event) Comment() bool { return e.Data == nil }

// Scanner splits a stream into events. Lines end with LF or CRLF.
type Scanner struct {
	r       io.Reader
	buf     []byte // bytes that have been read and not returned: buf[start:]
	start   int
	looked  int // bytes after start in which no event ends
	line    int // bytes after start at which the line that is looked at begins
	max     int
	joined  []byte // the data of an event with several data lines
	err     error  // of the reader
	opening bool   // no byte of the stream has been returned
}

// NewScanner returns a Scanner of r whose events have at most max bytes. It reads r no
// further than it must for the next event.
func NewScanner(r io.Reader, maxBytes int) *Scanner {
	return &Scanner{r: r, max: maxBytes, opening: true}
}

// keptBuffer is the largest buffer that Reset keeps.
const keptBuffer = 64 << 10

// Reset makes the Scanner read another stream. It keeps its buffers unless they are large.
func (s *Scanner) Reset(r io.Reader) {
	if cap(s.buf)+cap(s.joined) > keptBuffer {
		s.buf, s.joined = nil, nil
	}
	*s = Scanner{r: r, buf: s.buf[:0], max: s.max, joined: s.joined[:0], opening: true}
}

// Next returns the next event. At the end of the stream the error is io.EOF, or
// io.ErrUnexpectedEOF when the stream ends inside an event: Rest has its bytes. Errors of
// the reader come through as they are, after the events before them.
func (s *Scanner) Next() (Event, error) {
	for {
		if n := s.eventEnd(); n > 0 {
			if n > s.max {
				return Event{}, ErrEventTooLarge
			}
			raw := s.buf[s.start : s.start+n]
			s.start, s.looked, s.line = s.start+n, 0, 0
			return s.event(raw), nil
		}
		if len(s.buf)-s.start >= s.max {
			return Event{}, ErrEventTooLarge
		}
		if s.err != nil {
			return Event{}, s.ended()
		}
		s.fill()
	}
}

func (s *Scanner) ended() error {
	if errors.Is(s.err, io.EOF) && len(s.buf) > s.start {
		return io.ErrUnexpectedEOF
	}
	return s.err
}

// Buffered reports whether a whole event was read already, so that Next will not wait.
func (s *Scanner) Buffered() bool { return s.eventEnd() > 0 }

// Ended reports whether the reader has returned its last byte, so that Next will not wait.
func (s *Scanner) Ended() bool { return s.err != nil }

// fill reads once into the free end of the buffer.
func (s *Scanner) fill() {
	if s.start == len(s.buf) {
		s.buf, s.start = s.buf[:0], 0
	}
	if len(s.buf) == cap(s.buf) {
		s.grow()
	}
	for range 100 { // as bufio.Scanner: a reader that returns nothing is broken
		n, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		s.err = err
		if n > 0 || err != nil {
			return
		}
	}
	s.err = io.ErrNoProgress
}

// grow makes room at the end of the buffer: it moves the unread bytes to the front, or
// doubles the buffer.
func (s *Scanner) grow() {
	unread := s.buf[s.start:]
	if s.start > 0 && len(unread) <= cap(s.buf)/2 {
		s.buf, s.start = s.buf[:copy(s.buf[:cap(s.buf)], unread)], 0
		return
	}
	bigger := make([]byte, len(unread), min(max(2*cap(s.buf), firstBuffer), max(s.max, len(unread)+1)))
	copy(bigger, unread)
	s.buf, s.start = bigger, 0
}

// eventEnd returns the length of the first event with its blank line, or 0.
func (s *Scanner) eventEnd() int {
	unread := s.buf[s.start:]
	for i := s.looked; ; {
		n := bytes.IndexByte(unread[i:], '\n')
		if n < 0 {
			s.looked = len(unread)
			return 0
		}
		line := unread[s.line : i+n]
		if s.line == 0 && s.opening {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			// The next call finds the same line again.
			s.looked = i + n
			return i + n + 1
		}
		i += n + 1
		s.line = i
	}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// event reads the fields of an event.
func (s *Scanner) event(raw []byte) Event {
	e := Event{Raw: raw}
	if s.opening {
		raw = bytes.TrimPrefix(raw, byteOrderMark)
		s.opening = false
	}
	lines := 0
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\n')
		line := bytes.TrimSuffix(raw[:n], []byte{'\r'})
		raw = raw[n+1:]
		name, value, found := bytes.Cut(line, []byte{':'})
		if !found {
			value = line[len(line):]
		}
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		switch string(name) {
		case "event":
			e.Name = value
		case "data":
			lines++
			e.Data = s.join(e.Data, value, lines)
		}
	}
	return e
}

// join adds a data line to the data of an event. One line is not copied.
func (s *Scanner) join(data, line []byte, lines int) []byte {
	switch lines {
	case 1:
		return line[:len(line):len(line)]
	case 2:
		s.joined = append(s.joined[:0], data...)
	}
	s.joined = append(append(s.joined, '\n'), line...)
	return s.joined
}
