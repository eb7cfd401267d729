package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// requestIDHeader carries the router's context id.
const requestIDHeader = "X-Request-Id"

// maxReply bounds what is read of one answer: a dump of a few million blocks.
const maxReply = 1 << 30

// endpoint is where a child answers, and the child's name for errors.
type endpoint struct{ process, url string }

// caller makes HTTP calls to the demo's children over connections that are kept.
// No call lasts longer than its limit.
type caller struct {
	http   *http.Client
	limits limits
}

// newCaller allows idle connections for as many calls at a time.
func newCaller(idle int, l limits) *caller {
	t := &http.Transport{MaxIdleConns: 4 * idle, MaxIdleConnsPerHost: idle}
	return &caller{http: &http.Client{Transport: t}, limits: l}
}

func (c *caller) close() { c.http.CloseIdleConnections() }

// request is one call; body and id (the request id of the header) may be empty.
type request struct {
	method string
	at     endpoint
	path   string
	body   []byte
	id     string
}

// get decodes the answer to a GET into v.
func (c *caller) get(ctx context.Context, at endpoint, path string, v any) error {
	return c.call(ctx, c.limits.call, request{method: http.MethodGet, at: at, path: path}, v)
}

// list is get for an answer that lists blocks, which takes longer.
func (c *caller) list(ctx context.Context, at endpoint, path string, v any) error {
	return c.call(ctx, c.limits.dump, request{method: http.MethodGet, at: at, path: path}, v)
}

// post decodes the answer to a POST of body into v, with the request id in the
// header unless it is empty.
func (c *caller) post(ctx context.Context, at endpoint, path string, body []byte, id string, v any) error {
	return c.call(ctx, c.limits.call, request{http.MethodPost, at, path, body, id}, v)
}

func (c *caller) call(ctx context.Context, limit time.Duration, r request, v any) error {
	return c.within(ctx, limit, r, func(answer io.Reader) error {
		if err := json.NewDecoder(answer).Decode(v); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		// Read to the end, so that the connection is kept.
		_, err := io.Copy(io.Discard, answer)
		return err
	})
}

// within makes a call and has read take in the answer if its status is 200; all
// that within limit. Errors name process, method and path.
func (c *caller) within(ctx context.Context, limit time.Duration, r request, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	err := c.send(ctx, r, read)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var said *refusal
	if errors.As(err, &said) {
		return fmt.Errorf("%s: %w", r.at.process, err)
	}
	return fmt.Errorf("%s: %s %s: %w", r.at.process, r.method, r.path, err)
}

func (c *caller) send(ctx context.Context, r request, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, r.method, r.at.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.id != "" {
		req.Header.Set(requestIDHeader, r.id)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return read(io.LimitReader(resp.Body, maxReply))
}

// refusal is an answer that is an error in the process's own words.
type refusal struct{ message string }

func (r *refusal) Error() string { return r.message }

// routeAnswer is the router's answer to {"method":"new"}.
type routeAnswer struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	OverlapBlocks int    `json:"overlap_blocks"`
}

// routeBody is the body of a {"method":"new"} for tokens.
func routeBody(tokens []uint32) []byte {
	b := make([]byte, 0, 32+6*len(tokens))
	b = append(b, `{"method":"new","tokens":`...)
	return append(appendTokens(b, tokens), '}')
}

// generateBody is the body of a request to an engine.
func generateBody(id string, tokens []uint32, output int) []byte {
	b := make([]byte, 0, 96+len(id)+6*len(tokens))
	b = append(b, `{"request_id":`...)
	b = strconv.AppendQuote(b, id)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(output), 10)
	b = append(b, `,"tokens":`...)
	return append(appendTokens(b, tokens), '}')
}

func appendTokens(b []byte, tokens []uint32) []byte {
	b = append(b, '[')
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	return append(b, ']')
}

// mark tells the router how far a request is: "mark_prefill" or "mark_free".
func (c *caller) mark(ctx context.Context, router endpoint, method, requestID string) error {
	var answer struct {
		Success bool `json:"success"`
	}
	if err := c.post(ctx, router, "/v1/route", []byte(`{"method":"`+method+`"}`), requestID, &answer); err != nil {
		return err
	}
	if !answer.Success {
		return fmt.Errorf("%s refused %s of request %s", router.process, method, requestID)
	}
	return nil
}

// Served counts input tokens by where their KV came from.
type Served struct {
	Device     uint64 `json:"device"`
	Host       uint64 `json:"host"`
	Disk       uint64 `json:"disk"`
	Recomputed uint64 `json:"recomputed"`
}

func (s *Served) add(o Served) {
	s.Device += o.Device
	s.Host += o.Host
	s.Disk += o.Disk
	s.Recomputed += o.Recomputed
}

func (s Served) sum() uint64 { return s.Device + s.Host + s.Disk + s.Recomputed }

// generate has the engine answer a prompt. firstToken is called when the first
// token is there; the result is the output. An answer without end, or with
// another number of tokens than was asked for, is an error.
func (c *caller) generate(ctx context.Context, at endpoint, id string, tokens []uint32, output int, firstToken func(Served)) ([]uint32, error) {
	var made []uint32
	r := request{http.MethodPost, at, "/v1/generate", generateBody(id, tokens, output), id}
	err := c.within(ctx, c.limits.generate, r, func(answer io.Reader) (err error) {
		made, err = readGenerated(answer, firstToken)
		if err == nil && len(made) != output {
			err = fmt.Errorf("%d tokens of output, want %d", len(made), output)
		}
		return err
	})
	return made, err
}

// readGenerated reads the lines of an engine's answer.
func readGenerated(answer io.Reader, firstToken func(Served)) ([]uint32, error) {
	lines := json.NewDecoder(answer)
	first := false
	for {
		var e struct {
			Event   string   `json:"event"`
			Served  Served   `json:"served"`
			Output  []uint32 `json:"output"`
			Message string   `json:"message"`
		}
		if err := lines.Decode(&e); err != nil {
			return nil, fmt.Errorf("answer: %w", err)
		}
		switch {
		case e.Event == "error":
			return nil, &refusal{e.Message}
		case e.Event == "first_token" && !first:
			first = true
			firstToken(e.Served)
		case e.Event == "done" && first:
			_, err := io.Copy(io.Discard, answer)
			return e.Output, err
		default:
			return nil, fmt.Errorf("answer: event %q out of place", e.Event)
		}
	}
}

// engineState is an engine's GET /v1/state.
type engineState struct {
	WorkerID uint64   `json:"worker_id"`
	Rank     uint32   `json:"rank"`
	Blocks   []string `json:"blocks"`
	Idle     bool     `json:"idle"`
	Stats    struct {
		BlocksVerified uint64 `json:"blocks_verified"`
		WrongBytes     uint64 `json:"wrong_bytes"`
		LoadsFailed    uint64 `json:"loads_failed"`
		FramesSent     uint64 `json:"frames_sent"`
		FramesDropped  uint64 `json:"frames_dropped"`
		Resets         uint64 `json:"resets"`
	} `json:"stats"`
}

// agentStats is what the demo reads of an agent's GET /v1/stats.
type agentStats struct {
	Node    string       `json:"node"`
	Quiet   bool         `json:"quiet"`
	Events  EventCounts  `json:"events"`
	Streams []streamStat `json:"streams"`
	Pools   []poolStat   `json:"pools"`
}

type poolStat struct {
	CorruptReads uint64 `json:"corrupt_reads"`
}

// EventCounts are an agent's counters of engine and router events.
type EventCounts struct {
	In       uint64 `json:"in"`
	Out      uint64 `json:"out"`
	Gaps     uint64 `json:"gaps"`
	Repaired uint64 `json:"repaired"`
	Lost     uint64 `json:"lost"`
}

func (e *EventCounts) add(o EventCounts) {
	e.In += o.In
	e.Out += o.Out
	e.Gaps += o.Gaps
	e.Repaired += o.Repaired
	e.Lost += o.Lost
}

type streamStat struct {
	Owner       string `json:"owner"`
	PublisherID string `json:"publisher_id"`
	LastEventID uint64 `json:"last_event_id"`
	Health      string `json:"health"`
}

// agentPool is one pool of an agent's GET /v1/pools.
type agentPool struct {
	Pool   uint64      `json:"pool"`
	Blocks []poolBlock `json:"blocks"`
}

type poolBlock struct {
	Hash  string        `json:"hash"`
	Tiers []string      `json:"tiers"`
	Host  blockLocation `json:"host"`
	Disk  blockLocation `json:"disk"`
}

// blockLocation is where the bytes of a block lie; Path is empty for nowhere.
type blockLocation struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
}

// routerFeed is one entry of the router's GET /v1/feeds.
type routerFeed struct {
	PublisherID string `json:"publisher_id"`
	Owner       string `json:"owner"`
	Cursor      uint64 `json:"cursor"`
	Announced   uint64 `json:"announced"`
	Health      string `json:"health"`
	Gaps        uint64 `json:"gaps"`
	Repaired    uint64 `json:"repaired"`
	DigestOK    bool   `json:"digest_ok"`
}

// routerDump is the router's GET /v1/dump on its control listener.
type routerDump []kvevent.StoredJSON
