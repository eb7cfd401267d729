package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// namespacePrefix begins KVBM's names. Another name with the prefix is probably a misspelling.
const namespacePrefix = "DYN_KVBM_"

// Env holds the values of the environment variables. FromEnviron makes it, with defaults.
type Env struct {
	// Host and Disk are the sizes of the G2 and G3 tiers.
	Host, Disk CacheSize
	DiskFiles  DiskFiles
	Offload    Offload
	Transfer   Transfer
	Memory     Memory
	Leader     Leader
	Stats      CacheStats
	Events     Events
	NCCL       NCCL
	Process    Process
}

// DiskFiles says how to make the files of the disk tier.
type DiskFiles struct {
	// Dir is the directory; empty means the system's temporary directory.
	Dir string
	// OpenDirect passes O_DIRECT to open, as some file systems want, instead of setting the
	// flag afterwards.
	OpenDirect bool
	// DisableDirectIO uses the page cache.
	DisableDirectIO bool
	// ZeroFill writes zeros where the file system cannot allocate space otherwise.
	ZeroFill bool
}

// Offload says which blocks move to a lower tier.
type Offload struct {
	// DisableDiskFilter writes every block to disk, without the frequency filter.
	DisableDiskFilter bool
	// MinPriority ends the offload of a request at its first block of a lower
	// retention priority.
	MinPriority uint32
}

// Transfer bounds the copies in flight.
type Transfer struct {
	// MaxConcurrent is the number of batches at a time, MaxBatch the number of blocks in a
	// batch.
	MaxConcurrent, MaxBatch int
}

// Memory says how host memory is allocated.
type Memory struct {
	// DisableWriteCombined allocates no write-combined memory. DisableNUMA allocates memory on
	// any node, not on the GPU's.
	DisableWriteCombined, DisableNUMA bool
}

// Leader has the addresses at which leader and workers of an engine meet.
type Leader struct {
	// InitTimeout bounds the leader's wait for all workers.
	InitTimeout time.Duration
	// ZMQHost is the host that the leader binds and the workers connect to.
	ZMQHost string
	// PubPort and AckPort are the leader's ports.
	PubPort, AckPort uint16
}

// CacheStats configures metrics, hit rates and recordings.
type CacheStats struct {
	// Metrics serves metrics on MetricsPort; port 0 is any free one.
	Metrics     bool
	MetricsPort uint16
	// MaxRequests is the number of requests that hit rates are computed over.
	MaxRequests int
	// LogInterval is the least time between two log lines of hit rates; 0 logs each change.
	LogInterval time.Duration
	// Record writes the engine's calls of the connector to a file.
	Record bool
}

// Events configures the consolidator.
type Events struct {
	// Consolidate merges the engine's events with the block manager's in the given Mode.
	Consolidate bool
	Mode        ConsolidatorMode
	// TRTLLMPort is the port of TensorRT-LLM's events; 0 when not set.
	TRTLLMPort uint16
}

// NCCL says how replicated (MLA) blocks reach the ranks.
type NCCL struct {
	// MLAMode loads a block on one rank and broadcasts it.
	MLAMode bool
	// MaxCTAs bounds the CTAs (blocks of GPU threads) of a broadcast.
	MaxCTAs int32
}

// Process is about the process around the block manager.
type Process struct {
	// AttachRuntime uses the Dynamo runtime of the process.
	AttachRuntime bool
	// FatbinPath is the file of the copy kernels; empty means the built-in ones.
	FatbinPath string
	// OTELExport exports logs by OTLP.
	OTELExport bool
}

// ShouldBypassCPUCache reports whether blocks go from the device to disk without a host
// tier: the disk tier is on and the host tier is off.
func (e *Env) ShouldBypassCPUCache() bool { return e.Disk.Configured() && !e.Host.Configured() }

// FromEnviron reads an environment of NAME=value strings, such as os.Environ returns. Of two
// strings with one name the first counts. Values are trimmed. A blank value counts as not
// set, but for the switches that are on when they exist.
//
// The warnings name variables that are deprecated or have no effect, in the table's order,
// then values that are probably a mistake, then unknown DYN_KVBM_ names. The error joins all
// bad variables; Env and warnings are then empty.
func FromEnviron(environ []string) (Env, []string, error) {
	var (
		e        Env
		warnings []string
		bad      []error
	)
	values := index(environ)
	for _, v := range Variables() {
		names := v.match(values)
		if v.Status != Read {
			for _, name := range names {
				warnings = append(warnings, fmt.Sprintf("%s is %s: %s", name, v.Status, v.Meaning))
			}
		} else {
			if !v.Used && v.given(values) {
				warnings = append(warnings, fmt.Sprintf("%s has no effect in the agent: %s", v.Name, v.Effect))
			}
			bad = append(bad, v.read(&e, values))
		}
		for _, name := range names {
			delete(values, name) // the rest is unknown
		}
	}
	if err := errors.Join(bad...); err != nil {
		return Env{}, nil, err
	}
	if err := e.Validate(); err != nil {
		return Env{}, nil, err
	}
	return e, append(append(warnings, e.unlikely()...), unknown(values)...), nil
}

// Given lists the variables that have a value in environ, in the table's order. It tells a
// chosen value from KVBM's default, which may differ from the agent's.
func Given(environ []string) []string {
	var given []string
	values := index(environ)
	for _, v := range Variables() {
		if v.Status == Read && v.given(values) {
			given = append(given, v.Name)
		}
	}
	return given
}

// index returns the environment as a map from names to trimmed values. Of two strings with one name
// the first counts.
func index(environ []string) map[string]string {
	values := make(map[string]string, len(environ))
	for _, pair := range environ {
		name, value, ok := strings.Cut(pair, "=")
		if _, seen := values[name]; ok && !seen {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}

// unknown returns a warning for each name in values that has KVBM's prefix. values are the variables
// that the table does not have.
func unknown(values map[string]string) []string {
	var found []string
	for name := range values {
		if strings.HasPrefix(name, namespacePrefix) {
			found = append(found, name+" is unknown and has no effect")
		}
	}
	slices.Sort(found)
	return found
}

// unlikely returns a warning for each value that is allowed and probably a mistake.
func (e *Env) unlikely() []string {
	var w []string
	if p := e.Stats.MetricsPort; e.Stats.Metrics && p > 0 && p < 1024 {
		w = append(w, fmt.Sprintf("%s %d: ports below 1024 need privileges", metricsPort, p))
	}
	if e.Offload.MinPriority > 0 {
		w = append(w, fmt.Sprintf("%s %d: an engine that reports no priorities, such as vLLM, offloads nothing", minPriority, e.Offload.MinPriority))
	}
	return w
}

const (
	// bytesPerGB is KVBM's GB, a decimal gigabyte.
	bytesPerGB = 1e9
	// maxBlocks is the largest number of blocks of a tier, which is that of a layout.
	maxBlocks = math.MaxUint32
	// maxGB keeps a size below 2^63 bytes.
	maxGB = 1e9
)

// CacheSize is the size of a tier, summed over all ranks of an engine.
type CacheSize struct {
	// Bytes is the size. The tier uses whole blocks of it.
	Bytes uint64
	// OverrideBlocks is the exact number of blocks and wins over Bytes; 0 for none.
	OverrideBlocks uint64
}

// Configured reports whether the tier is on.
func (s CacheSize) Configured() bool { return s.Bytes > 0 || s.OverrideBlocks > 0 }

// Blocks returns the number of blocks of the tier. One block takes blockBytes on all ranks
// together; see Model.BlockBytes. A size above 0 without room for one block is an error, so
// that the result is 0 only for a tier that is off.
func (s CacheSize) Blocks(blockBytes uint64) (uint64, error) {
	if blockBytes == 0 {
		return 0, fmt.Errorf("block size %d: want at least 1 byte", blockBytes)
	}
	n := s.OverrideBlocks
	if n == 0 {
		n = s.Bytes / blockBytes
	}
	if n == 0 && s.Configured() {
		return 0, fmt.Errorf("cache size %d bytes: want 0 or at least one block of %d bytes", s.Bytes, blockBytes)
	}
	if n > maxBlocks {
		return 0, fmt.Errorf("cache size of %d blocks: want at most %d", n, uint64(maxBlocks))
	}
	return n, nil
}

// Blocks returns the numbers of blocks of the host and the disk tier, 0 for a tier that is off. One
// block takes blockBytes on all ranks together. The error names the variable with a bad size.
func (e *Env) Blocks(blockBytes uint64) (host, disk uint64, err error) {
	if host, err = e.Host.Blocks(blockBytes); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", hostGB, err)
	}
	if disk, err = e.Disk.Blocks(blockBytes); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", diskGB, err)
	}
	return host, disk, nil
}

// CheckTiers returns an error when both tiers are off: KVBM does not start then. It is for
// configurations that come from the environment alone.
func (e *Env) CheckTiers() error {
	if e.Host.Configured() || e.Disk.Configured() {
		return nil
	}
	return fmt.Errorf("%s 0 and %s 0: want more than 0 for the host tier, the disk tier or both, in GB or in blocks (%s, %s)",
		hostGB, diskGB, hostBlocks, diskBlocks)
}
