package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// namespacePrefix begins every name that belongs to KVBM. A variable with it
// that the table lacks is most likely a misspelling.
const namespacePrefix = "DYN_KVBM_"

// Env is what the environment variables say. FromEnviron fills in the defaults;
// the zero value is not one.
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

// DiskFiles says how the files of the disk tier are made.
type DiskFiles struct {
	// Dir is their directory; empty means the system's temporary directory.
	Dir string
	// OpenDirect passes O_DIRECT when a file is opened, which some file systems
	// want, rather than setting it afterwards.
	OpenDirect bool
	// DisableDirectIO goes through the page cache.
	DisableDirectIO bool
	// ZeroFill writes zeros where the file system cannot allocate space otherwise.
	ZeroFill bool
}

// Offload says which blocks move down.
type Offload struct {
	// DisableDiskFilter writes every block to disk, without the frequency filter.
	DisableDiskFilter bool
	// MinPriority ends the offload of a request at its first block of a lower
	// retention priority.
	MinPriority uint32
}

// Transfer bounds the copies in flight.
type Transfer struct {
	// MaxConcurrent is the number of batches at a time, MaxBatch that of blocks in
	// a batch.
	MaxConcurrent, MaxBatch int
}

// Memory says how host memory is allocated.
type Memory struct {
	// DisableWriteCombined does without write-combined memory, DisableNUMA without
	// placing memory on the GPU's node.
	DisableWriteCombined, DisableNUMA bool
}

// Leader is how leader and workers of an engine meet.
type Leader struct {
	// InitTimeout is how long the leader waits for all workers.
	InitTimeout time.Duration
	// ZMQHost is what the leader binds and the workers connect to.
	ZMQHost string
	// PubPort and AckPort are the leader's ports.
	PubPort, AckPort uint16
}

// CacheStats says what is measured and shown.
type CacheStats struct {
	// Metrics serves metrics on MetricsPort; port 0 is any free one.
	Metrics     bool
	MetricsPort uint16
	// MaxRequests is the number of requests that hit rates are computed over.
	MaxRequests int
	// LogInterval is how often they are logged when they change; 0 is each time.
	LogInterval time.Duration
	// Record writes what the engine asks of the connector to a file.
	Record bool
}

// Events says what the consolidator does.
type Events struct {
	// Consolidate merges the engine's events with the block manager's, as Mode
	// says.
	Consolidate bool
	Mode        ConsolidatorMode
	// TRTLLMPort is where TensorRT-LLM's events are published; 0 when not set.
	TRTLLMPort uint16
}

// NCCL says how replicated (MLA) blocks reach the ranks.
type NCCL struct {
	// MLAMode loads a block on one rank and broadcasts it.
	MLAMode bool
	// MaxCTAs bounds the GPU's blocks of threads that a broadcast takes.
	MaxCTAs int32
}

// Process is what belongs to the process around the block manager.
type Process struct {
	// AttachRuntime uses the Dynamo runtime of the process.
	AttachRuntime bool
	// FatbinPath is the file of the copy kernels; empty means the built-in ones.
	FatbinPath string
	// OTELExport exports logs by OTLP.
	OTELExport bool
}

// ShouldBypassCPUCache reports whether blocks go from the device straight to
// disk: there is to be a disk tier and no host tier.
func (e *Env) ShouldBypassCPUCache() bool { return e.Disk.Configured() && !e.Host.Configured() }

// FromEnviron reads an environment of NAME=value strings, such as os.Environ
// returns; of two with one name the first counts. Values are trimmed, and a
// blank one counts as not set, but for the switches whose presence alone turns
// them on. The warnings name, in the table's order, variables that are
// deprecated or have no effect here, then values that are probably not meant,
// then unknown DYN_KVBM_ names in alphabetical order. The error joins all bad
// variables; Env and warnings are then empty.
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
			delete(values, name)
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

// Given lists the variables that are read and have a value in environ, by the
// rules of FromEnviron and in the table's order. It tells a value that somebody
// chose from a default of KVBM's, which need not be the agent's.
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

// index is the environment as a map, with values trimmed.
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

// unknown names what is left of values that should have been in the table.
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

// unlikely names values that are allowed and probably not meant.
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
