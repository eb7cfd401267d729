package cluster

import "github.com/blockyard-ai/blockyard/internal/kvevent"

// EngineState is what is read of an engine's GET /v1/state.
type EngineState struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"rank"`
	// Blocks are the sequence hashes on the device, 16 hexadecimal digits each.
	Blocks []string `json:"blocks"`
	Idle   bool     `json:"idle"`
	Stats  struct {
		FramesSent    uint64 `json:"frames_sent"`
		FramesDropped uint64 `json:"frames_dropped"`
		Resets        uint64 `json:"resets"`
		Sessions      uint64 `json:"sessions"`
	} `json:"stats"`
}

// AgentStats is what is read of an agent's GET /v1/stats.
type AgentStats struct {
	Quiet  bool `json:"quiet"`
	Events struct {
		In       uint64 `json:"in"`
		Out      uint64 `json:"out"`
		Gaps     uint64 `json:"gaps"`
		Repaired uint64 `json:"repaired"`
		Lost     uint64 `json:"lost"`
	} `json:"events"`
	Streams []AgentStream `json:"streams"`
}

// AgentStream is one owner's stream at its agent.
type AgentStream struct {
	Owner       string `json:"owner"`
	PublisherID string `json:"publisher_id"`
	LastEventID uint64 `json:"last_event_id"`
	Blocks      uint64 `json:"blocks"`
	Health      string `json:"health"`
}

// AgentPool is one pool of an agent's GET /v1/pools.
type AgentPool struct {
	Pool   uint64  `json:"pool"`
	Blocks []Block `json:"blocks"`
}

// Block is a block and the tiers that it lies in.
type Block struct {
	Hash  string   `json:"hash"`
	Tiers []string `json:"tiers"`
}

// RouterFeed is one entry of the router's GET /v1/feeds.
type RouterFeed struct {
	PublisherID string `json:"publisher_id"`
	Owner       string `json:"owner"`
	Cursor      uint64 `json:"cursor"`
	Announced   uint64 `json:"announced"`
	Health      string `json:"health"`
	Gaps        uint64 `json:"gaps"`
	DigestOK    bool   `json:"digest_ok"`
}

// RouterDump is GET /v1/dump of the router's Control.
type RouterDump []kvevent.StoredJSON
