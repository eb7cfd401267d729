package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	"github.com/blockyard-ai/blockyard/internal/control"
)

// maxAnswer bounds one answer in bytes.
const maxAnswer = 64 << 20

// defaultAgent is the operators' listener of an agent with the default --socket.
const defaultAgent = "/run/blockyard/agent.sock.control"

// defaultRouter returns the operators' listener of a router at port 8090 of --http.
func defaultRouter() string { return control.DefaultPath("router-8090") }

// errAbsent says that the server has no such path.
var errAbsent = errors.New("no such request here")

// Connection says which operators' listener to ask, and how.
type Connection struct {
	Control   string        `placeholder:"ADDRESS" help:"Operators' listener of an agent or a router: the path of a socket or HOST:PORT. Default: of the agent /run/blockyard/agent.sock.control; for drain, undrain and snapshot router-8090.sock beside the router's default."`
	TokenFile string        `name:"token-file" type:"path" env:"BLOCKYARD_CONTROL_TOKEN_FILE" placeholder:"FILE" help:"File with the token to send, a line NAME TOKEN. Of several lines the first counts."`
	DryRun    bool          `name:"dry-run" help:"Show what the command would do. Nothing changes."`
	JSON      bool          `name:"json" help:"Print the server's answer."`
	Timeout   time.Duration `default:"30s" help:"How long to wait for the answer."`
	inspect.Caller
}

// Validate checks the timeout and the address. Kong reports its error as one of usage.
func (c *Connection) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0s", c.Timeout)
	}
	if c.Control == "" {
		return nil
	}
	if _, _, err := control.Client(c.Control); err != nil {
		return fmt.Errorf("--control: %w", err)
	}
	return nil
}

// ask is fetch, and decodes the answer into a.
func (c *Connection) ask(ctx context.Context, address, method, path string, body, a any) (json.RawMessage, error) {
	answer, err := c.fetch(ctx, address, method, path, body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer, a); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return answer, nil
}

// fetch sends a request to the server and returns its JSON answer. body is nil for none. address is
// that of the server when --control is not given. The error has the server's reason.
func (c *Connection) fetch(ctx context.Context, address, method, path string, body any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	address = cmp.Or(c.Control, address)
	tokens, err := control.ReadTokens(c.TokenFile, nil)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	certificates, err := c.Certificates()
	if err != nil {
		return nil, err
	}
	client, base, err := control.Client(address, certificates...)
	if err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	var text io.Reader = http.NoBody
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(ctx, method, base+path, text)
	if err != nil {
		return nil, err
	}
	r.Close = true
	if token := tokens.First(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", address, err)
	case len(answer) > maxAnswer:
		return nil, fmt.Errorf("%s: answer of more than %d bytes", address, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %w", address, refusal(resp.StatusCode, answer))
	case !json.Valid(answer):
		return nil, fmt.Errorf("%s: the answer to %s is not JSON", address, path)
	}
	return answer, nil
}

// checkDryRun returns an error when the command is a dry run and the router does not know dry runs of
// a path. Such a router would ignore the parameter and do it. path is one of the OpenAPI document.
func (c *Connection) checkDryRun(ctx context.Context, path string) error {
	if !c.DryRun {
		return nil
	}
	var document struct {
		Paths map[string]struct {
			Post struct{ Parameters []struct{ Name string } }
		}
	}
	if _, err := c.ask(ctx, defaultRouter(), http.MethodGet, "/openapi.json", nil, &document); err != nil && !errors.Is(err, errAbsent) {
		return err
	}
	for _, p := range document.Paths[path].Post.Parameters {
		if p.Name == dryRunParameter {
			return nil
		}
	}
	return fmt.Errorf("--dry-run: the router does not know it for POST %s and would ignore it; nothing was sent", path)
}

// dryRunParameter is the query parameter of a router's dry run.
const dryRunParameter = "dry_run"

// refusal returns the error of an answer with a status other than 200.
func refusal(status int, answer []byte) error {
	var e struct{ Error string }
	if json.Unmarshal(answer, &e) != nil || e.Error == "" {
		e.Error = strings.TrimSpace(string(answer))
	}
	err := fmt.Errorf("status %d: %.500s", status, inspect.Printable(e.Error))
	unknown := strings.HasPrefix(e.Error, "path ") || strings.HasPrefix(e.Error, "404 page")
	if status == http.StatusMethodNotAllowed || status == http.StatusNotFound && unknown {
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	return err
}

// print writes the answer of the server with --json, else the line.
func (c *Connection) print(w io.Writer, answer json.RawMessage, format string, args ...any) error {
	if c.JSON {
		var b bytes.Buffer
		if err := json.Indent(&b, answer, "", "  "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, strings.TrimSpace(b.String()))
		return err
	}
	line := fmt.Sprintf(format, args...)
	if c.DryRun {
		line = "dry run: " + line
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
