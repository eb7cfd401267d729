package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// CallTime bounds one HTTP call unless its Request says otherwise. A dump of a
	// few million blocks takes seconds.
	CallTime = 30 * time.Second
	// maxAnswer bounds the bytes that are read of an answer, maxRefusal those of an error.
	maxAnswer  = 1 << 30
	maxRefusal = 300
)

// requestIDHeader names a request to a router.
const requestIDHeader = "X-Request-Id"

// Client makes HTTP calls to processes over persistent connections. It is safe for concurrent
// use.
type Client struct{ http *http.Client }

// NewClient returns a client that keeps up to idle connections to each process.
func NewClient(idle int) *Client {
	return &Client{&http.Client{Transport: &http.Transport{MaxIdleConns: 4 * idle, MaxIdleConnsPerHost: idle}}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// At returns the HTTP interface of the process name at an address.
func (c *Client) At(name, address string) Endpoint {
	return Endpoint{Name: name, URL: "http://" + address, client: c.http}
}

// Endpoint is where a process answers HTTP calls. Name is for errors.
type Endpoint struct {
	Name, URL string
	client    *http.Client
}

// Request is one call.
type Request struct {
	Method, Path string
	Body         []byte
	// ID is the id that routers and engines know the request by; it may be empty.
	ID string
	// Limit bounds the call and the reading of its answer; 0 means CallTime.
	Limit time.Duration
}

// Get decodes the answer to a GET into v.
func (e Endpoint) Get(ctx context.Context, path string, v any) error {
	return e.Do(ctx, Request{Method: http.MethodGet, Path: path}, decodeInto(v))
}

// Post decodes the answer to a POST of body, encoded as JSON, into v. A nil v
// discards the answer. Of an answer of several JSON values the last one counts.
func (e Endpoint) Post(ctx context.Context, path string, body, v any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s: POST %s: %w", e.Name, path, err)
	}
	return e.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: raw}, decodeInto(v))
}

// decodeInto returns a function for Do that decodes the answer into v. Of several JSON values,
// one a line, v gets the last. A nil v reads the answer and drops it.
func decodeInto(v any) func(io.Reader) error {
	return func(answer io.Reader) error {
		if v == nil {
			_, err := io.Copy(io.Discard, answer)
			return err
		}
		for lines := json.NewDecoder(answer); ; {
			if err := lines.Decode(v); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			if !lines.More() {
				return nil
			}
		}
	}
}

// Do makes the call r to the process and calls read with the answer's body if its status is 200.
// The call and read have r.Limit together, or CallTime. Errors name process, method and path.
func (e Endpoint) Do(ctx context.Context, r Request, read func(io.Reader) error) error {
	limit := cmp.Or(r.Limit, CallTime)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	err := e.send(ctx, r, read)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%s: %s %s: %w", e.Name, r.Method, r.Path, err)
}

// send makes a call and calls read with the answer, at most maxAnswer bytes, if its status is
// 200. The error has the text of another answer.
func (e Endpoint) send(ctx context.Context, r Request, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, r.Method, e.URL+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	if r.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.ID != "" {
		req.Header.Set(requestIDHeader, r.ID)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return read(io.LimitReader(resp.Body, maxAnswer))
}

// Wait waits for the time d. When ctx ends first, Wait returns its cause.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Until calls done every interval until done returns true or an error, and returns that error. After
// limit it returns ErrTooLong, wrapped. When ctx ends it returns its cause.
func Until(ctx context.Context, limit, interval time.Duration, done func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: not within %s", ErrTooLong, limit)
		}
		if err := Wait(ctx, interval); err != nil {
			return err
		}
	}
}
