package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// callTime bounds one HTTP call; a dump of a few million blocks takes seconds.
	callTime = 30 * time.Second
	// maxAnswer bounds what is read of one answer, maxRefusal of an error.
	maxAnswer  = 1 << 30
	maxRefusal = 300
)

// Endpoint is where a process answers HTTP calls.
type Endpoint struct {
	name, url string
	client    *http.Client
}

// Get decodes the answer to a GET into v.
func (e Endpoint) Get(ctx context.Context, path string, v any) error {
	return e.call(ctx, http.MethodGet, path, nil, v)
}

// Post decodes the answer to a POST of body, which is encoded as JSON unless it
// is bytes already, into v; a nil v is not interested in it. The answer of an
// engine is one JSON value a line: the last one counts.
func (e Endpoint) Post(ctx context.Context, path string, body, v any) error {
	raw, ok := body.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s: POST %s: %w", e.name, path, err)
		}
	}
	return e.call(ctx, http.MethodPost, path, raw, v)
}

func (e Endpoint) call(ctx context.Context, method, path string, body []byte, v any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %s %s: %w", e.name, method, path, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // what can be read of it
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	answer := io.LimitReader(resp.Body, maxAnswer)
	if v == nil {
		_, err = io.Copy(io.Discard, answer)
		return err
	}
	lines := json.NewDecoder(answer)
	for {
		if err := lines.Decode(v); err != nil {
			return err
		}
		if !lines.More() {
			return nil
		}
	}
}
