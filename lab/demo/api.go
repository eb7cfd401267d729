package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// caller makes the demo's HTTP calls. No call lasts longer than its limit.
type caller struct{ limits limits }

// post sends body to a path of the process at and decodes the JSON answer into v. id is the
// request id of the header, unless it is empty.
func (c *caller) post(ctx context.Context, at cluster.Endpoint, path string, body []byte, id string, v any) error {
	r := cluster.Request{Method: http.MethodPost, Path: path, Body: body, ID: id, Limit: c.limits.call}
	return at.Do(ctx, r, func(answer io.Reader) error {
		if err := json.NewDecoder(answer).Decode(v); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		// Read to the end, so that the connection is kept.
		_, err := io.Copy(io.Discard, answer)
		return err
	})
}

// routeAnswer is the router's answer to {"method":"new"}.
type routeAnswer struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	OverlapBlocks int    `json:"overlap_blocks"`
}

// routeBody returns the body of a {"method":"new"} for tokens.
func routeBody(tokens []uint32) []byte {
	b := make([]byte, 0, 32+6*len(tokens))
	b = append(b, `{"method":"new","tokens":`...)
	return append(appendTokens(b, tokens), '}')
}

// generateBody returns the JSON body of a request to an engine: a prompt, and how many tokens of
// output it wants. It is built by hand because prompts have thousands of tokens.
func generateBody(id string, tokens []uint32, output int) []byte {
	b := make([]byte, 0, 96+len(id)+6*len(tokens))
	b = append(b, `{"request_id":`...)
	b = strconv.AppendQuote(b, id)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(output), 10)
	b = append(b, `,"tokens":`...)
	return append(appendTokens(b, tokens), '}')
}

// appendTokens appends tokens as a JSON array.
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

// prefix is the leading blocks of a prompt that an engine can use: those on its device, and those
// behind them that its agent has stored.
type prefix struct{ device, stored int }

func (p prefix) blocks() int { return p.device + p.stored }

// credit returns how many leading blocks of a prompt the router believes each worker to have.
func (c *caller) credit(ctx context.Context, router cluster.Endpoint, tokens []uint32) (map[uint64]prefix, error) {
	body := append(appendTokens([]byte(`{"method":"overlap","tokens":`), tokens), '}')
	var answer struct {
		Overlaps []struct {
			WorkerID uint64 `json:"worker_id"`
			Device   int    `json:"device"`
			Host     int    `json:"host_pinned"`
			Disk     int    `json:"disk"`
		} `json:"overlaps"`
	}
	if err := c.post(ctx, router, "/v1/route", body, "", &answer); err != nil {
		return nil, err
	}
	credit := make(map[uint64]prefix, len(answer.Overlaps))
	for _, o := range answer.Overlaps {
		credit[o.WorkerID] = prefix{o.Device, o.Host + o.Disk}
	}
	return credit, nil
}

// mark sends the router the progress of a request: "mark_prefill" or "mark_free".
func (c *caller) mark(ctx context.Context, router cluster.Endpoint, method, requestID string) error {
	var answer struct {
		Success bool `json:"success"`
	}
	if err := c.post(ctx, router, "/v1/route", []byte(`{"method":"`+method+`"}`), requestID, &answer); err != nil {
		return err
	}
	if !answer.Success {
		return fmt.Errorf("%s refused %s of request %s", router.Name, method, requestID)
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
func (c *caller) generate(ctx context.Context, at cluster.Endpoint, id string, tokens []uint32, output int, firstToken func(Served)) ([]uint32, error) {
	var made []uint32
	r := cluster.Request{
		Method: http.MethodPost, Path: "/v1/generate", Body: generateBody(id, tokens, output), ID: id, Limit: c.limits.generate,
	}
	err := at.Do(ctx, r, func(answer io.Reader) (err error) {
		made, err = readGenerated(answer, firstToken)
		if err == nil && len(made) != output {
			err = fmt.Errorf("%d tokens of output, want %d", len(made), output)
		}
		return err
	})
	return made, err
}

// readGenerated reads the JSON lines of an engine's answer: first_token, for which it calls
// firstToken, and then done, whose output it returns. Another order is an error.
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
			return nil, errors.New(e.Message)
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
