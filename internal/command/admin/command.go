package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Command is "blockyard admin".
type Command struct {
	Connection

	Status   status   `cmd:"" help:"Show the pools and tiers of an agent, or the worker servers of a router."`
	Pin      pin      `cmd:"" help:"Keep blocks of an agent from eviction for a time."`
	Unpin    unpin    `cmd:"" help:"End the time for which blocks are kept."`
	Evict    evict    `cmd:"" help:"Take blocks out of a tier of an agent. Blocks in use stay."`
	Flush    flush    `cmd:"" help:"Wait until an agent has sealed and written what it has to."`
	Prefetch prefetch `cmd:"" help:"Read blocks of an agent from disk into host memory."`
	Quota    quota    `cmd:"" help:"Show or set how much of an agent's tiers a model or a tenant may have."`
	Resize   resize   `cmd:"" help:"Change the size of a tier of an agent while engines run."`
	Reset    reset    `cmd:"" help:"Empty tiers of an agent. A pool in use is left as it is."`
	Drain    drain    `cmd:"" help:"Stop new requests of a router to a worker server. Its requests go on."`
	Undrain  undrain  `cmd:"" help:"Resume requests of a router to a worker server."`
	Snapshot snapshot `cmd:"" help:"Have a router save a snapshot of its index."`
}

// Help implements kong's HelpProvider.
func (Command) Help() string {
	return `Each command is one request to the operators' listener, which logs who asked and what became of it. The exit status is 1 when the server refuses, and when blocks stay that should have gone. docs/operations.md says what is refused and why.`
}

// status is "blockyard admin status".
type status struct{}

// Run prints the status of the agent, or of the router when --control is a router's.
func (*status) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	answer, err := c.fetch(ctx, defaultAgent, http.MethodGet, "/v1/status", nil)
	isAgent := !errors.Is(err, errAbsent)
	if !isAgent {
		answer, err = c.fetch(ctx, defaultAgent, http.MethodGet, "/v1/servers", nil)
		if errors.Is(err, errAbsent) || strings.TrimSpace(string(answer)) == "[]" {
			answer, err = c.fetch(ctx, defaultAgent, http.MethodGet, "/v1/workers", nil)
		}
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return c.print(stdout, answer, "")
	}
	show := showServers
	if isAgent {
		show = showPools
	}
	text, err := show(answer)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// pool names a namespace of an agent.
type pool struct {
	Namespace string `xor:"pool" placeholder:"ID" help:"Namespace: 32 hexadecimal digits of status."`
	Model     string `xor:"pool" placeholder:"NAME" help:"Model of the namespace, when the agent has one namespace of that model."`
}

// find returns the namespace. Without a name it is the agent's only one.
func (p *pool) find(ctx context.Context, c *Connection) (string, error) {
	if p.Namespace != "" {
		return p.Namespace, nil
	}
	var pools []poolStatus
	if _, err := c.ask(ctx, defaultAgent, http.MethodGet, "/v1/status", nil, &pools); err != nil {
		return "", err
	}
	pools = slices.DeleteFunc(pools, func(s poolStatus) bool { return p.Model != "" && s.Model != p.Model })
	if len(pools) != 1 {
		return "", fmt.Errorf("--model %q: %d namespaces of the agent, want 1; name one with --namespace", p.Model, len(pools))
	}
	return pools[0].Namespace, nil
}

// blocks names blocks of a namespace.
type blocks struct {
	pool
	Hash   []string `xor:"blocks" placeholder:"HASH" help:"Sequence hash of a block, 16 hexadecimal digits; repeatable."`
	Tokens string   `name:"tokens-file" type:"path" xor:"blocks" placeholder:"FILE" help:"File with the token ids of a prompt or of its start: a JSON list, or numbers between spaces. - reads standard input."`
	All    bool     `xor:"blocks" help:"All resident blocks of the namespace."`
	LoRA   string   `name:"lora" placeholder:"FINGERPRINT" help:"Fingerprint of the prompt's adapter."`
	Salt   string   `placeholder:"SALT" help:"Cache salt of the prompt."`
}

// Validate checks that blocks are named. Kong reports its error as one of usage.
func (b *blocks) Validate() error {
	if len(b.Hash) == 0 && b.Tokens == "" && !b.All {
		return errors.New("no blocks are named: want --hash, --tokens-file or --all")
	}
	for _, h := range b.Hash {
		if _, err := strconv.ParseUint(h, 16, 64); err != nil || len(h) != 16 {
			return fmt.Errorf("--hash %.40q: want 16 hexadecimal digits", h)
		}
	}
	return nil
}

// body returns the request that names the blocks.
func (b *blocks) body(ctx context.Context, c *Connection) (map[string]any, error) {
	namespace, err := b.find(ctx, c)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"namespace": namespace, "dry_run": c.DryRun}
	switch {
	case b.All:
		body["all"] = true
	case len(b.Hash) > 0:
		body["sequence_hashes"] = b.Hash
	default:
		tokens, err := readTokens(b.Tokens)
		if err != nil {
			return nil, fmt.Errorf("--tokens-file: %w", err)
		}
		body["tokens"], body["lora"], body["salt"] = tokens, b.LoRA, b.Salt
	}
	return body, nil
}

// readTokens reads the token ids of a file, or of standard input for "-".
func readTokens(path string) ([]uint32, error) {
	f := os.Stdin
	if path != "-" {
		opened, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		f = opened
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAnswer))
	if err != nil {
		return nil, err
	}
	words := strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune("[], \t\r\n", r) })
	tokens := make([]uint32, len(words))
	for i, word := range words {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: token %d is %.20q, want a number 0..%d", path, i, word, uint32(1<<32-1))
		}
		tokens[i] = uint32(n)
	}
	return tokens, nil
}

// pin is "blockyard admin pin".
type pin struct {
	blocks
	For time.Duration `name:"for" required:"" placeholder:"TIME" help:"Time to keep the blocks, 1ms to 720h. Of several times the longest counts."`
}

// Run keeps the blocks.
func (p *pin) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body, err := p.body(ctx, &c.Connection)
	if err != nil {
		return err
	}
	body["ttl_seconds"] = p.For.Seconds()
	var a struct{ Kept, Blocks int }
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/keep", body, &a)
	if err != nil {
		return err
	}
	return c.print(stdout, answer, "%d of %d blocks are kept for %v", a.Kept, a.Blocks, p.For)
}

// unpin is "blockyard admin unpin".
type unpin struct{ blocks }

// Run ends the time of the blocks.
func (p *unpin) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body, err := p.body(ctx, &c.Connection)
	if err != nil {
		return err
	}
	var a struct{ Ended, Blocks int }
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/unkeep", body, &a)
	if err != nil {
		return err
	}
	return c.print(stdout, answer, "%d of %d blocks are no longer kept", a.Ended, a.Blocks)
}

// evict is "blockyard admin evict".
type evict struct {
	blocks
	Tier string `required:"" enum:"host,disk" help:"Tier that the blocks leave: host or disk."`
}

// Run removes the blocks. The error says that some of them are in use.
func (e *evict) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body, err := e.body(ctx, &c.Connection)
	if err != nil {
		return err
	}
	body["tier"] = e.Tier
	var a struct {
		Reset    []string `json:"reset_blocks"`
		NotFound []string `json:"not_found"`
		NotReset []string `json:"not_reset"`
	}
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/reset-blocks", body, &a)
	if err != nil {
		return err
	}
	if err := c.print(stdout, answer, "%d hashes left the tier, %d are not in it, %d stay", len(a.Reset), len(a.NotFound), len(a.NotReset)); err != nil {
		return err
	}
	if n := len(a.NotReset); n > 0 {
		return fmt.Errorf("%d hashes have blocks in use, which stay: %.200s", n, strings.Join(a.NotReset, " "))
	}
	return nil
}

// flush is "blockyard admin flush".
type flush struct {
	Namespace string        `placeholder:"ID" help:"Namespace; default all."`
	Wait      time.Duration `default:"10s" help:"How long to wait, 1ms to 25s."`
}

// Run waits for the pools. The error names those with operations left.
func (f *flush) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body := map[string]any{"timeout_seconds": f.Wait.Seconds(), "dry_run": c.DryRun}
	if f.Namespace != "" {
		body["namespace"] = f.Namespace
	}
	var a struct{ Flushed, Pending []string }
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/flush", body, &a)
	if err != nil {
		return err
	}
	if err := c.print(stdout, answer, "%d namespaces have nothing left to write, %d have", len(a.Flushed), len(a.Pending)); err != nil {
		return err
	}
	if len(a.Pending) > 0 {
		return fmt.Errorf("not done: namespaces %s", inspect.Printable(strings.Join(a.Pending, " ")))
	}
	return nil
}

// reset is "blockyard admin reset".
type reset struct {
	Tier      string `required:"" enum:"host,disk,all" help:"Tier to empty: host, disk or all."`
	Namespace string `xor:"pools" required:"" placeholder:"ID" help:"Namespace to empty."`
	All       bool   `xor:"pools" required:"" help:"Empty all namespaces."`
}

// Run empties the tiers.
func (r *reset) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body := map[string]any{"tier": r.Tier, "dry_run": c.DryRun}
	if !r.All {
		body["namespace"] = r.Namespace
	}
	var a struct {
		Reset  []string
		Blocks int
	}
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/reset", body, &a)
	if err != nil {
		return err
	}
	if c.DryRun {
		return c.print(stdout, answer, "%d namespaces with %d slots would be emptied", len(a.Reset), a.Blocks)
	}
	return c.print(stdout, answer, "%d namespaces are emptied", len(a.Reset))
}

// worker is the worker server that a command is about.
type worker struct {
	ID kv.WorkerID `arg:"" name:"worker" help:"Worker id, as in status."`
}

// set drains the worker server, or resumes requests to it.
func (w *worker) set(ctx context.Context, c *Connection, verb string, stdout io.Writer) error {
	if err := c.checkDryRun(ctx, "/v1/workers/{id}/"+verb); err != nil {
		return err
	}
	path := fmt.Sprintf("/v1/workers/%d/%s?%s=%t", uint64(w.ID), verb, dryRunParameter, c.DryRun)
	var a struct {
		Draining bool
		Requests int
	}
	answer, err := c.ask(ctx, defaultRouter(), http.MethodPost, path, nil, &a)
	if err != nil {
		return err
	}
	text := "gets requests"
	if a.Draining {
		text = "gets no new requests"
	}
	return c.print(stdout, answer, "worker %d %s; %d requests are in progress", uint64(w.ID), text, a.Requests)
}

// drain is "blockyard admin drain".
type drain struct{ worker }

// Run stops new requests to the worker.
func (d *drain) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	return d.set(ctx, &c.Connection, "drain", stdout)
}

// undrain is "blockyard admin undrain".
type undrain struct{ worker }

// Run resumes requests to the worker.
func (d *undrain) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	return d.set(ctx, &c.Connection, "undrain", stdout)
}

// snapshot is "blockyard admin snapshot".
type snapshot struct{}

// Run has the router save a snapshot.
func (*snapshot) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	if err := c.checkDryRun(ctx, "/v1/snapshot"); err != nil {
		return err
	}
	query := url.Values{dryRunParameter: {strconv.FormatBool(c.DryRun)}}
	var a struct{ Saved, Failed uint64 }
	answer, err := c.ask(ctx, defaultRouter(), http.MethodPost, "/v1/snapshot?"+query.Encode(), nil, &a)
	if err != nil {
		return err
	}
	return c.print(stdout, answer, "the router saves a snapshot now; before it %d were saved, %d failed", a.Saved, a.Failed)
}
