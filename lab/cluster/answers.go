package cluster

import (
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// AgentStats are the parts of an agent's GET /v1/stats that scenarios read.
type AgentStats struct {
	Quiet    bool `json:"quiet"`
	Sessions int  `json:"sessions"`
	Engines  struct {
		AwaitingExit int `json:"awaiting_exit"`
		Previous     int `json:"former"`
	} `json:"engines"`
	Events  EventCounts   `json:"events"`
	Streams []AgentStream `json:"streams"`
	Pools   []PoolStats   `json:"pools"`
}

// EventCounts are an agent's counters of engine and router events.
type EventCounts struct {
	In       uint64 `json:"in"`
	Out      uint64 `json:"out"`
	Gaps     uint64 `json:"gaps"`
	Repaired uint64 `json:"repaired"`
	Lost     uint64 `json:"lost"`
}

// AgentStream is one owner's stream at its agent.
type AgentStream struct {
	Owner       string `json:"owner"`
	PublisherID string `json:"publisher_id"`
	LastEventID uint64 `json:"last_event_id"`
	Health      string `json:"health"`
}

// PoolStats are the figures of one pool.
type PoolStats struct {
	Namespace     string     `json:"namespace"`
	Host          TierGauges `json:"host"`
	Disk          TierGauges `json:"disk"`
	Pins          int        `json:"pins"`
	HostEvictions uint64     `json:"host_evictions"`
	DiskEvictions uint64     `json:"disk_evictions"`
	CorruptReads  uint64     `json:"corrupt_reads"`
}

// TierGauges count the slots of a tier by state.
type TierGauges struct {
	Capacity    int `json:"capacity"`
	Free        int `json:"free"`
	Granted     int `json:"granted"`
	Staging     int `json:"staging"`
	Receiving   int `json:"receiving"`
	Quarantined int `json:"quarantined"`
	Active      int `json:"active"`
	Inactive    int `json:"inactive"`
}

// AgentPool is one pool of an agent's GET /v1/pools.
type AgentPool struct {
	Pool   uint64         `json:"pool"`
	Groups kvgroup.Groups `json:"groups"`
	Blocks []Block        `json:"blocks"`
}

// Block is a block of a pool and the tiers that it lies in. Group is an index of the pool's groups.
type Block struct {
	Hash  string   `json:"hash"`
	Group uint32   `json:"group"`
	Tiers []string `json:"tiers"`
	Host  Location `json:"host"`
	Disk  Location `json:"disk"`
}

// Location is where the bytes of a block lie; Path is empty for nowhere.
type Location struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
}

// RouterFeed is one entry of the router's GET /v1/feeds.
type RouterFeed struct {
	PublisherID string `json:"publisher_id"`
	Owner       string `json:"owner"`
	Cursor      uint64 `json:"cursor"`
	Announced   uint64 `json:"announced"`
	Health      string `json:"health"`
	Gaps        uint64 `json:"gaps"`
	Repaired    uint64 `json:"repaired"`
	DigestOK    bool   `json:"digest_ok"`
}

// RouterDump is GET /v1/dump of the router's Control.
type RouterDump []kvevent.StoredJSON
