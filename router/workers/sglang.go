package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

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
