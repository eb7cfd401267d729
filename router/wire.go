package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
)

// maxBody bounds the body of a request.
const maxBody = 32 << 20

// maxRequestID bounds a request id, which is kept as long as the request.
const maxRequestID = 256

// routeRequest is the body of POST /v1/route.
type routeRequest struct {
	Method    string    `json:"method"`
	Tokens    tokenList `json:"tokens"`
	RequestID string    `json:"request_id"`
	LoRAName  string    `json:"lora_name"`
	// CacheNamespace is the cache salt.
	CacheNamespace string `json:"cache_namespace"`
	// PriorityJump and StrictPriority order a queue; without one they are
	// checked and have no effect.
	PriorityJump   float64 `json:"priority_jump"`
	StrictPriority int     `json:"strict_priority"`
	// What cannot be honoured is refused rather than ignored.
	BlockMMInfos       json.RawMessage `json:"block_mm_infos"`
	RoutingConstraints json.RawMessage `json:"routing_constraints"`
}

// routeAnswer is the answer to "new".
type routeAnswer struct {
	Method        string `json:"method"`
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	OverlapBlocks uint32 `json:"overlap_blocks"`
}

// markAnswer is the answer to "mark_prefill" and "mark_free".
type markAnswer struct {
	Method  string `json:"method"`
	Success bool   `json:"success"`
}

type loadsAnswer struct {
	Method string       `json:"method"`
	Loads  []loadAnswer `json:"loads"`
	// There is no queue, so nothing is pending.
	PendingCount     int `json:"pending_count"`
	PendingISLTokens int `json:"pending_isl_tokens"`
}

type loadAnswer struct {
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	PrefillTokens int    `json:"potential_prefill_tokens"`
	DecodeBlocks  int    `json:"potential_decode_blocks"`
}

// decodeRoute reads a request body; the error names the field.
func decodeRoute(body io.Reader) (*routeRequest, error) {
	var q routeRequest
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return nil, plainError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("body: something follows the request")
	}
	return &q, q.validate()
}

func (q *routeRequest) validate() error {
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{
		{"block_mm_infos", q.BlockMMInfos},
		{"routing_constraints", q.RoutingConstraints},
	} {
		if len(f.value) > 0 && string(f.value) != "null" {
			return fmt.Errorf("%s: is not supported", f.name)
		}
	}
	switch q.Method {
	case "new", "potential_loads":
		if len(q.Tokens) == 0 {
			return errors.New("tokens: at least one is required")
		}
	case "mark_prefill", "mark_free":
	default:
		return fmt.Errorf("method: %q is not new, potential_loads, mark_prefill or mark_free", q.Method)
	}
	return checkRequestID("request_id", q.RequestID)
}

func checkRequestID(field, id string) error {
	if len(id) > maxRequestID {
		return fmt.Errorf("%s: %d bytes are more than %d", field, len(id), maxRequestID)
	}
	return nil
}

// plainError says in words of the interface what encoding/json says in words of
// Go.
func plainError(err error) error {
	var mismatch *json.UnmarshalTypeError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Errorf("%s: a %s cannot be read as %s", mismatch.Field, mismatch.Value, mismatch.Type)
	case errors.As(err, &tooLarge):
		return fmt.Errorf("body: want at most %d bytes: %w", tooLarge.Limit, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("body: not a whole JSON value")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// tokenList is an array of token ids. It reads its own JSON because prompts
// have tens of thousands of them.
type tokenList []uint32

// UnmarshalJSON reads an array of integers in 0..2^32-1. data is valid JSON.
func (l *tokenList) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*l = nil
		return nil
	}
	if data[0] != '[' {
		return errors.New("tokens: want an array of token ids")
	}
	// Most tokens take four bytes or more, their comma included.
	out := make(tokenList, 0, len(data)/4+1)
	for at := 1; data[at] != ']'; {
		if strings.IndexByte(" \t\r\n,", data[at]) >= 0 {
			at++
			continue
		}
		v, n := parseToken(data[at:])
		if n == 0 {
			return fmt.Errorf("tokens[%d]: want an integer in 0..%d", len(out), uint32(math.MaxUint32))
		}
		out = append(out, v)
		at += n
	}
	*l = out
	return nil
}

// parseToken reads the digits in front of b, up to what may follow an element
// of an array. It returns how many they are, 0 when there is anything else.
func parseToken(b []byte) (v uint32, n int) {
	var wide uint64
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		if wide = wide*10 + uint64(b[n]-'0'); wide > math.MaxUint32 {
			return 0, 0
		}
		n++
	}
	if n < len(b) && strings.IndexByte(" \t\r\n,]", b[n]) < 0 {
		return 0, 0
	}
	return uint32(wide), n
}
