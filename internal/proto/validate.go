package proto

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"unicode"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// Limits of fields that no other limit bounds. An OPEN with every string at
// its limit and MaxTokensPerFrame tokens still fits MaxFrame.
const (
	// MaxNameLen bounds LoRA fingerprints and names, salts and the namespace's
	// strings; MaxTextLen bounds what is only for people; MaxEndpointLen bounds
	// ZMQ endpoints and topics. All in bytes.
	MaxNameLen     = kv.MaxNameBytes
	MaxTextLen     = 1024
	MaxEndpointLen = 256
	// MaxTokens bounds the tokens of one request, and so block indices.
	MaxTokens = 4 << 20
	// MaxResumeSlots bounds the slots of a RESUME, granted and pinned together: as
	// many as fit a frame.
	MaxResumeSlots = 2040
	// MaxWaitMillis bounds how long a LOOKUP may ask the agent to wait.
	MaxWaitMillis = 60_000
	// MaxDrainMillis bounds how long an agent that stops waits for its engines.
	MaxDrainMillis = 3_600_000
	// MaxExtentBytes is the size of the largest extent file.
	MaxExtentBytes = 1 << 30
	// MaxDeviceBlocks bounds the device pool of one worker.
	MaxDeviceBlocks = 1 << 31
	// MaxWorkers bounds the workers of a session.
	MaxWorkers = 1024
	// pageSize is what an extent's data is aligned to.
	pageSize = 4096
)

func checkString(field, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%s: %d bytes, want at most %d", field, len(s), limit)
	}
	return nil
}

func checkUint(field string, v, lo, hi uint64) error {
	if v < lo || v > hi {
		return fmt.Errorf("%s: %d is not in %d..%d", field, v, lo, hi)
	}
	return nil
}

// checkPacked returns an error that names field unless b is a packed list of lo to hi items of size
// bytes each.
func checkPacked(field string, b []byte, size, lo, hi int) error {
	if len(b)%size != 0 {
		return fmt.Errorf("%s: %d bytes is not a multiple of %d", field, len(b), size)
	}
	if n := len(b) / size; n < lo || n > hi {
		return fmt.Errorf("%s: %d items, want %d..%d", field, n, lo, hi)
	}
	return nil
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBlocks checks a run of blocks of a request.
func checkBlocks(first, count uint32, limit uint64) error {
	return firstError(
		checkUint("first", uint64(first), 0, MaxTokens-1),
		checkUint("count", uint64(count), 1, limit),
	)
}

// Validate implements Message. It returns the first field out of range. A worker may leave the
// namespace empty, because its session has one.
func (m *Hello) Validate() error {
	if m.Role != string(RoleScheduler) && m.Role != string(RoleWorker) {
		return fmt.Errorf("role: %.64q is neither %q nor %q", m.Role, RoleScheduler, RoleWorker)
	}
	worker := m.Role == string(RoleWorker)
	if !worker && m.Session != 0 {
		return fmt.Errorf("session: %d, want 0 from a scheduler", m.Session)
	}
	if m.WorkerID == 0 {
		return fmt.Errorf("worker_id: 0 is not a worker, want 1 or more")
	}
	ns := &m.Namespace
	if worker && ns.IsZero() {
		return m.validateTexts()
	}
	for _, s := range []struct{ name, v string }{
		{"model", ns.Model}, {"weights", ns.Weights}, {"dtype", ns.DType}, {"layout", ns.Layout}, {"kv_format", ns.KVFormat},
	} {
		if err := checkString("namespace "+s.name, s.v, MaxNameLen); err != nil {
			return err
		}
	}
	if strings.ContainsFunc(ns.Model, unicode.IsControl) {
		return fmt.Errorf("namespace model: %.64q has control characters", ns.Model)
	}
	return firstError(m.validateTexts(), ns.Validate())
}

// validateTexts checks the texts of a HELLO except those of its namespace.
func (m *Hello) validateTexts() error {
	return firstError(
		checkString("engine", m.Engine, MaxTextLen),
		checkEndpoint("events_endpoint", m.EventsEndpoint),
		checkEndpoint("replay_endpoint", m.ReplayEndpoint),
		checkString("events_topic", m.EventsTopic, MaxEndpointLen),
		checkBind("consolidated_endpoint", m.ConsolidatedEndpoint),
		checkMode("consolidator_mode", m.ConsolidatorMode),
		checkString("serving_endpoint", m.ServingEndpoint, MaxEndpointLen),
		checkString("connector", m.Connector, MaxTextLen),
	)
}

// checkEndpoint checks where another process has bound a ZMQ socket: tcp://HOST:PORT,
// the host * standing for this machine, or ipc://PATH. Empty is none.
func checkEndpoint(field, s string) error {
	if err := checkString(field, s, MaxEndpointLen); err != nil {
		return err
	}
	path, ipc := strings.CutPrefix(s, "ipc://")
	if s == "" || isTCP(s) || ipc && path != "" {
		return nil
	}
	return fmt.Errorf("%s: %.300q is neither tcp://HOST:PORT with a port of 1..65535 nor ipc://PATH", field, s)
}

// checkBind checks an endpoint that a ZMQ socket can be bound to: tcp://HOST:PORT.
// Empty is none.
func checkBind(field, s string) error {
	if err := checkString(field, s, MaxEndpointLen); err != nil {
		return err
	}
	if s == "" || isTCP(s) {
		return nil
	}
	return fmt.Errorf("%s: %.300q is no tcp://HOST:PORT with a port of 1..65535", field, s)
}

// isTCP reports whether s is tcp://HOST:PORT.
func isTCP(s string) bool {
	rest, tcp := strings.CutPrefix(s, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return tcp && err == nil && portErr == nil && n != 0 && host != ""
}

func checkMode(field, s string) error {
	switch s {
	case "", ConsolidatorTiered, ConsolidatorDedup, ConsolidatorPassthrough:
		return nil
	}
	return fmt.Errorf("%s: %.64q is none of %q, %q, %q", field, s, ConsolidatorTiered, ConsolidatorDedup, ConsolidatorPassthrough)
}

// Validate implements Message. It returns the first field out of range.
func (m *Welcome) Validate() error {
	if n := len(m.NamespaceID); n != len(kv.NamespaceID{}) {
		return fmt.Errorf("namespace_id: %d bytes, want %d", n, len(kv.NamespaceID{}))
	}
	return firstError(
		checkUint("block_bytes", m.BlockBytes, 1, kv.MaxBlockBytes),
		checkUint("slot_bytes", m.SlotBytes, m.BlockBytes, MaxExtentBytes),
		checkString("warning", m.Warning, MaxTextLen),
	)
}

// Validate implements Message.
func (m *Register) Validate() error {
	return firstError(
		checkUint("device_blocks", uint64(m.DeviceBlocks), 1, MaxDeviceBlocks),
		checkUint("block_bytes", m.BlockBytes, 1, kv.MaxBlockBytes),
		checkUint("offset", m.Offset, 0, kv.MaxBlockBytes-m.BlockBytes),
	)
}

// Validate implements Message. An extent's file has a generation word of 8 bytes for each slot,
// and from DataOffset on the slots. Both must fit the file.
func (m *ExtentReady) Validate() error {
	if err := firstError(
		checkUint("slots", uint64(m.Slots), 1, MaxExtentBytes/pageSize),
		checkUint("slot_bytes", m.SlotBytes, 1, MaxExtentBytes),
		checkUint("file_bytes", m.FileBytes, 1, MaxExtentBytes),
		checkUint("data_offset", m.DataOffset, 8*uint64(m.Slots), m.FileBytes),
	); err != nil {
		return err
	}
	if m.DataOffset%pageSize != 0 {
		return fmt.Errorf("data_offset: %d is not a multiple of %d", m.DataOffset, pageSize)
	}
	if need := m.DataOffset + uint64(m.Slots)*m.SlotBytes; need > m.FileBytes {
		return fmt.Errorf("file_bytes: %d, but %d slots of %d bytes from %d on need %d", m.FileBytes, m.Slots, m.SlotBytes, m.DataOffset, need)
	}
	return nil
}

// Validate implements Message.
func (m *Error) Validate() error {
	return firstError(checkString("code", m.Code, MaxNameLen), checkString("text", m.Text, 4*MaxTextLen))
}

// Validate implements Message. It returns the first field out of range.
func (m *Open) Validate() error {
	return firstError(
		checkString("lora", m.LoRA, MaxNameLen),
		checkString("lora_name", m.LoRAName, MaxNameLen),
		checkString("salt", m.Salt, MaxNameLen),
		checkPacked("tokens", m.Tokens, packedTokenSize, 0, MaxTokensPerFrame),
	)
}

// Validate implements Message.
func (m *Append) Validate() error {
	return firstError(
		checkUint("offset", uint64(m.Offset), 0, MaxTokens),
		checkPacked("tokens", m.Tokens, packedTokenSize, 1, MaxTokensPerFrame),
	)
}

// checkGroup checks the number of a KV group. How many there are the session's namespace says.
func checkGroup(group uint32) error {
	return checkUint("group", uint64(group), 0, kvgroup.MaxGroups-1)
}

// Validate implements Message.
func (m *Range) Validate() error {
	return firstError(checkBlocks(m.First, m.Count, MaxTokens), checkGroup(m.Group))
}

// Validate implements Message.
func (m *Lookup) Validate() error {
	return firstError(
		checkBlocks(m.First, m.Count, MaxBlocksPerFrame),
		checkUint("wait_ms", uint64(m.WaitMillis), 0, MaxWaitMillis),
		checkGroup(m.Group),
	)
}

// Validate implements Message. Each ready block needs one source tier and one slot.
func (m *LookupHit) Validate() error {
	if err := firstError(
		checkUint("first", uint64(m.First), 0, MaxTokens-1),
		checkUint("ready", uint64(m.Ready), 0, MaxBlocksPerFrame),
		checkUint("coming", uint64(m.Coming), 0, MaxBlocksPerFrame),
		checkGroup(m.Group),
	); err != nil {
		return err
	}
	if len(m.Sources) != int(m.Ready) {
		return fmt.Errorf("sources: %d bytes, want one for each of the %d ready blocks", len(m.Sources), m.Ready)
	}
	if err := checkPacked("slots", m.Slots, packedSlotSize, int(m.Ready), int(m.Ready)); err != nil {
		return err
	}
	for _, s := range m.Sources {
		if err := checkUint("sources", uint64(s), uint64(kv.TierHost), uint64(kv.TierDisk)); err != nil {
			return err
		}
	}
	return nil
}

// Validate implements Message.
func (m *Claim) Validate() error {
	if err := firstError(checkBlocks(m.First, m.Count, MaxBlocksPerFrame), checkGroup(m.Group)); err != nil {
		return err
	}
	return checkPacked("blocks", m.Blocks, packedTokenSize, int(m.Count), int(m.Count))
}

// Validate implements Message.
func (m *Claimed) Validate() error { return checkUint("workers", uint64(m.Workers), 1, MaxWorkers) }

// Validate implements Message.
func (m *Load) Validate() error {
	if err := checkPacked("slots", m.Slots, packedSlotSize, 1, MaxBlocksPerFrame); err != nil {
		return err
	}
	n := len(m.Slots) / packedSlotSize
	return firstError(checkPacked("blocks", m.Blocks, packedTokenSize, n, n), checkGroup(m.Group))
}

// Validate implements Message.
func (m *Store) Validate() error {
	return firstError(checkBlocks(m.First, m.Count, MaxBlocksPerFrame), checkGroup(m.Group))
}

// Validate implements Message.
func (m *Grant) Validate() error {
	return firstError(
		checkPacked("grants", m.Grants, packedGrantSize, 0, MaxBlocksPerFrame),
		checkUint("present", uint64(m.Present), 0, MaxBlocksPerFrame),
		checkUint("refused", uint64(m.Refused), 0, MaxBlocksPerFrame),
		checkGroup(m.Group),
	)
}

// Validate implements Message.
func (m *SlotList) Validate() error {
	return checkPacked("slots", m.Slots, packedSlotSize, 1, MaxBlocksPerFrame)
}

// Validate implements Message: any request and generation can be named.
func (m *Close) Validate() error { return nil }

// Validate implements Message.
func (m *Bye) Validate() error { return checkString("reason", m.Reason, MaxTextLen) }

// Validate implements Message.
func (m *Resume) Validate() error { return checkHeld(m.Granted, m.Pinned) }

// Validate implements Message.
func (m *Resumed) Validate() error { return checkHeld(m.Granted, m.Pinned) }

// Validate implements Message.
func (m *Evicted) Validate() error {
	return firstError(
		checkUint("tier", uint64(m.Tier), uint64(kv.TierHost), uint64(kv.TierDisk)),
		checkPacked("hashes", m.Hashes, packedHashSize, 1, MaxHashesPerFrame),
	)
}

// Validate implements Message: there is nothing in it.
func (m *Reset) Validate() error { return nil }

// Validate implements Message: any number may have been counted.
func (m *Stats) Validate() error {
	return checkUint("device_blocks_used", m.DeviceBlocksUsed, 0, m.DeviceBlocksTotal)
}

// Validate implements Message.
func (m *ListCached) Validate() error { return checkUint("list", m.List, 1, math.MaxUint64) }

// Validate implements Message. An unavailable list is final and empty.
func (m *Cached) Validate() error {
	if m.Unavailable && (!m.Final || len(m.Hashes) > 0) {
		return fmt.Errorf("unavailable: true with final %v and %d bytes of hashes, want final and none", m.Final, len(m.Hashes))
	}
	return firstError(
		checkUint("list", m.List, 1, math.MaxUint64),
		checkPacked("hashes", m.Hashes, packedHashSize, 0, MaxListedPerFrame),
	)
}

// Validate implements Message.
func (m *Drain) Validate() error {
	return firstError(
		checkUint("deadline_ms", uint64(m.DeadlineMillis), 0, MaxDrainMillis),
		checkString("reason", m.Reason, MaxTextLen),
	)
}

// checkHeld checks the packed slots of a RESUME or RESUMED: at most MaxResumeSlots of both kinds
// together, so that the frame stays within its limit.
func checkHeld(granted, pinned []byte) error {
	if err := firstError(
		checkPacked("granted", granted, packedSlotSize, 0, MaxResumeSlots),
		checkPacked("pinned", pinned, packedSlotSize, 0, MaxResumeSlots),
	); err != nil {
		return err
	}
	if n := (len(granted) + len(pinned)) / packedSlotSize; n > MaxResumeSlots {
		return fmt.Errorf("granted and pinned: %d items, want at most %d together", n, MaxResumeSlots)
	}
	return nil
}
