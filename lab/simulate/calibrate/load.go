package calibrate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/lab/workload"
)

// load is an open-loop load: its requests come at their times, whatever has ended.
type load struct {
	name     string
	requests []workload.Request
}

// newLoad returns rate requests a second. Prompts begin with one of a few texts of the load.
func newLoad(name string, seed uint64, rate float64, length time.Duration) (load, error) {
	requests, err := workload.Generate(workload.Options{
		Seed: seed, Requests: max(1, int(rate*length.Seconds())), Rate: rate, Turns: 1, SystemPrompts: 12,
		System: workload.Lengths{Median: 96, Sigma: 0.5, Min: 32, Max: 256},
		User:   workload.Lengths{Median: 90, Sigma: 0.8, Min: 8, Max: 384},
		Output: workload.Lengths{Median: 20, Sigma: 0.6, Min: 2, Max: 80}})
	for i := range requests {
		requests[i].ID = name + "-" + requests[i].ID
	}
	return load{name, requests}, err
}

const (
	// model is the name under which the server has its model, whose vocabulary without special tokens is
	// firstToken..lastToken.
	model                 = "tiny"
	firstToken, lastToken = 3, 999
	// answerTime bounds one answer.
	answerTime = 2 * time.Minute
)

// body returns the body of a request.
func body(r *workload.Request) ([]byte, error) {
	tokens := r.Prompt(nil)
	for i, t := range tokens {
		tokens[i] = firstToken + t%(lastToken-firstToken+1)
	}
	return json.Marshal(map[string]any{"model": model, "prompt": tokens, "max_tokens": r.OutputTokens, "temperature": 0,
		"ignore_eos": true, "stream": true, "return_token_ids": true, "request_id": r.ID})
}

// Answer is what a client saw of a request.
type Answer struct {
	ID string
	// Sent and First are when the request was sent and its first token came, in seconds since 1970.
	Sent, First float64
	// Gaps are the milliseconds between tokens.
	Gaps []float64
}

func since1970(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// play sends a load to a server and returns the answers in the order of the load, and when the load ran. The
// error names a request.
func play(ctx context.Context, url string, l load) ([]Answer, span, error) {
	bodies := make([][]byte, len(l.requests))
	for i := range bodies {
		var err error
		if bodies[i], err = body(&l.requests[i]); err != nil {
			return nil, span{}, err
		}
	}
	// The server closes a connection that was idle for 5 s, and a request on such a connection would fail.
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(bodies), IdleConnTimeout: time.Second, DisableCompression: true}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := make([]Answer, len(bodies))
	var open sync.WaitGroup
	began := time.Now()
	for i := range bodies {
		r := &l.requests[i]
		select {
		case <-time.After(time.Until(began.Add(r.At))):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		open.Go(func() {
			var err error
			if answers[i], err = ask(ctx, client, url, r, bodies[i]); err != nil {
				cancel(fmt.Errorf("request %s: %w", r.ID, err))
			}
		})
	}
	open.Wait()
	return answers, span{since1970(began), since1970(time.Now())}, context.Cause(ctx)
}

// ask sends one request and follows its answer.
func ask(ctx context.Context, client *http.Client, url string, r *workload.Request, body []byte) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	a := Answer{ID: r.ID, Sent: since1970(time.Now())}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 400))
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	if err := a.follow(resp.Body); err != nil {
		return a, err
	}
	if got := len(a.Gaps) + 1; got != r.OutputTokens {
		return a, fmt.Errorf("%d tokens, want %d", got, r.OutputTokens)
	}
	return a, nil
}

var errNoToken = errors.New("the stream has no token")

// follow reads a stream of server-sent events and takes the times of its tokens. Tokens that come together are
// no time apart.
func (a *Answer) follow(stream io.Reader) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	var last time.Time
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || text == "[DONE]" {
			continue
		}
		var event struct {
			Choices []struct {
				Tokens []int `json:"token_ids"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			return fmt.Errorf("event %.200q: %w", text, err)
		}
		if event.Error != nil {
			return fmt.Errorf("the stream has an error: %.400s", event.Error)
		}
		now := time.Now()
		for _, choice := range event.Choices {
			for range choice.Tokens {
				if last.IsZero() {
					a.First = since1970(now)
				} else {
					a.Gaps = append(a.Gaps, max(0, 1e3*now.Sub(last).Seconds()))
				}
				last = now
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if last.IsZero() {
		return errNoToken
	}
	return nil
}
