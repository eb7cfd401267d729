package openai_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

type line struct{ name, data, raw string }

// scan returns the events of a stream and the error at its end.
func scan(r io.Reader, most int) (events []line, rest string, err error) {
	s := openai.NewScanner(r, most)
	for {
		e, err := s.Next()
		if err != nil {
			return events, string(s.Rest()), err
		}
		data := string(e.Data)
		if e.Comment() {
			data = "-"
		}
		events = append(events, line{string(e.Name), data, string(e.Raw)})
	}
}

func TestScannerSplitsEvents(t *testing.T) {
	const stream = "\xef\xbb\xbfdata: {\"a\":1}\n\n" +
		": keep-alive\r\n\r\n" +
		"event: message_start\r\ndata:x\r\ndata: y\r\nid: 3\r\n\r\n" +
		"\n" +
		"data\n\n" +
		"data:  two spaces\nretry: 5\n\r\n" +
		"data: [DONE]\n\n"
	want := []line{
		{"", `{"a":1}`, "\xef\xbb\xbfdata: {\"a\":1}\n\n"},
		{"", "-", ": keep-alive\r\n\r\n"},
		{"message_start", "x\ny", "event: message_start\r\ndata:x\r\ndata: y\r\nid: 3\r\n\r\n"},
		{"", "-", "\n"},
		{"", "", "data\n\n"},
		{"", " two spaces", "data:  two spaces\nretry: 5\n\r\n"},
		{"", "[DONE]", "data: [DONE]\n\n"},
	}
	for name, r := range map[string]io.Reader{
		"whole":    strings.NewReader(stream),
		"bytes":    iotest.OneByteReader(strings.NewReader(stream)),
		"halves":   iotest.HalfReader(strings.NewReader(stream)),
		"with EOF": iotest.DataErrReader(strings.NewReader(stream)),
	} {
		got, rest, err := scan(r, 64)
		if err != io.EOF || rest != "" {
			t.Errorf("%s: rest %q, error %v", name, rest, err)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d events, want %d: %q", name, len(got), len(want), got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: event %d is %q, want %q", name, i, got[i], want[i])
			}
		}
	}
}

func TestScannerBoundsEvents(t *testing.T) {
	for _, c := range []struct {
		stream string
		events int
		err    error
	}{
		{"data: 01234567\n\n", 1, io.EOF}, // 16 bytes
		{"data: 012345678\n\n", 0, openai.ErrEventTooLarge},
		{"data: 1\n\ndata: 0123456789abcdef", 1, openai.ErrEventTooLarge},
		{"data: 1\n\ndata: 2", 1, io.ErrUnexpectedEOF},
	} {
		events, _, err := scan(strings.NewReader(c.stream), 16)
		if len(events) != c.events || err != c.err {
			t.Errorf("%q: %d events and %v, want %d and %v", c.stream, len(events), err, c.events, c.err)
		}
	}
}

func TestABlankLineMayFollowTheByteOrderMark(t *testing.T) {
	events, _, err := scan(strings.NewReader("\xef\xbb\xbf\r\ndata: 1\n\n"), 64)
	if len(events) != 2 || events[0].data != "-" || events[1].data != "1" || err != io.EOF {
		t.Errorf("events %q, error %v", events, err)
	}
}

func TestScannerPassesErrorsOnAfterTheEvents(t *testing.T) {
	broken := errors.New("broken")
	events, rest, err := scan(io.MultiReader(strings.NewReader("data: 1\n\nda"), iotest.ErrReader(broken)), 64)
	if len(events) != 1 || rest != "da" || err != broken {
		t.Errorf("events %q, rest %q, error %v", events, rest, err)
	}
	if _, _, err := scan(silent{}, 64); err != io.ErrNoProgress {
		t.Errorf("a silent reader: %v", err)
	}
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

// paced hands over one event with each Read and fails the test when it is read again
// before the event was returned.
type paced struct {
	t      *testing.T
	events []string
	owed   bool
}

func (p *paced) Read(b []byte) (int, error) {
	if p.owed {
		p.t.Error("Read before the event was returned")
	}
	if len(p.events) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.events[0])
	p.events, p.owed = p.events[1:], true
	return n, nil
}

func TestScannerDoesNotWaitForTheNextEvent(t *testing.T) {
	p := &paced{t: t, events: []string{"data: 1\n\n", "data: 2\n\n"}}
	s := openai.NewScanner(p, 64)
	for range 2 {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		p.owed = false
	}
}

func TestScannerReadsAnotherStream(t *testing.T) {
	s := openai.NewScanner(strings.NewReader("data: 1\n\nda"), 64)
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	s.Reset(strings.NewReader("\xef\xbb\xbfdata: 2\n\n"))
	e, err := s.Next()
	if err != nil || string(e.Data) != "2" {
		t.Errorf("data %q, error %v", e.Data, err)
	}
}

var chunk = []byte(`data: {"id":"chatcmpl-9f0b51b04b1fbe6c","object":"chat.completion.chunk","created":1795600000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")

func TestScannerAllocatesNothingPerEvent(t *testing.T) {
	stream := bytes.Repeat(chunk, 100)
	r := bytes.NewReader(stream)
	s := openai.NewScanner(r, 1<<20)
	allocs := testing.AllocsPerRun(20, func() {
		r.Reset(stream)
		s.Reset(r)
		tokens := 0
		for {
			e, err := s.Next()
			if err != nil {
				break
			}
			if e.Inspect().Token {
				tokens++
			}
		}
		if tokens != 100 {
			t.Fatalf("%d tokens, want 100", tokens)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations in 100 events", allocs)
	}
}

func BenchmarkScanner(b *testing.B) {
	stream := bytes.Repeat(chunk, 1000)
	r := bytes.NewReader(stream)
	s := openai.NewScanner(r, 1<<20)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		e, err := s.Next()
		if err != nil {
			r.Reset(stream)
			s.Reset(r)
			continue
		}
		if !e.Inspect().Token {
			b.Fatal("no token")
		}
	}
}

func TestBufferedSeesWholeEventsOnly(t *testing.T) {
	pieces := []string{"data: 1\n\ndata: 2\n\nda", "ta: 3\n\n"}
	s := openai.NewScanner(readerFunc(func(b []byte) (int, error) {
		if len(pieces) == 0 {
			return 0, io.EOF
		}
		n := copy(b, pieces[0])
		pieces = pieces[1:]
		return n, nil
	}), 100)
	for i, want := range []bool{true, false, false} {
		e, err := s.Next()
		if got := s.Buffered(); err != nil || got != want {
			t.Errorf("behind event %d (%q, %v): buffered %t, want %t", i+1, e.Data, err, got, want)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A reader that ends with its last bytes has ended before the last event is taken.
func TestScannerKnowsTheEnd(t *testing.T) {
	s := openai.NewScanner(iotest.DataErrReader(strings.NewReader("data: 1\n\ndata: 2\n\n")), 64)
	if s.Ended() {
		t.Error("ended before the first read")
	}
	for range 2 {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Ended() {
		t.Error("the end came with the last event and is not known")
	}
	s.Reset(strings.NewReader("data: 3\n\n"))
	if _, err := s.Next(); err != nil || s.Ended() {
		t.Errorf("another stream: ended %t, %v", s.Ended(), err)
	}
}
