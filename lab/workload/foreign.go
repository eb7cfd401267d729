package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// BailianBlock is the number of tokens that one hash id of a Bailian trace names.
const BailianBlock = 16

// bailianLine is a line of Alibaba's qwen-bailian-usagetraces. Times are seconds.
type bailianLine struct {
	Timestamp    float64  `json:"timestamp"`
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// ReadBailian reads a trace of one JSON object per line,
//
//	{"chat_id": …, "timestamp": s, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}
//
// and returns its first limit requests (all with 0 or less) in order of time, the first one due at 0.
// An id names 16 tokens with their prefix. Each request is a session of its own. The error names the
// line and the field.
func ReadBailian(r io.Reader, name string, limit int) ([]Request, error) {
	var requests []Request
	err := eachLine(r, name, func(number int, line []byte) (bool, error) {
		var l bailianLine
		if err := json.Unmarshal(line, &l); err != nil {
			return false, fmt.Errorf("want a JSON object of a Bailian trace: %w", err)
		}
		if !(l.Timestamp >= 0 && l.Timestamp <= 1e9) {
			return false, fmt.Errorf("field timestamp: %v is not in 0..1e9", l.Timestamp)
		}
		pieces, err := blockPieces(l.HashIDs, BailianBlock, l.InputLength, 0)
		if err != nil {
			return false, err
		}
		requests = append(requests, Request{ID: fmt.Sprintf("l%d", number), Session: len(requests), Pieces: pieces, Whole: true,
			At: seconds(l.Timestamp), OutputTokens: min(max(1, l.OutputLength), maxTraceTokens)})
		return limit <= 0 || len(requests) < limit, nil
	})
	if err != nil {
		return nil, err
	}
	return inOrder(requests, name)
}

// eachLine calls do with each line that is not empty, until do returns false. An error names the line.
func eachLine(r io.Reader, name string, do func(number int, line []byte) (bool, error)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		more, err := do(number, line)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, number, err)
		}
		if !more {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// blockPieces returns a prompt of tokens whose blocks have ids. scope keeps the ids of one session
// apart from those of others; 0 is common to all.
func blockPieces(ids []uint64, block, tokens int, scope uint64) ([]Piece, error) {
	if tokens < 1 || tokens > maxTraceTokens {
		return nil, fmt.Errorf("input length: %d is not in 1..%d", tokens, maxTraceTokens)
	}
	// Traces leave out a last block that is not full, or have one for it.
	if len(ids) < tokens/block || len(ids) > (tokens+block-1)/block {
		return nil, fmt.Errorf("field hash_ids: %d ids for %d tokens in blocks of %d", len(ids), tokens, block)
	}
	pieces := make([]Piece, 0, len(ids)+1)
	for i, id := range ids {
		pieces = append(pieces, Piece{Stream: mix(traceStream(id) ^ scope), Tokens: min(block, tokens-i*block)})
	}
	if rest := tokens - len(ids)*block; rest > 0 {
		pieces = append(pieces, Piece{Stream: mix(uint64(tokens) ^ scope ^ 0x72657374), Tokens: rest})
	}
	return pieces, nil
}

// inOrder sorts requests by time and has the first one due at 0.
func inOrder(requests []Request, name string) ([]Request, error) {
	if len(requests) == 0 {
		return nil, fmt.Errorf("%s: no requests in it", name)
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	start := requests[0].At
	for i := range requests {
		requests[i].At -= start
	}
	return requests, nil
}

// testerSession is a file of kv-cache-tester: one session of a coding agent. Times are seconds.
type testerSession struct {
	ID        string          `json:"id"`
	BlockSize int             `json:"block_size"`
	Requests  []testerRequest `json:"requests"`
}

// testerRequest is one request. A helper of the agent has requests of its own.
type testerRequest struct {
	T         float64         `json:"t"`
	In        int             `json:"in"`
	Out       int             `json:"out"`
	HashIDs   []uint64        `json:"hash_ids"`
	ThinkTime float64         `json:"think_time"`
	Requests  []testerRequest `json:"requests"`
}

// ReadTester reads one session of kv-cache-tester, a JSON object with the requests of a coding agent,
// and returns its requests: each whole, the next one due think_time after the end of the one before.
// session numbers the session. Requests of helpers follow in the order of the file. The error names
// the request and the field.
func ReadTester(r io.Reader, name string, session int) ([]Request, error) {
	var s testerSession
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return nil, fmt.Errorf("%s: want a session of kv-cache-tester: %w", name, err)
	}
	if s.BlockSize < 1 || s.BlockSize > 1<<16 {
		return nil, fmt.Errorf("%s: field block_size: %d is not in 1..%d", name, s.BlockSize, 1<<16)
	}
	var out []Request
	var add func(list []testerRequest) error
	add = func(list []testerRequest) error {
		for _, q := range list {
			if len(q.Requests) > 0 {
				if err := add(q.Requests); err != nil {
					return err
				}
			}
			if q.In == 0 {
				continue
			}
			n := len(out)
			pieces, err := blockPieces(q.HashIDs, s.BlockSize, q.In, StreamOf(s.ID))
			if err != nil {
				return fmt.Errorf("%s: request %d: %w", name, n, err)
			}
			if !(q.ThinkTime >= 0 && q.ThinkTime <= 1e7) || math.IsNaN(q.T) {
				return fmt.Errorf("%s: request %d: field think_time: %v is not in 0..1e7", name, n, q.ThinkTime)
			}
			out = append(out, Request{ID: fmt.Sprintf("k%d-t%d", session, n), Session: session, Turn: n, Pieces: pieces, Whole: true,
				At: time.Duration(0), Think: seconds(q.ThinkTime), OutputTokens: min(max(1, q.Out), maxTraceTokens)})
		}
		return nil
	}
	if err := add(s.Requests); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no requests in it", name)
	}
	out[0].Think = 0
	return out, nil
}
