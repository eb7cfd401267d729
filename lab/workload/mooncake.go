package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// MooncakeBlock is the number of tokens that one hash id of a Mooncake trace
// names, together with everything before them.
const MooncakeBlock = 512

// Bounds of a trace line. A line beyond them is an error, not a clamped value:
// it is more likely a broken file than a prompt.
const (
	maxTraceLine   = 1 << 20
	maxTraceTokens = 4 << 20
)

// ReadMooncakeFile returns the requests of the trace in a file; see ReadMooncake.
func ReadMooncakeFile(path string, limit int) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // names the file
	}
	defer f.Close()
	return ReadMooncake(f, path, limit)
}

// ReadMooncake reads a trace of one JSON object per line,
//
//	{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}
//
// and returns its first limit requests (all with a limit of 0 or less) in order
// of time, the first one due at 0. name stands for the file in errors. Each
// request is a session of its own: the ids say what conversations share.
// Other keys are ignored, and so are empty lines. A trace without requests is an
// error.
func ReadMooncake(r io.Reader, name string, limit int) ([]Request, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxTraceLine)
	var requests []Request
	number := 0
	for (limit <= 0 || len(requests) < limit) && lines.Scan() {
		number++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		req, err := parseMooncakeLine(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		req.ID = fmt.Sprintf("l%d", number)
		req.Session = len(requests)
		requests = append(requests, req)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("%s:%d: line is longer than %d bytes", name, number+1, maxTraceLine)
		}
		return nil, fmt.Errorf("%s:%d: %w", name, number+1, err)
	}
	return inOrder(requests, name)
}

// parseMooncakeLine returns the request of one line of a trace, without id and session.
func parseMooncakeLine(line []byte) (Request, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return Request{}, fmt.Errorf("want a JSON object, got %s", excerpt(line))
	}
	const maxMillis = 1 << 40
	millis, err := traceInt(fields, "timestamp", 0, maxMillis)
	if err != nil {
		return Request{}, err
	}
	input, err := traceInt(fields, "input_length", 1, maxTraceTokens)
	if err != nil {
		return Request{}, err
	}
	output, err := traceInt(fields, "output_length", 1, maxTraceTokens)
	if err != nil {
		return Request{}, err
	}
	pieces, err := tracePieces(fields, int(input))
	if err != nil {
		return Request{}, err
	}
	return Request{At: time.Duration(millis) * time.Millisecond, Pieces: pieces, OutputTokens: int(output)}, nil
}

// tracePieces returns the prompt that the field hash_ids of a trace describes: for each id a
// piece of MooncakeBlock tokens that is the same wherever the id occurs. input is the length of
// the prompt in tokens; the last piece is cut to it.
func tracePieces(fields map[string]json.RawMessage, input int) ([]Piece, error) {
	raw, ok := fields["hash_ids"]
	if !ok {
		return nil, errors.New("field hash_ids: missing")
	}
	var ids []json.RawMessage
	if err := json.Unmarshal(raw, &ids); err != nil || ids == nil {
		return nil, fmt.Errorf("field hash_ids: %s is not a list of integers", excerpt(raw))
	}
	if want := (input + MooncakeBlock - 1) / MooncakeBlock; len(ids) != want {
		return nil, fmt.Errorf("field hash_ids: %d ids, but input_length %d makes %d blocks of %d tokens", len(ids), input, want, MooncakeBlock)
	}
	pieces := make([]Piece, len(ids))
	for i, id := range ids {
		var v uint64
		if err := json.Unmarshal(id, &v); err != nil || string(id) == "null" {
			return nil, fmt.Errorf("field hash_ids[%d]: %s is not an integer from 0 to 2^64-1", i, excerpt(id))
		}
		pieces[i] = Piece{Stream: traceStream(v), Tokens: min(MooncakeBlock, input-i*MooncakeBlock)}
	}
	return pieces, nil
}

// traceStream returns the piece stream of a hash id, apart from those that Generate
// makes.
func traceStream(id uint64) uint64 { return mix(id ^ 0x6d6f6f6e63616b65) } // "mooncake"

// traceInt returns the integer field name of a trace's line. The error says that the field is
// missing, no integer, or not in low..high.
func traceInt(fields map[string]json.RawMessage, name string, low, high int64) (int64, error) {
	raw, ok := fields[name]
	if !ok {
		return 0, fmt.Errorf("field %s: missing", name)
	}
	var v int64
	if err := json.Unmarshal(raw, &v); err != nil || string(raw) == "null" {
		return 0, fmt.Errorf("field %s: %s is not an integer", name, excerpt(raw))
	}
	if v < low || v > high {
		return 0, fmt.Errorf("field %s: %d is not in %d..%d", name, v, low, high)
	}
	return v, nil
}

// excerpt returns the start of a piece of input, quoted, short enough for an error.
func excerpt(b []byte) string {
	const most = 60
	if len(b) > most {
		return fmt.Sprintf("%q…", b[:most])
	}
	return fmt.Sprintf("%q", b)
}
