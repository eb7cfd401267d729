package proto

import "github.com/blockyard-ai/blockyard/internal/kv"

//go:generate go tool msgp -file messages.go -o messages_gen.go -tests=false -io=false

// Bodies are msgpack maps with the keys given in the msg tags. A reader ignores unknown keys
// and takes absent ones as zero, so that a later minor version may add keys. Lists of tokens
// and slots are msgpack bin in the packed forms of codec.go.

// Hello opens a connection (HELLO).
type Hello struct {
	Major uint16 `msg:"major"`
	Minor uint16 `msg:"minor"`
	Role  string `msg:"role"`
	// Engine names the engine and its version, for people: "vllm 0.32.0".
	Engine string `msg:"engine"`
	// Incarnation is random and new at every start of the engine. The agent logs it, to
	// match its log lines with the engine's. A new agent uses the rank's checkpoint only
	// for the same incarnation.
	Incarnation uint64 `msg:"incarnation"`
	// WorkerID and DPRank are the worker that requests are routed to.
	WorkerID uint64 `msg:"worker_id"`
	DPRank   uint32 `msg:"dp_rank"`
	// Session is the session that a worker joins, or 0 for the current session of
	// its WorkerID and DPRank. It is 0 from a scheduler.
	Session uint64 `msg:"session"`
	// Namespace has the properties that blocks must share to be interchangeable. A worker
	// sends the session's namespace or none.
	Namespace kv.Namespace `msg:"namespace"`
	// EventsEndpoint and ReplayEndpoint are where the engine publishes its KV
	// events (ZMQ), empty when it publishes none. Scheduler only.
	EventsEndpoint string `msg:"events_endpoint"`
	ReplayEndpoint string `msg:"replay_endpoint"`
	EventsTopic    string `msg:"events_topic"`
	// WantEvicted asks for EVICTED. Scheduler only.
	WantEvicted bool `msg:"want_evicted"`
	// ListsCached says that the engine answers LIST_CACHED. Scheduler only.
	ListsCached bool `msg:"lists_cached,omitempty"`
	// ConsolidatedEndpoint is where a consumer expects the rank's events and its pool's in
	// vLLM's format. The agent binds it. Empty leaves the choice to the agent. Scheduler
	// only.
	ConsolidatedEndpoint string `msg:"consolidated_endpoint,omitempty"`
	// ConsolidatorMode says how the events at ConsolidatedEndpoint name and merge blocks: a
	// Consolidator… constant. Empty leaves the choice to the agent. Scheduler only.
	ConsolidatorMode string `msg:"consolidator_mode,omitempty"`
	// ServingEndpoint is the URL where the engine takes requests, empty when
	// unknown. Scheduler only.
	ServingEndpoint string `msg:"serving_endpoint,omitempty"`
	// Ranks is the number of data-parallel ranks of the engine. DeviceBlocks is the
	// number of blocks of this rank's device pool. 0 means unknown. Scheduler only.
	Ranks        uint32 `msg:"ranks,omitempty"`
	DeviceBlocks uint64 `msg:"device_blocks,omitempty"`
	// MaxBatchedTokens is the most tokens that the rank computes in a step; 0 means
	// unknown. Scheduler only.
	MaxBatchedTokens uint64 `msg:"max_num_batched_tokens,omitempty"`
	// Connector names the connector and its version, for people: "blockyard 0.1.0".
	// Empty when unknown.
	Connector string `msg:"connector,omitempty"`
}

// Values of Hello.ConsolidatorMode.
const (
	ConsolidatorTiered      = "tiered"      // tiers as they are
	ConsolidatorDedup       = "dedup"       // one tier: first store, last removal over all of them
	ConsolidatorPassthrough = "passthrough" // the engine's own batches and nothing else
)

// Welcome answers Hello.
type Welcome struct {
	Major   uint16 `msg:"major"`
	Minor   uint16 `msg:"minor"`
	Session uint64 `msg:"session"`
	// AgentNonce is random and new at every start of the agent.
	AgentNonce uint64 `msg:"agent_nonce"`
	// NamespaceID is the fingerprint that the agent computed, 16 bytes.
	NamespaceID []byte `msg:"namespace_id"`
	// Pool is the id under which the agent publishes this namespace's pool.
	Pool uint64 `msg:"pool"`
	// BlockBytes is the size of one block's bytes. SlotBytes is the distance
	// between two slots of an extent.
	BlockBytes uint64 `msg:"block_bytes"`
	SlotBytes  uint64 `msg:"slot_bytes"`
	// MaxRequests and MaxPins bound the open requests and the pins of a session.
	MaxRequests uint32 `msg:"max_requests"`
	MaxPins     uint32 `msg:"max_pins"`
	// HostEnabled is false when the agent has no tier to store into: STORE never
	// grants and LOOKUP never finds. It is true where there is a tier without room
	// for the namespace now, because later STOREs may find room.
	HostEnabled bool `msg:"host_enabled"`
	// Warning names the engine's wishes that the agent could not fulfil, for the
	// engine's log. At most MaxTextLen bytes.
	Warning string `msg:"warning,omitempty"`
}

// Register is the geometry of one worker's KV (REGISTER). It must fit the
// session's namespace.
type Register struct {
	// DeviceBlocks is the number of blocks in the worker's pool.
	DeviceBlocks uint32 `msg:"device_blocks"`
	// BlockBytes is the size of this worker's share of one block. Offset is where
	// the share begins in the block. Workers that keep the same KV have the same
	// share.
	BlockBytes uint64 `msg:"block_bytes"`
	Offset     uint64 `msg:"offset"`
}

// ExtentReady tells a client to map one extent (EXTENT_READY). The file
// descriptor travels beside the frame. The file starts with one u64 generation
// word per slot, little-endian, padded to DataOffset; slot i lies at
// DataOffset + i·SlotBytes.
type ExtentReady struct {
	Extent     uint32 `msg:"extent"`
	Slots      uint32 `msg:"slots"`
	SlotBytes  uint64 `msg:"slot_bytes"`
	DataOffset uint64 `msg:"data_offset"`
	FileBytes  uint64 `msg:"file_bytes"`
}

// Error refuses a frame (ERROR). With correlation 0 the refused frame wanted no
// answer, and Request names its request.
type Error struct {
	Code      string `msg:"code"`
	Retryable bool   `msg:"retryable"`
	Request   uint64 `msg:"req"`
	Text      string `msg:"text"`
}

// Open begins a request and carries the first piece of its tokens (OPEN). Request
// ids are the engine's. Generation distinguishes incarnations of one id: a
// preempted request comes back with the next generation. A second OPEN of an id
// with a higher generation ends the earlier one. Its pins are dropped, so no copy
// from them may be in flight. Its grants stay, because a copy into them may be in
// flight, until COMMIT or ABORT of the earlier generation. OPEN wants no answer. A
// refusal shows in the next frame that does.
type Open struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// LoRA is the adapter's fingerprint for keys, LoRAName its name for event
	// hashes, Salt the cache salt. Each is empty when absent.
	LoRA     string `msg:"lora"`
	LoRAName string `msg:"lora_name"`
	Salt     string `msg:"salt"`
	// Tokens is packed; see AppendTokens.
	Tokens []byte `msg:"tokens"`
}

// Append adds tokens to a request (APPEND). Offset is the number of tokens that the
// request already has, so that a lost or repeated piece is noticed.
type Append struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	Offset     uint32 `msg:"offset"`
	Tokens     []byte `msg:"tokens"`
}

// Range names blocks of a request: Count blocks from block First on. It is the body
// of RELEASE, which drops the pins of these blocks, claimed or not.
//
// In a namespace with KV groups every frame with blocks names a group, and counts the
// blocks of that group. Without groups, Group is 0.
type Range struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	Group      uint32 `msg:"group,omitempty"`
}

// Lookup asks how many blocks from First on are resident, at most Count (LOOKUP).
// The agent may wait up to WaitMillis for blocks on disk to reach host memory.
type Lookup struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	WaitMillis uint32 `msg:"wait_ms"`
	Group      uint32 `msg:"group,omitempty"`
}

// LookupHit answers Lookup (LOOKUP_HIT): the blocks First … First+Ready-1 are
// in host memory and pinned for this session until CLAIM and RELEASE, CLOSE or
// the session's end.
type LookupHit struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Ready      uint32 `msg:"ready"`
	// Coming counts the following blocks that are being read from disk. A later LOOKUP may
	// report them.
	Coming uint32 `msg:"coming"`
	// Sources has one byte for each ready block: the kv.Tier where the block was
	// found. A promoted block says disk.
	Sources []byte `msg:"sources"`
	// Slots are the Ready slots, packed: see AppendSlots. They include blocks that
	// the request had pinned before.
	Slots []byte `msg:"slots"`
	// Group is the KV group that the LOOKUP named.
	Group uint32 `msg:"group,omitempty"`
}

// Claim says that pinned blocks will be loaded into device blocks (CLAIM). The
// agent sends LOAD to the session's workers and answers the scheduler with
// CLAIMED.
type Claim struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	// Job is the engine's name for the load; unique in the session.
	Job uint64 `msg:"job"`
	// Blocks are the Count device block ids, packed as tokens are.
	Blocks []byte `msg:"blocks"`
	Group  uint32 `msg:"group,omitempty"`
}

// Claimed answers Claim (CLAIMED).
type Claimed struct {
	Job uint64 `msg:"job"`
	// Workers is the number of workers that get a LOAD. A worker that does not take
	// it loses its connection, and the next CLAIM is refused once.
	Workers uint32 `msg:"workers"`
}

// Load tells a worker to copy slots into device blocks (LOAD). The worker compares
// each slot's generation word with the slot's generation before and after its copy.
// A difference is a failed load.
type Load struct {
	Job    uint64 `msg:"job"`
	Slots  []byte `msg:"slots"`
	Blocks []byte `msg:"blocks"`
	// Group is the CLAIM's: the worker copies into the layers of this KV group.
	Group uint32 `msg:"group,omitempty"`
}

// Store offers blocks for storing (STORE). The agent decides before anything is
// copied. Blocks that are stored already, or that the filter refuses, get no slot.
type Store struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	// Priority is the retention priority of the blocks. A higher priority stays
	// longer. An engine without priorities leaves it out.
	Priority uint32 `msg:"priority,omitempty"`
	Group    uint32 `msg:"group,omitempty"`
}

// Grant answers Store (GRANT). Granted + Present + Refused = Count.
type Grant struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// Grants are the blocks to copy and their slots, packed; see AppendGrants.
	Grants []byte `msg:"grants"`
	// Present counts the blocks that were stored already, Refused those that found no slot
	// or were filtered.
	Present uint32 `msg:"present"`
	Refused uint32 `msg:"refused"`
	// Group is the STORE's.
	Group uint32 `msg:"group,omitempty"`
}

// ResumedRequest is the request id under which COMMIT, ABORT, RELEASE and CLOSE
// name the slots of RESUMED, with generation 0. No request can be opened with it.
// In RELEASE the run of blocks counts the slots of RESUMED's Pinned.
const ResumedRequest = 1<<64 - 1

// SlotList names granted slots. It is the body of COMMIT and ABORT.
type SlotList struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	Slots      []byte `msg:"slots"`
}

// Close ends a request (CLOSE). Its remaining pins are dropped and its uncommitted
// grants aborted, so no copy from or to them may be in flight. Close may also name
// an earlier generation that still holds grants.
type Close struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
}

// Bye ends the session in order (BYE). The engine promises that no copy is in
// flight.
type Bye struct {
	Reason string `msg:"reason"`
}

// Evicted names blocks that have left a tier of the session's namespace (EVICTED),
// to a scheduler that asked for it. It is a hint for people and counters. Some
// blocks may be missing, and a block may be back already.
type Evicted struct {
	// Tier is the kv.Tier that the blocks have left, host or disk.
	Tier uint8 `msg:"tier"`
	// Hashes are the blocks' sequence hashes, packed; see AppendHashes.
	Hashes []byte `msg:"hashes"`
	// Lost counts the blocks since the session began that are in no EVICTED, because the
	// agent's queue was full.
	Lost uint64 `msg:"lost"`
}

// Reset asks the agent to empty the namespace's pool (RESET), because the engine says that its
// blocks are no longer valid. The agent changes nothing while another session has the pool open.
type Reset struct{}

// Stats are the sender's counters since the connection began (STATS). No counter
// ever decreases.
type Stats struct {
	// Lookups counts LOOKUPs, HitBlocks the blocks that they found.
	Lookups   uint64 `msg:"lookups" json:"lookups"`
	HitBlocks uint64 `msg:"hit_blocks" json:"hit_blocks"`
	// Loads counts loads begun, LoadedBlocks blocks that arrived, FailedLoads loads
	// that were recomputed.
	Loads        uint64 `msg:"loads" json:"loads"`
	LoadedBlocks uint64 `msg:"loaded_blocks" json:"loaded_blocks"`
	FailedLoads  uint64 `msg:"failed_loads" json:"failed_loads"`
	// Stores counts STOREs, StoredBlocks blocks committed, DroppedStores
	// blocks that were not offered or were given up.
	Stores        uint64 `msg:"stores" json:"stores"`
	StoredBlocks  uint64 `msg:"stored_blocks" json:"stored_blocks"`
	DroppedStores uint64 `msg:"dropped_stores" json:"dropped_stores"`
	// CopiedBytes were copied in either direction, in CopyMicros microseconds.
	CopiedBytes uint64 `msg:"copied_bytes" json:"copied_bytes"`
	CopyMicros  uint64 `msg:"copy_us" json:"copy_us"`
	// Errors counts refused frames and other failures.
	Errors uint64 `msg:"errors" json:"errors"`

	// The fields from here on are gauges from schedulers. DeviceBlocksTotal is 0
	// where the engine does not say, and then all gauges are unknown.
	// DeviceBlocksUsed are the blocks of the rank's device pool that requests or
	// copies hold. Cached blocks without a holder do not count.
	DeviceBlocksTotal uint64 `msg:"device_blocks_total,omitempty" json:"device_blocks_total,omitempty"`
	DeviceBlocksUsed  uint64 `msg:"device_blocks_used,omitempty" json:"device_blocks_used,omitempty"`
	// RunningRequests took part in the engine's last step. WaitingRequests did not.
	RunningRequests uint64 `msg:"running_requests,omitempty" json:"running_requests,omitempty"`
	WaitingRequests uint64 `msg:"waiting_requests,omitempty" json:"waiting_requests,omitempty"`

	// The fields from here on are counters from schedulers. HandOvers counts requests that
	// waited for the blocks of another engine's prefill, HandOverBlocks the blocks that they
	// waited for and got, HandOverMissing those that were recomputed.
	HandOvers       uint64 `msg:"hand_overs,omitempty" json:"hand_overs,omitempty"`
	HandOverBlocks  uint64 `msg:"hand_over_blocks,omitempty" json:"hand_over_blocks,omitempty"`
	HandOverMissing uint64 `msg:"hand_over_missing,omitempty" json:"hand_over_missing,omitempty"`
}

// Drain says that the agent is about to stop (DRAIN). The engine opens and claims
// nothing new, lets its copies end, settles them and sends BYE.
type Drain struct {
	// DeadlineMillis is the time after which the agent closes the connection.
	DeadlineMillis uint32 `msg:"deadline_ms"`
	Reason         string `msg:"reason"`
}

// Resume names the slots that a client still uses from a session with an earlier agent
// (RESUME), after HELLO: every slot that a copy may be in flight to or from. The agent frees
// all other slots of that session.
type Resume struct {
	// Session and AgentNonce are those of the earlier WELCOME.
	Session    uint64 `msg:"session"`
	AgentNonce uint64 `msg:"agent_nonce"`
	// Granted and Pinned are packed slots, together at most MaxResumeSlots. No slot is
	// twice in one of them.
	Granted []byte `msg:"granted"`
	Pinned  []byte `msg:"pinned"`
}

// Resumed answers Resume (RESUMED): the slots that the client keeps, under the
// request id ResumedRequest. All other slots are no longer the client's.
type Resumed struct {
	Granted []byte `msg:"granted"`
	Pinned  []byte `msg:"pinned"`
}

// ListCached asks a scheduler for the hashes of its device's prefix cache
// (LIST_CACHED). The agent sends it if HELLO said ListsCached, after it has lost events of the
// engine. The answer is CACHED frames.
type ListCached struct {
	// List is the agent's name for the list: not 0, and higher than that of the
	// previous list, which the agent no longer waits for.
	List uint64 `msg:"list"`
}

// Cached is a part of a list (CACHED). The list has every hash that was in the
// cache from LIST_CACHED until Final. A hash that came or went meanwhile may be
// missing.
type Cached struct {
	List uint64 `msg:"list"`
	// Hashes are packed: see AppendHashes. They are the engine's own, as in
	// its events. A hash may come more than once.
	Hashes []byte `msg:"hashes"`
	// Final ends the list.
	Final bool `msg:"final"`
	// Unavailable says that the engine cannot list its cache. The list is void and
	// ends here.
	Unavailable bool `msg:"unavailable,omitempty"`
}
