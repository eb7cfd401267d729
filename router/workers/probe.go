package workers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
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

// cacheConfig is vllm:cache_config_info of /metrics, with a line for each rank.
type cacheConfig struct {
	found               bool
	blockSize, blocks   int
	prefixCaching       Tri
	firstRank, lastRank uint32
}

// maxMetricLine bounds the lines of /metrics that are looked at; longer ones are skipped.
const maxMetricLine = 64 << 10

// read reads vLLM's metrics in Prometheus' text format, and takes the block size and the number of
// blocks from the lines of vllm:cache_config_info, one for each rank. Memory stays bounded: a line
// longer than the buffer comes in pieces and is ignored.
func (c *cacheConfig) read(r io.Reader) error {
	lines := bufio.NewReaderSize(io.LimitReader(r, maxMetrics), maxMetricLine)
	whole := true // the piece is the start of a line
	for {
		piece, err := lines.ReadSlice('\n')
		ended := !errors.Is(err, bufio.ErrBufferFull)
		if text, ok := bytes.CutPrefix(piece, []byte("vllm:cache_config_info{")); ok && whole && ended {
			c.line(string(text))
		} else if c.found {
			return nil // The lines of a metric are together.
		}
		whole = ended
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// line takes block size, number of blocks and rank from the labels of one line of
// vllm:cache_config_info. Bad numbers count as absent.
func (c *cacheConfig) line(text string) {
	rank := uint32(0)
	labels(text, func(name, value string) {
		switch name {
		case "block_size":
			c.blockSize = atoi(value, maxBlockSize)
		case "num_gpu_blocks":
			c.blocks = atoi(value, 1<<40)
		case "enable_prefix_caching":
			if value == "True" || value == "False" {
				c.prefixCaching = triOf(value == "True")
			}
		case "engine":
			rank = uint32(atoi(value, 1<<20))
		}
	})
	if !c.found {
		c.firstRank, c.lastRank = rank, rank
	}
	c.firstRank, c.lastRank = min(c.firstRank, rank), max(c.lastRank, rank)
	c.found = true
}

// apply moves what was read into d. vLLM's number of blocks is the sum of all ranks.
func (c *cacheConfig) apply(d *described) {
	d.facts.BlockSize, d.facts.PrefixCaching = c.blockSize, c.prefixCaching
	if ranks := c.lastRank - c.firstRank + 1; ranks <= maxRanks {
		d.firstRank, d.ranks = c.firstRank, ranks
	}
	d.facts.DeviceBlocks = c.blocks / int(d.ranks)
}

// atoi returns the number of a label, 0 when it is none or not in 1..limit.
func atoi(text string, limit int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > limit {
		return 0
	}
	return n
}

// labels calls f for each label of a metric. text is the line after the opening brace:
// name="value",name="value"} and so on. A backslash escapes a quote, a backslash, or n for a line
// break. labels stops at text that is no label.
func labels(text string, f func(name, value string)) {
	for {
		name, rest, ok := strings.Cut(text, `="`)
		if !ok {
			return
		}
		var value strings.Builder
		end := -1
		for i := 0; i < len(rest); i++ {
			if rest[i] == '"' {
				end = i
				break
			}
			if rest[i] == '\\' && i+1 < len(rest) {
				i++
				if rest[i] == 'n' {
					value.WriteByte('\n')
					continue
				}
			}
			value.WriteByte(rest[i])
		}
		if end < 0 {
			return
		}
		f(strings.TrimLeft(name, ", "), value.String())
		text = rest[end+1:]
	}
}
