package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router/workers"
)

// checkEngines asks each engine what a router asks it. The error is that of the flags.
func (c *Command) checkEngines(ctx context.Context) error {
	if len(c.Engines) == 0 {
		return nil
	}
	var o workers.Options
	for _, text := range c.Engines {
		spec, err := workers.ParseSpec(text)
		if err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
		o.Specs = append(o.Specs, spec)
		c.checked("engine " + spec.URL)
	}
	all, err := probe(ctx, o)
	if err != nil {
		return err
	}
	tokens := make(map[string]map[string]string) // by model: token ids → the engine that has them
	for _, w := range all {
		if w.State != workers.Ready {
			c.found("engine-unreachable", w.URL, "start the engine, or --engine URL as it listens; api-key-file= where it asks for a key", "%s: %s", w.State, w.Problem)
			continue
		}
		c.seen.engines = append(c.seen.engines, w)
		c.checkFacts(ctx, w)
		c.checkConnector(ctx, w)
		if ids := tokenize(ctx, w); ids != "" {
			if tokens[w.Model] == nil {
				tokens[w.Model] = make(map[string]string)
			}
			tokens[w.Model][ids] = w.URL
		}
	}
	for model, by := range tokens {
		if len(by) < 2 {
			continue
		}
		var each []string
		for ids, url := range by {
			each = append(each, url+": "+ids)
		}
		c.found("tokenizers-differ", model, "the same --tokenizer and model files at all engines of the model", "%q is %s", probeText, strings.Join(sorted(each), "; "))
	}
	return nil
}

// probe returns the servers of o as a directory knows them after it has asked each, or at the end of
// ctx.
func probe(ctx context.Context, o workers.Options) ([]*workers.Worker, error) {
	d, err := workers.New(o)
	if err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	running, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return d.Run(running) })
	for {
		changed := d.Changed()
		asked := !slices.ContainsFunc(d.Workers(), func(w *workers.Worker) bool { return w.State == workers.Starting && w.Problem == "" })
		if asked || ctx.Err() != nil {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	all := d.Workers()
	stop()
	return all, g.Wait()
}

// checkFacts looks at what the engine told of itself.
func (c *Command) checkFacts(ctx context.Context, w *workers.Worker) {
	f := &w.Facts
	if f.PrefixCaching == workers.No {
		c.found("prefix-caching-off", w.URL, "--enable-prefix-caching at the engine", "enable_prefix_caching is False")
	}
	if !f.Render && !f.Tokenize {
		c.found("tokens-missing", w.URL, "--enable-scale-out at the engine, or --render-url at the router", "neither /tokenize nor /v1/chat/completions/render is there")
	}
	if len(f.Events) == 0 {
		c.found("events-off", w.URL, eventsConfig, "the engine names no ZMQ endpoint")
	}
	for _, e := range f.Events {
		for _, endpoint := range []string{e.Endpoint, e.Replay} {
			address, tcp := strings.CutPrefix(endpoint, "tcp://")
			if !tcp {
				continue
			}
			if err := dial(ctx, address); err != nil {
				c.found("events-unreachable", w.URL, "publish the port of --kv-events-config, or another endpoint; a wildcard host stands for all addresses", "rank %d: %v", e.Rank, err)
			}
		}
		if e.Replay == "" {
			c.found("replay-missing", w.URL, eventsConfig, "rank %d has no replay_endpoint", e.Rank)
		}
	}
	if r := c.seen.router; r != nil {
		for _, known := range r.Workers {
			if known.Model == w.Model {
				return
			}
		}
		c.found("model-unknown", w.URL, "--served-model-name at the engine as clients ask for it; the engine in --worker of the router or at an agent that the router follows", "no worker of %s at %s", w.Model, c.Router)
	}
}

// connectorGauge is 1 in vLLM's metrics while the connector has a session.
const connectorGauge = "vllm:blockyard_connected"

// checkConnector looks for Blockyard's connector in vLLM's metrics.
func (c *Command) checkConnector(ctx context.Context, w *workers.Worker) {
	if w.Facts.Engine != workers.EngineVLLM {
		return
	}
	server, err := c.Open(w.URL)
	if err != nil {
		return
	}
	text, err := server.Text(ctx, "/metrics")
	if err != nil {
		return
	}
	found, connected := false, false
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, connectorGauge); ok && (rest[0] == '{' || rest[0] == ' ') {
			found = true
			fields := strings.Fields(rest)
			connected = connected || fields[len(fields)-1] != "0" && fields[len(fields)-1] != "0.0"
		}
	}
	switch {
	case !found:
		c.found("connector-absent", w.URL, "pip install blockyard-connector, and --kv-transfer-config \"$(blockyard connector-config blockyard --engine vllm)\"", "its metrics have no %s", connectorGauge)
	case !connected:
		c.found("connector-disconnected", w.URL, "socket of the connector as --socket of the agent, and --allow-uid for the engine's user; the engine's log says why", "%s is 0", connectorGauge)
	}
}

// probeText is tokenized by every engine: letters of several scripts, digits and spaces.
const probeText = "Blockyard 0123456789 – naïve café, 你好,  two spaces"

// tokenize returns the ids of probeText at an engine, empty where the engine does not tell.
func tokenize(ctx context.Context, w *workers.Worker) string {
	if !w.Facts.Tokenize || len(w.Models) == 0 {
		return ""
	}
	body, err := json.Marshal(map[string]any{"model": w.Models[0].Name, "prompt": probeText})
	if err != nil {
		return ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	w.Authorize(req.Header)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var answer struct{ Tokens []uint32 }
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&answer) != nil {
		return ""
	}
	return strings.Trim(fmt.Sprint(answer.Tokens), "[]")
}

// sorted returns a sorted list.
func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
