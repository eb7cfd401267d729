package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Command shows the state of events at an agent or a router.
type Command struct {
	URL     string        `arg:"" name:"url" help:"Admin server of an agent, HTTP address of a router, or control socket of either, such as http://127.0.0.1:9400 or /run/blockyard/router-8090.sock."`
	JSON    bool          `name:"json" help:"Print the answers as one JSON object."`
	Timeout time.Duration `default:"10s" help:"How long to wait for the answers."`
	Caller

	server *Server
}

// Help implements kong's HelpProvider.
func (Command) Help() string {
	return `Of an agent: publisher, health, last event and digest of each owner; gaps found, repaired and lost; dropped blocks by reason; clients of the HTTP stream. Of a router: cursor and health of each publisher, workers with their load, agents that it follows over HTTP, counters of its other sources.`
}

// Validate checks the timeout and the address, and makes the client for the address: a URL,
// HOST:PORT or the path of a socket. Kong calls it after parsing and reports its errors as errors
// of usage.
func (c *Command) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0s", c.Timeout)
	}
	server, err := c.Open(c.URL)
	if err != nil {
		return err
	}
	c.URL, c.server = server.URL, server
	return nil
}

// Run asks the server about its state and prints the answers, as text or as JSON. A server that has
// /v1/stats is an agent, and one that has /v1/feeds is a router.
func (c *Command) Run(ctx context.Context, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	seen := make(map[string]json.RawMessage)
	agent, err := c.take(ctx, seen, "stats", "/v1/stats")
	if err != nil {
		return err
	}
	paths := [][2]string{{"feeds", "/v1/feeds"}, {"workers", "/v1/workers"}, {"agents", "/v1/agents"}, {"sources", "/v1/sources"}}
	if agent {
		paths = [][2]string{{"http", "/v1/events/feeds"}}
	}
	for i, p := range paths {
		found, err := c.take(ctx, seen, p[0], p[1])
		if err != nil {
			return err
		}
		if !found && !agent && i == 0 {
			return fmt.Errorf("%s: neither an agent nor a router", c.URL)
		}
	}
	if c.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(seen)
	}
	show := showRouter
	if agent {
		show = showAgent
	}
	text, err := show(c.URL, seen)
	if err != nil {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// take gets one path of the server and stores the JSON answer in seen under name. It returns false
// when the server does not have the path.
func (c *Command) take(ctx context.Context, seen map[string]json.RawMessage, name, path string) (bool, error) {
	body, err := c.server.Get(ctx, path)
	if errors.Is(err, ErrAbsent) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	seen[name] = body
	return true, nil
}
