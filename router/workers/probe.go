package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxBody bounds the JSON that a server may answer, maxMetrics its metrics, in bytes.
	maxBody    = 4 << 20
	maxMetrics = 32 << 20
	// maxModels bounds the models of one server.
	maxModels = 1024
	// maxRanks bounds the data-parallel ranks of one server.
	maxRanks = 1024
	// idleTimeout closes connections before uvicorn does, after 5 s.
	idleTimeout = 4 * time.Second
)

// newClient returns the HTTP client that probes servers. It follows no redirect and uses no proxy:
// an answer from elsewhere says nothing about the server.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout,
			TLSHandshakeTimeout: 3 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// prober asks one server.
type prober struct {
	client  *http.Client
	url     string
	key     string
	timeout time.Duration
}

// statusError is an answer with an unwanted status.
type statusError struct {
	path   string
	status int
	text   string
}

// Error implements error. A refusal of the key says which setting gives one.
func (e *statusError) Error() string {
	s := fmt.Sprintf("%s: status %d", e.path, e.status)
	switch {
	case e.status == http.StatusUnauthorized || e.status == http.StatusForbidden:
		s += "; give the server's key with api-key-file="
	case e.text != "":
		s += ": " + e.text
	}
	return s
}

// do sends a request to a path of the server and calls read with the answer's body. The body of a
// POST is an empty JSON object. The error is a statusError for a status other than 200, or the error
// of the connection or of read. Each request has p.timeout.
func (p *prober) do(ctx context.Context, method, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var body io.Reader = http.NoBody
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	r, err := http.NewRequestWithContext(ctx, method, p.url+path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.Header.Set("Content-Type", "application/json")
	if p.key != "" {
		r.Header.Set("Authorization", "Bearer "+p.key)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return &statusError{path, answer.StatusCode, printable(text)}
	}
	if err := read(answer.Body); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// printable returns text for one log line: without blanks around it, with blanks for control
// characters and with ? for invalid UTF-8.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(bytes.TrimSpace(text)), "?"))
}

// json gets a path of the server and decodes the answer, at most maxBody bytes of JSON, into v.
func (p *prober) json(ctx context.Context, path string, v any) error {
	return p.do(ctx, http.MethodGet, path, func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, maxBody+1))
		if err != nil {
			return err
		}
		if len(data) > maxBody {
			return fmt.Errorf("body: want at most %d bytes", maxBody)
		}
		return json.Unmarshal(data, v)
	})
}

// status returns the HTTP status of the server's answer; 0 when no answer came.
func (p *prober) status(ctx context.Context, method, path string) int {
	err := p.do(ctx, method, path, func(io.Reader) error { return nil })
	var other *statusError
	switch {
	case errors.As(err, &other):
		return other.status
	case err != nil:
		return 0
	}
	return http.StatusOK
}

// decisive reports whether the error of a probe proves that the server does not serve: nobody
// listens, the engine is dead, or the answer is not the one of an inference server. Timeouts and
// broken connections prove nothing, because a busy server causes them too.
func decisive(err error) bool {
	var status *statusError
	var network net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return true
	case errors.As(err, &status):
		return status.status != http.StatusTooManyRequests
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return false
	}
	return true
}

// modelList is the body of GET /v1/models.
type modelList struct {
	Data []struct {
		ID      string `json:"id"`
		Parent  string `json:"parent"`
		OwnedBy string `json:"owned_by"`
		MaxLen  int    `json:"max_model_len"`
	} `json:"data"`
}

// alive probes the server. It returns the models that the server serves, base models before
// adapters, and engine, the owner of the first base model, like "vllm". The error says why the
// server does not serve.
func (p *prober) alive(ctx context.Context) (models []Model, engine string, err error) {
	err = p.do(ctx, http.MethodGet, "/health", func(io.Reader) error { return nil })
	var status *statusError
	// A server without /health is judged by its models.
	if err != nil && (!errors.As(err, &status) || status.status != http.StatusNotFound && status.status != http.StatusMethodNotAllowed) {
		return nil, "", err
	}
	var list modelList
	if err := p.json(ctx, "/v1/models", &list); err != nil {
		return nil, "", err
	}
	if len(list.Data) > maxModels {
		return nil, "", fmt.Errorf("/v1/models: %d models, want at most %d", len(list.Data), maxModels)
	}
	var adapters []Model
	for i := range list.Data {
		m := &list.Data[i]
		if m.ID == "" || len(m.ID) > kvevent.MaxModel || strings.ContainsFunc(m.ID, unicode.IsControl) {
			return nil, "", fmt.Errorf("/v1/models: data[%d].id: %.60q: want 1 to %d bytes without control characters", i, m.ID, kvevent.MaxModel)
		}
		model := Model{Name: m.ID, Base: m.Parent, MaxLen: max(0, m.MaxLen)}
		if m.Parent != "" { // a LoRA adapter
			adapters = append(adapters, model)
			continue
		}
		if len(models) == 0 {
			engine = m.OwnedBy
		}
		models = append(models, model)
	}
	if len(models) == 0 {
		return nil, "", errors.New("/v1/models: no base model")
	}
	return append(models, adapters...), engine, nil
}
