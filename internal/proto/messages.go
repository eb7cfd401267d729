package proto

import "github.com/blockyard-ai/blockyard/internal/kv"

//go:generate go tool msgp -file messages.go -o messages_gen.go -tests=false -io=false

// Bodies are msgpack maps with the keys given in the msg tags. A reader
// ignores keys it does not know and takes absent ones as zero, so that a later
// minor version may add some. Lists of tokens and slots are msgpack bin in the
// packed forms of packed.go: one copy, no per-element work.

// Role is what a connection drives.
type Role string

const (
	// RoleScheduler drives: it opens requests, looks up, claims and stores.
	RoleScheduler Role = "scheduler"
	// RoleWorker copies: it maps extents and receives LOAD.
	RoleWorker Role = "worker"
)

// Hello opens a connection (HELLO).
type Hello struct {
	Major uint16 `msg:"major"`
	Minor uint16 `msg:"minor"`
	Role  string `msg:"role"`
	// Engine names the engine and its version, for people: "vllm 0.32.0".
	Engine string `msg:"engine"`
	// Incarnation is random and new at every start of the engine. The agent logs it, so
	// that its lines can be matched with the engine's, and takes over what an earlier
	// agent noted of the rank's device only for the same one. What a dead engine may
	// still write is known from its processes, which cannot be wrong about it.
	Incarnation uint64 `msg:"incarnation"`
	// WorkerID and DPRank are the worker that requests are routed to.
	WorkerID uint64 `msg:"worker_id"`
	DPRank   uint32 `msg:"dp_rank"`
	// Session is the session that a worker joins, or 0 for the one that its WorkerID
	// and DPRank have now; 0 from a scheduler.
	Session uint64 `msg:"session"`
	// Namespace is what makes blocks interchangeable. A worker may leave it out; when
	// it gives one, that is the session's.
	Namespace kv.Namespace `msg:"namespace"`
	// EventsEndpoint and ReplayEndpoint are where the engine publishes its KV
	// events (ZMQ); empty when it publishes none. Scheduler only.
	EventsEndpoint string `msg:"events_endpoint"`
	ReplayEndpoint string `msg:"replay_endpoint"`
	EventsTopic    string `msg:"events_topic"`
	// WantEvicted asks for EVICTED. Scheduler only.
	WantEvicted bool `msg:"want_evicted"`
	// ListsCached says that the engine answers LIST_CACHED. Scheduler only.
	ListsCached bool `msg:"lists_cached,omitempty"`
	// ConsolidatedEndpoint is where somebody expects the rank's events, in vLLM's
	// format, with those of the tiers among them: the agent binds it. Empty leaves it
	// to the agent. Scheduler only.
	ConsolidatedEndpoint string `msg:"consolidated_endpoint,omitempty"`
	// ConsolidatorMode is how that stream names and merges blocks, one of the
	// Consolidator… constants; empty leaves it to the agent. Scheduler only.
	ConsolidatorMode string `msg:"consolidator_mode,omitempty"`
	// ServingEndpoint is where the engine takes requests, as a URL, for whoever routes
	// them; empty when it is not known. Scheduler only.
	ServingEndpoint string `msg:"serving_endpoint,omitempty"`
	// Ranks is how many data-parallel ranks the engine has, DeviceBlocks how many
	// blocks this rank's device pool has; 0 says nothing. Scheduler only.
	Ranks        uint32 `msg:"ranks,omitempty"`
	DeviceBlocks uint64 `msg:"device_blocks,omitempty"`
	// MaxBatchedTokens is how many tokens the rank computes in a step at most; 0 says
	// nothing. Scheduler only.
	MaxBatchedTokens uint64 `msg:"max_num_batched_tokens,omitempty"`
	// Connector names the connector and its version, for people: "blockyard 0.1.0";
	// empty when it is not known.
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
	// BlockBytes is the size of one block's bytes, SlotBytes the distance between
	// two slots of an extent.
	BlockBytes uint64 `msg:"block_bytes"`
	SlotBytes  uint64 `msg:"slot_bytes"`
	// MaxRequests and MaxPins bound the open requests and the pins of a session.
	MaxRequests uint32 `msg:"max_requests"`
	MaxPins     uint32 `msg:"max_pins"`
	// HostEnabled is false when the agent has no tier to store into: then STORE
	// grants nothing and LOOKUP finds nothing, ever. Where there is a tier but no
	// room for the namespace now, it is true, and later STOREs may find room.
	HostEnabled bool `msg:"host_enabled"`
	// Warning is what of the engine's wishes the agent could not fulfil, for the
	// engine's log; empty for nothing. At most MaxTextLen bytes.
	Warning string `msg:"warning,omitempty"`
}

// Register is the geometry of one worker's KV (REGISTER). It must fit the
// session's namespace.
type Register struct {
	// DeviceBlocks is the number of blocks in the worker's pool.
	DeviceBlocks uint32 `msg:"device_blocks"`
	// BlockBytes is the size of this worker's share of one block, Offset where in the
	// block it begins. Workers that keep the same KV have the same share.
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

// Error refuses a frame (ERROR). With correlation 0 it is about a frame that
// wanted no answer; Request then names its request.
type Error struct {
	Code      string `msg:"code"`
	Retryable bool   `msg:"retryable"`
	Request   uint64 `msg:"req"`
	Text      string `msg:"text"`
}

// Error codes.
const (
	CodeMalformed   = "malformed"    // the frame could not be decoded
	CodeUnsupported = "unsupported"  // unknown frame type or version
	CodeRange       = "out_of_range" // a field is outside its range
	CodeState       = "bad_state"    // the frame does not fit the session's or request's state
	CodeNotFound    = "not_found"    // no such request or generation
	CodeLimit       = "limit"        // a limit of the session or of the agent is reached
	CodeNamespace   = "namespace"    // the agent does not keep this namespace, or it is not the session's
	CodeDenied      = "denied"       // the peer is not allowed
	CodeInternal    = "internal"     // the agent failed
)

// Open begins a request and carries the first piece of its tokens (OPEN).
// Request ids are the engine's; Generation tells the incarnations of one id
// apart (a preempted request comes back with the next one). A second OPEN of an
// id with a higher generation ends the earlier one: its pins drop, so that no
// copy from them may be in flight. What it was granted stays granted, because a
// copy into it may be; COMMIT and ABORT of the earlier generation settle it.
// Wants no answer; mistakes surface in the next frame that does.
type Open struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// LoRA is the adapter's fingerprint for keys, LoRAName its name for event
	// hashes, Salt the cache salt; empty when absent.
	LoRA     string `msg:"lora"`
	LoRAName string `msg:"lora_name"`
	Salt     string `msg:"salt"`
	// Tokens is packed; see AppendTokens.
	Tokens []byte `msg:"tokens"`
}

// Append adds tokens to a request (APPEND). Offset is the number of tokens
// that the request already has, so that a lost or repeated piece is noticed.
type Append struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	Offset     uint32 `msg:"offset"`
	Tokens     []byte `msg:"tokens"`
}

// Range names blocks of a request: Count blocks from block First on. It is the
// body of RELEASE (the pins of these blocks are no longer needed, claimed or
// not).
type Range struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
}

// Lookup asks how many blocks from First on are resident, at most Count
// (LOOKUP). The agent may wait up to WaitMillis for blocks on disk to reach
// host memory before it answers.
type Lookup struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	WaitMillis uint32 `msg:"wait_ms"`
}

// LookupHit answers Lookup (LOOKUP_HIT): the blocks First … First+Ready-1 are
// in host memory and pinned for this session until CLAIM and RELEASE, CLOSE or
// the session's end.
type LookupHit struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Ready      uint32 `msg:"ready"`
	// Coming is how many blocks after those are on their way from disk; asking
	// again later may report them.
	Coming uint32 `msg:"coming"`
	// Sources has one byte for each ready block: the kv.Tier that it was found in
	// (a promoted block says disk).
	Sources []byte `msg:"sources"`
	// Slots are the Ready slots, packed; see AppendSlots. Those of blocks that the
	// request had pinned before are among them.
	Slots []byte `msg:"slots"`
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
}

// Claimed answers Claim (CLAIMED).
type Claimed struct {
	Job uint64 `msg:"job"`
	// Workers is the number of workers that LOAD is on its way to. One that does
	// not take it loses its connection, and the next CLAIM is refused once.
	Workers uint32 `msg:"workers"`
}

// Load tells a worker to copy slots into device blocks (LOAD). The worker
// compares each slot's generation word with the slot's generation before and
// after its copy; a difference is a failed load.
type Load struct {
	Job    uint64 `msg:"job"`
	Slots  []byte `msg:"slots"`
	Blocks []byte `msg:"blocks"`
}

// Store offers blocks for storing (STORE). The agent decides before anything
// is copied: blocks that are there already, or that the filter refuses, get no
// slot.
type Store struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	First      uint32 `msg:"first"`
	Count      uint32 `msg:"count"`
	// Priority is the retention priority of the blocks, higher for what is worth
	// more. An engine without priorities leaves it out.
	Priority uint32 `msg:"priority,omitempty"`
}

// Grant answers Store (GRANT). Granted + Present + Refused = Count.
type Grant struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// Grants are the blocks to copy and their slots, packed; see AppendGrants.
	Grants []byte `msg:"grants"`
	// Present is how many blocks were there already, Refused how many found no
	// slot or were filtered.
	Present uint32 `msg:"present"`
	Refused uint32 `msg:"refused"`
}

// ResumedRequest is the request id under which COMMIT, ABORT, RELEASE and CLOSE
// name what RESUMED gave back, with generation 0. No request can be opened with
// it. In RELEASE the run of blocks counts the slots of RESUMED's Pinned.
const ResumedRequest = 1<<64 - 1

// SlotList names slots that were granted; the body of COMMIT and ABORT.
type SlotList struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	Slots      []byte `msg:"slots"`
}

// Close ends a request (CLOSE): its remaining pins drop and its granted but
// uncommitted slots are aborted, so that no copy from or to any of them may be
// in flight. It may also name an earlier generation that still holds grants.
type Close struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
}

// Bye ends the session in order (BYE): the engine promises that no copy is in
// flight.
type Bye struct {
	Reason string `msg:"reason"`
}

// Evicted names blocks that have left a tier of the session's namespace (EVICTED),
// to a scheduler that asked for it. It is a hint for people and counters: some may
// be missing, and a block may be back already.
type Evicted struct {
	// Tier is the kv.Tier that they have left, host or disk.
	Tier uint8 `msg:"tier"`
	// Hashes are the blocks' sequence hashes, packed; see AppendHashes.
	Hashes []byte `msg:"hashes"`
	// Lost is how many blocks since the session began are in no EVICTED, because
	// the agent's queue was full.
	Lost uint64 `msg:"lost"`
}

// Reset says that the engine no longer stands behind what is stored under its
// namespace (RESET). The agent empties the namespace's pool unless another session
// has it open.
type Reset struct{}

// Stats is what a connection's sender has counted since the connection began
// (STATS); no counter ever goes back.
type Stats struct {
	// Lookups were asked, and HitBlocks found by them.
	Lookups   uint64 `msg:"lookups" json:"lookups"`
	HitBlocks uint64 `msg:"hit_blocks" json:"hit_blocks"`
	// Loads were begun, LoadedBlocks have arrived; FailedLoads were recomputed.
	Loads        uint64 `msg:"loads" json:"loads"`
	LoadedBlocks uint64 `msg:"loaded_blocks" json:"loaded_blocks"`
	FailedLoads  uint64 `msg:"failed_loads" json:"failed_loads"`
	// Stores were offered, StoredBlocks committed; DroppedStores are blocks that were
	// not offered or were given up.
	Stores        uint64 `msg:"stores" json:"stores"`
	StoredBlocks  uint64 `msg:"stored_blocks" json:"stored_blocks"`
	DroppedStores uint64 `msg:"dropped_stores" json:"dropped_stores"`
	// CopiedBytes went either way, in CopyMicros microseconds.
	CopiedBytes uint64 `msg:"copied_bytes" json:"copied_bytes"`
	CopyMicros  uint64 `msg:"copy_us" json:"copy_us"`
	// Errors are refused frames and whatever else went wrong.
	Errors uint64 `msg:"errors" json:"errors"`

	// The rest are gauges, which say how things are now, from schedulers.
	// DeviceBlocksTotal is 0 where the engine does not say, and nothing is known of the
	// others then. Of the rank's device pool, DeviceBlocksUsed are held by requests or
	// copies; cached ones that nobody holds are not.
	DeviceBlocksTotal uint64 `msg:"device_blocks_total,omitempty" json:"device_blocks_total,omitempty"`
	DeviceBlocksUsed  uint64 `msg:"device_blocks_used,omitempty" json:"device_blocks_used,omitempty"`
	// RunningRequests took part in the engine's last step, WaitingRequests did not.
	RunningRequests uint64 `msg:"running_requests,omitempty" json:"running_requests,omitempty"`
	WaitingRequests uint64 `msg:"waiting_requests,omitempty" json:"waiting_requests,omitempty"`
}

// Drain says that the agent is about to stop (DRAIN): the engine opens and claims
// nothing new, lets its copies end, settles them and says BYE.
type Drain struct {
	// DeadlineMillis is how long the agent waits for that before it closes the
	// connection.
	DeadlineMillis uint32 `msg:"deadline_ms"`
	Reason         string `msg:"reason"`
}

// Resume names what a client still holds from a session with an earlier agent
// (RESUME), after HELLO: every slot that a copy may be in flight to or from. What
// it does not name is free for others at once.
type Resume struct {
	// Session and AgentNonce are those of the earlier WELCOME.
	Session    uint64 `msg:"session"`
	AgentNonce uint64 `msg:"agent_nonce"`
	// Granted and Pinned are packed slots, together at most MaxResumeSlots, no slot
	// twice in one of them: a slot that several requests had pinned is named once.
	Granted []byte `msg:"granted"`
	Pinned  []byte `msg:"pinned"`
}

// Resumed answers Resume (RESUMED): the slots that the client keeps, under the
// request id ResumedRequest. Whatever it named and does not find here is no
// longer its own.
type Resumed struct {
	Granted []byte `msg:"granted"`
	Pinned  []byte `msg:"pinned"`
}

// ListCached asks a scheduler for the hashes of its device's prefix cache
// (LIST_CACHED). The agent sends it where HELLO said ListsCached, for what it
// cannot learn from the engine's events any more. The answer are CACHED frames.
type ListCached struct {
	// List is the agent's name for the list, not 0 and higher than the one before,
	// which nobody waits for any more.
	List uint64 `msg:"list"`
}

// Cached is a part of a list (CACHED). The list has every hash that was in the
// cache all the time from LIST_CACHED until Final; one that came or went meanwhile
// may or may not be in it.
type Cached struct {
	List uint64 `msg:"list"`
	// Hashes are packed; see AppendEngineHashes. They are the engine's own, as its
	// events have them; a hash may come more than once.
	Hashes []byte `msg:"hashes"`
	// Final ends the list.
	Final bool `msg:"final"`
	// Unavailable says that the engine cannot tell: the list is void and ends here.
	Unavailable bool `msg:"unavailable,omitempty"`
}
