package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	"github.com/blockyard-ai/blockyard/router/frontend"
)

const (
	// canaryWait is how long the events of a prompt may take to the router.
	canaryWait = 5 * time.Second
	// canaryLook is the pause between two looks at the router's index.
	canaryLook = 50 * time.Millisecond
	// canaryBlocks is the number of blocks that the prompt has at least, with a token for each word.
	canaryBlocks = 4
	// maxCanaryAnswer bounds an answer of the front door in bytes.
	maxCanaryAnswer = 1 << 20
)

// canary follows one prompt through the front door of a router.
type canary struct {
	c     *Command
	model string
	body  []byte
	// first and second are the answers to the prompt, sent twice.
	first, second canaryAnswer
}

// canaryAnswer is what the front door told of a request.
type canaryAnswer struct {
	status                       int
	text                         string
	worker, predicted, delivered string
	tokens                       string
}

// checkCanary sends a prompt twice through the front door, for each model of the router.
func (c *Command) checkCanary(ctx context.Context) {
	if !c.Canary || c.seen.router == nil {
		return
	}
	door, err := c.Open(c.Door)
	if err != nil {
		c.found("canary-unreachable", c.Door, "--door HOST:PORT of the router's --http-port", "%v", err)
		return
	}
	sizes := map[string]uint32{}
	for _, w := range c.seen.router.Workers {
		if len(c.Models) == 0 || slices.Contains(c.Models, w.Model) {
			sizes[w.Model] = max(sizes[w.Model], w.BlockSize)
		}
	}
	for _, model := range sorted(keysOf(sizes)) {
		c.checked("canary of " + model + " at " + door.URL)
		if !c.followCanary(ctx, door, model, sizes[model]) {
			return
		}
	}
}

func keysOf(m map[string]uint32) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// followCanary sends the prompt of a model. next is false when another model's would fare no better.
func (c *Command) followCanary(ctx context.Context, door *inspect.Server, model string, blockSize uint32) (next bool) {
	k := canary{c: c, model: model}
	k.body = canaryBody(model, blockSize)
	before := k.cursors(ctx)
	var err error
	if k.first, err = k.send(ctx, door); err != nil {
		c.found("canary-unreachable", door.URL, "blockyard router --http-port PORT with --worker URL, or --door HOST:PORT as it listens", "%v", err)
		return false
	}
	switch a := &k.first; {
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		c.found("canary-denied", door.URL, "--door-key-file FILE with a key of the router's --api-keys", "status %d: %s", a.status, a.text)
		return false
	case a.status != http.StatusOK:
		c.found("canary-failed", model, "what the answer names; the worker's log and blockyard doctor --engine URL say more", "status %d: %s", a.status, a.text)
		return true
	case a.worker == "":
		c.found("canary-no-door", door.URL, "--door with the address of the router's --http-port, not of an inference server", "the answer has no %s", frontend.WorkerHeader)
		return false
	}
	if !strings.HasPrefix(k.first.tokens, "exact") {
		c.found("canary-tokens", model, "--enable-scale-out at the engine, or --render-url at the router", "%s: %s", frontend.TokensHeader, k.first.tokens)
	}
	if !k.arrives(ctx, before) {
		return true
	}
	if k.second, err = k.send(ctx, door); err != nil || k.second.status != http.StatusOK {
		c.found("canary-failed", model, "what the answer names; the worker's log says more", "the second prompt: status %d: %s %v", k.second.status, k.second.text, errText(err))
		return true
	}
	k.compare()
	return true
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// canaryBody returns a request with a prompt that nobody has sent before, of at least canaryBlocks
// blocks. Its answer has one token.
func canaryBody(model string, blockSize uint32) []byte {
	var text strings.Builder
	fmt.Fprintf(&text, "Canary %s of blockyard doctor.", rand.Text())
	for n := range canaryBlocks * max(blockSize, 16) {
		fmt.Fprintf(&text, " %d", n)
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": text.String(), "max_tokens": 1, "temperature": 0})
	if err != nil {
		panic("BUG: a request of text and numbers: " + err.Error())
	}
	return body
}

// send sends the prompt to the front door.
func (k *canary) send(ctx context.Context, door *inspect.Server) (canaryAnswer, error) {
	header := make(http.Header)
	if k.c.DoorKey != "" {
		key, err := os.ReadFile(k.c.DoorKey)
		if err != nil {
			return canaryAnswer{}, fmt.Errorf("--door-key-file: %w", err)
		}
		header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	}
	resp, err := door.Post(ctx, "/v1/completions", k.body, header)
	if err != nil {
		return canaryAnswer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxCanaryAnswer))
	h := resp.Header
	return canaryAnswer{
		status: resp.StatusCode, text: fmt.Sprintf("%.300s", bytes.TrimSpace(text)), worker: h.Get(frontend.WorkerHeader),
		predicted: h.Get(frontend.PredictedHeader), delivered: h.Get(frontend.DeliveredHeader), tokens: h.Get(frontend.TokensHeader),
	}, err
}

// arrives waits until the router's index has blocks of the prompt at the worker that served it, and
// reports whether it has. before are the cursors of the feeds before the prompt.
func (k *canary) arrives(ctx context.Context, before map[string]uint64) bool {
	c := k.c
	var t struct{ Tokens []uint32 }
	if err := k.ask(ctx, "/v1/tokens", k.body, &t); err != nil {
		c.found("canary-other-router", c.Router, "--router with the http address of the router that has the front door of --door", "it makes no tokens of the prompt: %v", err)
		return false
	}
	query, err := json.Marshal(map[string]any{"method": "overlap", "model": k.model, "tokens": t.Tokens})
	if err != nil {
		panic("BUG: a request of text and numbers: " + err.Error())
	}
	patience := time.NewTimer(cmp.Or(c.arrival, canaryWait))
	defer patience.Stop()
	look := time.NewTicker(canaryLook)
	defer look.Stop()
	for {
		known, cached, err := k.overlap(ctx, query)
		switch {
		case err != nil:
			c.found("canary-other-router", c.Router, "--router with the http address of the router that has the front door of --door", "%v", err)
			return false
		case !known:
			c.found("canary-other-router", c.Router, "--router with the http address of the router that has the front door of --door", "it does not know worker %s, which served the prompt", k.first.worker)
			return false
		case cached > 0:
			return true
		}
		select {
		case <-look.C:
			continue
		case <-patience.C:
		case <-ctx.Done():
		}
		k.missing(context.WithoutCancel(ctx), before)
		return false
	}
}

// overlap asks the router how many of the prompt's tokens the worker has by its events.
func (k *canary) overlap(ctx context.Context, query []byte) (known bool, cached int, err error) {
	var answer struct {
		Overlaps []struct {
			WorkerID     uint64 `json:"worker_id"`
			Rank         uint32 `json:"dp_rank"`
			CachedTokens int    `json:"cached_tokens"`
		}
	}
	if err := k.ask(ctx, "/v1/route", query, &answer); err != nil {
		return false, 0, err
	}
	for _, o := range answer.Overlaps {
		if fmt.Sprintf("%d/%d", o.WorkerID, o.Rank) == k.first.worker {
			return true, o.CachedTokens, nil
		}
	}
	known = slices.ContainsFunc(k.c.seen.router.Workers, func(w routerWorker) bool {
		return fmt.Sprintf("%d/%d", w.WorkerID, w.Rank) == k.first.worker
	})
	return known, 0, nil
}

// missing says why the router has no block of the prompt.
func (k *canary) missing(ctx context.Context, before map[string]uint64) {
	ctx, cancel := context.WithTimeout(ctx, canaryWait)
	defer cancel()
	owner := "worker " + k.first.worker
	after := k.cursors(ctx)
	cursor, followed := after[owner]
	switch {
	case !followed:
		k.c.found("canary-not-followed", owner, eventsConfig, "it served the prompt, and the router follows no events of it")
	case cursor == before[owner]:
		k.c.found("canary-no-event", owner, "--enable-prefix-caching and "+eventsConfig+"; the port of the events must be open to agent or router", "it served the prompt, and its events stand at %d", cursor)
	default:
		k.c.found("canary-other-blocks", owner, "one --block-size and one --tokenizer at engine and router; the same LoRA names", "its events went from %d to %d, and name no block of the prompt", before[owner], cursor)
	}
}

// compare looks at where the second prompt went, and what it found there.
func (k *canary) compare() {
	c, first, second := k.c, &k.first, &k.second
	if second.worker != first.worker {
		c.found("canary-elsewhere", k.model, "router_mode kv and a working --score; POST /v1/route with \"explain\":true shows the prices; a loaded worker is a good reason", "the first prompt went to worker %s, the second to %s", first.worker, second.worker)
		return
	}
	if second.predicted == "" || second.predicted == "0" {
		c.found("canary-no-hit", "worker "+second.worker, "use_kv_events and router_mode kv at the router", "%s is %q for the second prompt", frontend.PredictedHeader, second.predicted)
		return
	}
	switch second.delivered {
	case "", "unknown":
		c.found("canary-unmeasured", "worker "+second.worker, "--enable-prompt-tokens-details at the engine", "%s is %q: whether the engine used its cache is not known", frontend.DeliveredHeader, second.delivered)
	case "0":
		c.found("canary-not-delivered", "worker "+second.worker, "--enable-prefix-caching, and more --gpu-memory-utilization where the engine evicts at once", "%s tokens were expected to be cached, and the engine used 0", second.predicted)
	}
}

// cursors returns how far the router has read each owner's events.
func (k *canary) cursors(ctx context.Context) map[string]uint64 {
	var s routerState
	at := map[string]uint64{}
	if k.c.askRouter(ctx, &s) == nil {
		for _, f := range s.Feeds {
			at[f.Owner] = f.Cursor
		}
	}
	return at
}

// ask sends JSON to the router and decodes its answer.
func (k *canary) ask(ctx context.Context, path string, body []byte, into any) error {
	server, err := k.c.Open(k.c.Router)
	if err != nil {
		return err
	}
	resp, err := server.Post(ctx, path, body, http.Header{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxCanaryAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.300s", path, resp.StatusCode, bytes.TrimSpace(text))
	}
	if err != nil {
		return err
	}
	if json.Unmarshal(text, into) != nil {
		return errors.New(path + ": the answer is not JSON")
	}
	return nil
}
