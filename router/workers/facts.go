package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// sglangInfo is what is read of SGLang's /server_info: the server's arguments, and what the server
// adds to them.
type sglangInfo struct {
	Version        string `json:"version"`
	PageSize       int    `json:"page_size"`
	MaxTokens      int    `json:"max_total_num_tokens"`
	Ranks          uint32 `json:"dp_size"`
	DecodeContext  int    `json:"dcp_size"`
	PrefillTokens  int    `json:"chunked_prefill_size"`
	CacheReport    bool   `json:"enable_cache_report"`
	NoRadixCache   *bool  `json:"disable_radix_cache"`
	Disaggregation string `json:"disaggregation_mode"`
	Speculative    string `json:"speculative_algorithm"`
	// EventsConfig is the text of --kv-events-config. Events is what newer servers make of it; the first
	// of these do not tell where replays are.
	EventsConfig string        `json:"kv_events_config"`
	Events       *sglangEvents `json:"kv_events"`
}

// sglangEvents is kv_events of /server_info. Each data-parallel rank publishes at a port of its own,
// counted from the base.
type sglangEvents struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	Port       uint32 `json:"endpoint_port_base"`
	ReplayPort uint32 `json:"replay_endpoint_port_base"`
	Topic      string `json:"topic"`
	BlockSize  int    `json:"block_size"`
	Ranks      uint32 `json:"dp_size"`
}

// sglangConfig is the object in --kv-events-config.
type sglangConfig struct {
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
}

// sglangPairs are the speculative algorithms with which SGLang hashes pairs of tokens.
var sglangPairs = []string{"EAGLE", "EAGLE3", "FROZEN_KV_MTP"}

// describeSGLang asks an SGLang server for facts and sets them in d. Facts that the server does not
// tell, or that are out of range, stay unknown.
func (p *prober) describeSGLang(ctx context.Context, d *described) {
	d.facts.Engine = EngineSGLang
	var info sglangInfo
	err := p.json(ctx, "/server_info", &info)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusNotFound {
		// Older servers have the path of the next line.
		info = sglangInfo{}
		err = p.json(ctx, "/get_server_info", &info)
	}
	if err != nil {
		d.eventsErr = err
		return
	}
	info.apply(d)
	d.facts.Events, d.eventsErr = p.sglangEvents(&info)
}

// apply sets the facts that info tells, but for the event endpoints.
func (info *sglangInfo) apply(d *described) {
	d.facts.Version = printable([]byte(info.Version[:min(len(info.Version), 64)]))
	d.facts.CachedTokens = triOf(info.CacheReport)
	if info.NoRadixCache != nil {
		d.facts.PrefixCaching = triOf(!*info.NoRadixCache)
	}
	if size := info.blockSize(); size > 0 {
		d.facts.BlockSize, d.facts.DeviceBlocks = size, max(0, info.MaxTokens)/size
	}
	if info.Ranks > 0 && info.Ranks <= maxRanks {
		d.ranks = info.Ranks
	}
	d.facts.BatchedTokens = max(0, info.PrefillTokens) // -1: prompts are computed whole
	d.facts.Pairs = slices.Contains(sglangPairs, strings.ToUpper(info.Speculative))
	if role, err := parseRole(info.Disaggregation); err == nil {
		d.role = role
	}
}

// blockSize returns the tokens of a block of events, 0 when unknown. With decode context parallelism
// a block is that many pages; kv_events of some versions tells the page nevertheless.
func (info *sglangInfo) blockSize() int {
	page, blocks := info.PageSize, max(1, info.DecodeContext)
	if page <= 0 || page > maxBlockSize || blocks > maxBlockSize || page*blocks > maxBlockSize {
		return 0
	}
	size := page * blocks
	if e := info.Events; e != nil && e.BlockSize <= maxBlockSize {
		size = max(size, e.BlockSize)
	}
	return size
}

// sglangEvents returns where the ranks of an SGLang server publish KV events, none when they do not.
func (p *prober) sglangEvents(info *sglangInfo) ([]EventSource, error) {
	var config sglangConfig
	if info.EventsConfig != "" {
		// The server has read it: what is no JSON here is a form of a later version.
		_ = json.Unmarshal([]byte(info.EventsConfig), &config)
	}
	e := info.Events
	if e == nil {
		e = &sglangEvents{Publisher: config.Publisher, Topic: config.Topic, Ranks: info.Ranks}
	}
	if e.Publisher != "zmq" {
		return nil, nil
	}
	if e.Ranks > maxRanks {
		return nil, fmt.Errorf("/server_info: kv_events: %d ranks, want at most %d", e.Ranks, maxRanks)
	}
	base, replay := config.Endpoint, config.Replay
	if e.Port > 0 {
		base = e.at(e.Port)
	}
	if e.ReplayPort > 0 {
		replay = e.at(e.ReplayPort)
	}
	if base == "" {
		base = "tcp://*:5557" // SGLang's default
	}
	base, err := p.reachable(base)
	if err != nil {
		return nil, fmt.Errorf("/server_info: kv_events: %w", err)
	}
	// Events without replay are better than no events.
	replay, _ = p.reachable(replay)
	var all []EventSource
	for rank := range max(1, e.Ranks) {
		endpoint, ok := rankEndpoint(base, "", rank)
		if !ok {
			break
		}
		again, _ := rankEndpoint(replay, "", rank) // empty without an endpoint for replays
		all = append(all, EventSource{Rank: rank, Endpoint: endpoint, Replay: again, Topic: e.Topic})
	}
	return all, nil
}

// at returns the address of a port of the publisher.
func (e *sglangEvents) at(port uint32) string {
	return "tcp://" + net.JoinHostPort(e.Host, strconv.FormatUint(uint64(port), 10))
}
