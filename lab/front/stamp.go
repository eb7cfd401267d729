package front

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// stamp is the times that a stub writes into a chunk, by cluster.Now.
type stamp struct{ arrived, sent int64 }

// String returns the stamp as the text of a chunk.
func (s stamp) String() string { return fmt.Sprintf("@%d,%d;", s.arrived, s.sent) }

// stamps reads the times of a chunk from its event. s has the chunks before it. ok is false for an
// event without times.
type stamps func(s *stream, event []byte) (t stamp, ok bool)

// textStamp implements stamps for this package's stubs.
func textStamp(_ *stream, event []byte) (stamp, bool) { return parseStamp(event) }

// parseStamp returns the times that the stub wrote into an event, as @ARRIVED,SENT; in
// nanoseconds. ok is false for an event without them.
func parseStamp(event []byte) (s stamp, ok bool) {
	_, rest, found := bytes.Cut(event, []byte("@"))
	arrived, rest, found2 := bytes.Cut(rest, []byte(","))
	sent, _, found3 := bytes.Cut(rest, []byte(";"))
	if !found || !found2 || !found3 {
		return s, false
	}
	var err, err2 error
	s.arrived, err = strconv.ParseInt(string(arrived), 10, 64)
	s.sent, err2 = strconv.ParseInt(string(sent), 10, 64)
	return s, err == nil && err2 == nil
}

// stream is one answer while it is read.
type stream struct {
	began   int64  // when the request was sent
	stamps  stamps // nil: textStamp
	arrived int64  // at the stub, by the first chunk
	rest    []byte
	// first is what was added to the first byte, chunks what was added to each chunk after
	// it, in nanoseconds.
	first  int64
	chunks []int64
	// events counts the chunks with a stamp. done is true after the end mark, failed after an
	// error.
	events       int
	done, failed bool
}

// add adds a piece of the answer that was read at the time now, in nanoseconds, and records each
// event that is whole.
func (s *stream) add(piece []byte, now int64) {
	s.rest = append(s.rest, piece...)
	for {
		event, rest, whole := bytes.Cut(s.rest, []byte("\n\n"))
		if !whole {
			return
		}
		s.event(event, now)
		s.rest = rest
	}
}

// event records one event of the stream, which arrived at the time now. The time of the first
// event leaves out the stub's own, between arrival and sending.
func (s *stream) event(event []byte, now int64) {
	read := s.stamps
	if read == nil {
		read = textStamp
	}
	t, ok := read(s, event)
	switch {
	case bytes.Contains(event, []byte(`"error"`)):
		s.failed = true
	case bytes.HasSuffix(event, []byte("[DONE]")):
		s.done = true
	case !ok:
	case s.events == 0:
		s.events++
		s.arrived = t.arrived
		s.first = (now - s.began) - (t.sent - t.arrived)
	default:
		s.events++
		s.chunks = append(s.chunks, now-t.sent)
	}
}

// whole reports whether the answer had every chunk and its end.
func (s *stream) whole() bool { return s.done && !s.failed && s.events == chunks }

const (
	// dynamoBase is the base of the arrival in a Dynamo worker's first chunk, dynamoTick the unit
	// of the other times. The greatest word stands for every later time, which is later than late.
	dynamoBase = 100_000
	dynamoTick = 10 * time.Microsecond
)

// wordStamp implements stamps for the workers of Dynamo, live.bench_worker: a chunk's last word is
// the time from the arrival to the sending, less chunkDelay for each earlier chunk. The first
// chunk has three words with the arrival before that.
func wordStamp(s *stream, event []byte) (t stamp, ok bool) {
	_, text, ok := bytes.Cut(event, []byte(`"content":"`))
	if !ok {
		_, text, ok = bytes.Cut(event, []byte(`"text":"`))
	}
	text, _, closed := bytes.Cut(text, []byte(`"`))
	words := bytes.Fields(text)
	want := 1
	if s.events == 0 {
		want = 4
	}
	if !ok || !closed || len(words) != want {
		return t, false
	}
	var numbers [4]int64
	for i, w := range words {
		n, err := strconv.ParseInt(string(w), 36, 64)
		if err != nil {
			return t, false
		}
		numbers[i] = n
	}
	t.arrived = s.arrived
	if s.events == 0 {
		us := (numbers[0]*dynamoBase+numbers[1])*dynamoBase + numbers[2]
		t.arrived = us * int64(time.Microsecond)
	}
	since := numbers[want-1]
	t.sent = t.arrived + int64(s.events)*int64(chunkDelay) + since*int64(dynamoTick)
	return t, since < vocabulary-1
}
