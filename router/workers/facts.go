package workers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Engines, in Facts.Engine.
const (
	EngineVLLM   = "vllm"
	EngineSGLang = "sglang"
)

// described is what a server tells beside its models.
type described struct {
	facts            Facts
	firstRank, ranks uint32
	role             Role
	// eventsErr is why the event endpoints are unknown.
	eventsErr error
}

// keep fills gaps of d with the facts of the last time, in before, because a busy server may leave a
// question without an answer. Facts of another engine do not count.
func (d *described) keep(before *described) {
	if d.facts.Engine != before.facts.Engine {
		return
	}
	if d.eventsErr != nil {
		d.facts.Events = before.facts.Events
	}
	if d.facts.BlockSize == 0 {
		d.facts.BlockSize, d.facts.DeviceBlocks, d.facts.PrefixCaching = before.facts.BlockSize, before.facts.DeviceBlocks, before.facts.PrefixCaching
		d.facts.BatchedTokens, d.facts.Pairs = before.facts.BatchedTokens, before.facts.Pairs
		d.firstRank, d.ranks = before.firstRank, before.ranks
	}
}

// describe asks the server for facts: its version, block size, cache, event endpoints and routes.
// engine is the owner of its models, as alive returns it. Facts that the server does not tell stay
// unknown, so there is no error.
func (p *prober) describe(ctx context.Context, engine string) described {
	d := described{ranks: 1}
	// A route that exists complains of the empty body that it is sent.
	d.facts.Tokenize = offered(p.status(ctx, http.MethodPost, "/tokenize"))
	if engine == EngineSGLang {
		p.describeSGLang(ctx, &d)
		return d
	}
	d.facts.Render = offered(p.status(ctx, http.MethodPost, "/v1/chat/completions/render"))
	var version struct {
		Version string `json:"version"`
	}
	if p.json(ctx, "/version", &version) == nil {
		d.facts.Version = printable([]byte(version.Version[:min(len(version.Version), 64)]))
	}
	if engine == EngineVLLM {
		d.facts.Engine = EngineVLLM
	}
	var cache cacheConfig
	err := p.do(ctx, http.MethodGet, "/metrics", cache.read)
	if err == nil && cache.found {
		cache.apply(&d)
	}
	d.facts.Events, d.eventsErr = p.eventSources(ctx)
	return d
}

// offered reports whether a route that was sent an empty object exists and may be used: it
// complains of missing fields.
func offered(status int) bool {
	return status == http.StatusOK || status == http.StatusBadRequest || status == http.StatusUnprocessableEntity
}

// eventSources asks vLLM where its ranks publish KV events, and returns the endpoints as this
// host reaches them, ordered by rank. It leaves out ranks without events over ZMQ.
func (p *prober) eventSources(ctx context.Context) ([]EventSource, error) {
	var ranks map[uint32]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := p.json(ctx, "/kv_event_sources", &ranks); err != nil {
		return nil, err
	}
	if len(ranks) > maxRanks {
		return nil, fmt.Errorf("/kv_event_sources: %d ranks, want at most %d", len(ranks), maxRanks)
	}
	var all []EventSource
	for rank, s := range ranks {
		if !s.Enabled || s.Publisher != "zmq" {
			continue
		}
		endpoint, err := p.reachable(s.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("/kv_event_sources: rank %d: %w", rank, err)
		}
		e := EventSource{Rank: rank, Endpoint: endpoint, Topic: s.Topic}
		if s.Replay != "" {
			if e.Replay, err = p.reachable(s.Replay); err != nil {
				return nil, fmt.Errorf("/kv_event_sources: rank %d: replay: %w", rank, err)
			}
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b EventSource) int { return cmp.Compare(a.Rank, b.Rank) })
	return all, nil
}

// reachable returns the address tcp://host:port by which the router reaches a listener of the
// server. A wildcard host, like * or 0.0.0.0, becomes the host of the server's URL.
func (p *prober) reachable(address string) (string, error) {
	host, port, err := splitZMQ(address)
	if err != nil {
		return "", fmt.Errorf("endpoint: %.200q: want tcp://host:port", address)
	}
	if ip := net.ParseIP(host); host == "*" || ip != nil && ip.IsUnspecified() {
		u, err := url.Parse(p.url)
		if err != nil {
			return "", err
		}
		host = u.Hostname()
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
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
