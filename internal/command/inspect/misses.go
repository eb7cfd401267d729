package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Misses shows why prompts were not cached, by the requests that a router forwarded last.
type Misses struct {
	URL     string        `arg:"" name:"url" help:"HTTP address or control socket of a router, such as http://127.0.0.1:8090."`
	Limit   int           `default:"20" help:"Requests to show, at most, the newest first. The router keeps the last 1024."`
	JSON    bool          `name:"json" help:"Print the answer as JSON."`
	Timeout time.Duration `default:"10s" help:"How long to wait for the answer."`
	Caller

	server *Server
}

// Help implements kong's HelpProvider.
func (Misses) Help() string {
	return `For each request: the length of its prompt, the cached tokens that the router predicted and that the engine delivered, and the causes of the tokens that were not cached, with the owner and tier of the block and how long ago it left. Above them the missed tokens since the router's start, by cause.`
}

// Validate checks the flags and the address. Kong calls it after parsing and reports its errors as
// errors of usage.
func (c *Misses) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0s", c.Timeout)
	}
	if c.Limit < 0 || c.Limit > 1024 {
		return fmt.Errorf("--limit %d: want 0..1024", c.Limit)
	}
	server, err := c.Open(c.URL)
	if err != nil {
		return err
	}
	c.URL, c.server = server.URL, server
	return nil
}

// Run asks the router and prints its answer, as text or as JSON.
func (c *Misses) Run(ctx context.Context, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	body, err := c.server.Get(ctx, fmt.Sprintf("/v1/misses?limit=%d", c.Limit))
	if errors.Is(err, ErrAbsent) {
		return fmt.Errorf("%s: not a router that explains misses", c.URL)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(json.RawMessage(body))
	}
	text, err := showMisses(c.URL, body)
	if err != nil {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// routerMisses is what is shown of GET /v1/misses.
type routerMisses struct {
	Explained bool
	Tokens    map[string]uint64 `json:"missed_tokens"`
	Requests  []struct {
		RequestID  string `json:"request_id"`
		Worker     string
		Age        float64 `json:"age_seconds"`
		Tokens     int     `json:"prompt_tokens"`
		Predicted  int     `json:"cached_predicted"`
		Delivered  int     `json:"cached_delivered"`
		Difference string
		Misses     []routerMiss
	}
}

// routerMiss is one cause of a request's misses.
type routerMiss struct {
	Cause  string
	Tokens int
	Owner  string
	Tier   string
	Ago    int64 `json:"ago_ms"`
	Behind int64 `json:"behind_ms"`
}

// text returns the miss as "64 evicted (worker 1/0, device, 3.2s ago)".
func (m *routerMiss) text() string {
	var more []string
	for _, s := range []string{m.Owner, m.Tier} {
		if s != "" {
			more = append(more, s)
		}
	}
	switch {
	case m.Ago > 0:
		more = append(more, fmt.Sprintf("%v ago", time.Duration(m.Ago)*time.Millisecond))
	case m.Ago < 0:
		more = append(more, fmt.Sprintf("%v after the decision", time.Duration(-m.Ago)*time.Millisecond))
	}
	if m.Behind != 0 {
		more = append(more, fmt.Sprintf("by %v", time.Duration(m.Behind)*time.Millisecond))
	}
	text := fmt.Sprintf("%d %s", m.Tokens, m.Cause)
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}

// showMisses returns the report for people about the misses of the router at url.
func showMisses(url string, body []byte) (string, error) {
	var answer routerMisses
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", fmt.Errorf("misses: %w", err)
	}
	if !answer.Explained {
		return fmt.Sprintf("the router at %s explains no misses: miss_memory_blocks or use_kv_events is off\n", url), nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "router at %s\n\nmissed tokens since the start: %s\n\n", url, Printable(counters(answer.Tokens)))
	rows := []string{row("REQUEST", "WORKER", "AGE", "PROMPT", "PREDICTED", "DELIVERED", "NOT CACHED")}
	for i := range answer.Requests {
		r := &answer.Requests[i]
		var causes []string
		for j := range r.Misses {
			causes = append(causes, r.Misses[j].text())
		}
		if r.Delivered > r.Predicted {
			causes = append(causes, fmt.Sprintf("%d more than predicted: %s", r.Delivered-r.Predicted, r.Difference))
		}
		rows = append(rows, row(r.RequestID, r.Worker, fmt.Sprintf("%.1fs", r.Age), r.Tokens, r.Predicted, r.Delivered, strings.Join(causes, "; ")))
	}
	table(&b, rows)
	return b.String(), nil
}
