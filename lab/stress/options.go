package stress

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"go.uber.org/zap"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 30 * time.Second
	// DefaultOps is Options.Ops when it is zero.
	DefaultOps = 1000
	// DefaultHostDir is Options.HostDir when it is empty and there is such a
	// directory.
	DefaultHostDir = "/dev/shm"

	maxDuration = 24 * time.Hour
	maxOps      = 1 << 20
)

// Options say what to run and where. The zero value of a field is the default
// that it names.
type Options struct {
	// Duration is how long streams are started for, default DefaultDuration. Each
	// configuration gets one whole stream in any case.
	Duration time.Duration
	// Seed makes the first stream, and its successors the next ones; 0 is a random
	// one.
	Seed uint64
	// Config names the one configuration to run; empty for all. A run of one does
	// without the negative control, and need not see everything.
	Config string
	// Ops is the number of operations in a stream, default DefaultOps.
	Ops int
	// Parallel is how many streams run at the same time, default 4.
	Parallel int
	// Dir is where the disk tiers go, default the temporary directory.
	Dir string
	// HostDir is where the host tiers go, default DefaultHostDir, or Dir where there
	// is no such directory.
	HostDir string
	// Out is where the report goes; it must be set.
	Out io.Writer
	// Live shows progress on Out, on one line that is written again and again.
	Live bool
	// Log is where the managers' warnings go; nil for nowhere.
	Log *zap.Logger
}

// Validate checks every field's range; the error names the first bad one.
func (o *Options) Validate() error {
	if o.Duration < 0 || o.Duration > maxDuration {
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", o.Duration, DefaultDuration, maxDuration)
	}
	if o.Ops < 0 || o.Ops > maxOps {
		return fmt.Errorf("operations %d: want 0 (default %d) to %d", o.Ops, DefaultOps, maxOps)
	}
	if o.Parallel < 0 {
		return fmt.Errorf("parallel streams %d: want 0 (default 4) or more", o.Parallel)
	}
	if o.Config != "" && !slices.ContainsFunc(variants(), func(v variant) bool { return v.name == o.Config }) {
		return fmt.Errorf("configuration %q: want one of %s", o.Config, variantNames())
	}
	if o.Out == nil {
		return fmt.Errorf("output: must be set")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	for o.Seed == 0 {
		o.Seed = kv.RandomID()
	}
	if o.Ops == 0 {
		o.Ops = DefaultOps
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.HostDir == "" {
		o.HostDir = DefaultHostDir
		if st, err := os.Stat(o.HostDir); err != nil || !st.IsDir() {
			o.HostDir = o.Dir
		}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// chosen returns the configurations to run.
func (o *Options) chosen() []variant {
	return slices.DeleteFunc(variants(), func(v variant) bool { return o.Config != "" && v.name != o.Config })
}

// variant is one configuration that every stream is run under. Sizes are in
// pages, which is what a block of the first namespace takes.
type variant struct {
	name       string
	namespaces int
	host, disk uint64
	extent     uint64
	// hostBlocks and diskBlocks are blockmgr.Config's, instead of host and disk.
	hostBlocks, diskBlocks uint64
	transfers, batch       int
	filter                 bool
	// discard is blockmgr.Config.DiscardHost.
	discard bool
	weights map[string]uint64
	direct  bool
	// scrub lets the scrubber run as fast as it can.
	scrub bool
	// spoil flips bits in files while no agent runs.
	spoil bool
	rates storagetest.FaultRates
	// deadline is blockmgr.Config.IODeadline. Stalled operations go on after
	// stallTime, which is longer.
	deadline time.Duration
}

// stallTime is how long a stalled operation waits at most.
const stallTime = 350 * time.Millisecond

// variants returns all configurations. Tiers from roomy to so small that everything is
// evicted at once; each way to use the disk; each kind of fault.
func variants() []variant {
	return []variant{
		{name: "host", namespaces: 1, host: 24, extent: 8},
		{name: "host-tiny", namespaces: 2, host: 9, extent: 3, spoil: true},
		{name: "host-disk", namespaces: 1, host: 20, disk: 64, extent: 4},
		{name: "tiny", namespaces: 1, host: 6, disk: 12, extent: 4, transfers: 2, spoil: true, scrub: true},
		{name: "bypass", namespaces: 1, disk: 40, extent: 8, spoil: true},
		{name: "quota", namespaces: 3, host: 36, disk: 72, extent: 6, weights: map[string]uint64{"model-0": 3}, scrub: true},
		{name: "filter", namespaces: 2, host: 12, disk: 48, extent: 4, filter: true, spoil: true},
		{name: "blocks", namespaces: 2, hostBlocks: 10, diskBlocks: 30, extent: 4, transfers: 3, batch: 4, discard: true, spoil: true},
		{name: "serial", namespaces: 1, host: 8, disk: 64, extent: 64, transfers: 1, batch: 1, spoil: true},
		{name: "direct", namespaces: 2, host: 12, disk: 64, extent: 32, transfers: 8, direct: true, spoil: true},
		{name: "faults", namespaces: 2, host: 12, disk: 64, extent: 8, spoil: true, scrub: true, rates: faultRates(0)},
		{name: "faults-tiny", namespaces: 1, host: 4, disk: 10, extent: 2, transfers: 8, batch: 2, rates: faultRates(0)},
		{name: "faults-bypass", namespaces: 1, disk: 32, extent: 8, spoil: true, rates: faultRates(0)},
		{name: "stalls", namespaces: 2, host: 10, disk: 48, extent: 8, spoil: true, rates: faultRates(0.01), deadline: 150 * time.Millisecond},
	}
}

// faultRates returns all faults at once, with the given rate of stalls.
func faultRates(stall float64) storagetest.FaultRates {
	return storagetest.FaultRates{
		storagetest.OpRead: {
			storagetest.FaultEIO: 0.01, storagetest.FaultShort: 0.01, storagetest.FaultTorn: 0.02, storagetest.FaultFlip: 0.02, storagetest.FaultStall: stall,
		},
		storagetest.OpWrite: {
			storagetest.FaultEIO: 0.01, storagetest.FaultENOSPC: 0.02, storagetest.FaultShort: 0.01, storagetest.FaultTorn: 0.03,
			storagetest.FaultFlip: 0.03, storagetest.FaultLost: 0.03, storagetest.FaultStall: stall,
		},
		storagetest.OpAllocate: {storagetest.FaultEIO: 0.03, storagetest.FaultENOSPC: 0.05},
		storagetest.OpSync:     {storagetest.FaultEIO: 0.02, storagetest.FaultLost: 0.2},
	}
}

// faulty reports whether the disk of the variant fails on its own.
func (v *variant) faulty() bool { return len(v.rates) > 0 }

// hasDisk reports whether the variant has a disk tier.
func (v *variant) hasDisk() bool { return v.disk+v.diskBlocks > 0 }

// engines returns how many engines there are, and held how many slots each of them has
// been granted at most, and has pinned between operations: all of them together
// leave some of the host tier to be evicted.
func (v *variant) engines() (n, held int) {
	slots := int(v.host)
	if v.hostBlocks > 0 {
		slots = int(v.hostBlocks) * v.namespaces
	}
	if slots == 0 {
		slots = stagingSlots
	}
	n = max(min(slots/4, maxClients)/v.namespaces, 1) * v.namespaces
	return n, max(slots/(3*n), 1)
}

// stagingSlots is about what the host tier is that blocks only pass through.
const stagingSlots = 64

// canWrong reports whether something under the variant depends on checksums: bytes
// that a fault changed.
func (v *variant) canWrong() bool { return v.faulty() || v.spoil }

// config returns the manager's configuration, but for what belongs to one life.
func (v *variant) config(hostDir, diskDir string) blockmgr.Config {
	cfg := blockmgr.Config{
		HostDir: filepath.Join(hostDir, v.name), DiskDir: filepath.Join(diskDir, v.name),
		HostBytes: v.host * storage.PageSize, DiskBytes: v.disk * storage.PageSize, ExtentBytes: v.extent * storage.PageSize,
		HostBlocks: v.hostBlocks, DiskBlocks: v.diskBlocks, Transfers: v.transfers, TransferBatch: v.batch,
		Weights: v.weights, DiscardHost: v.discard, IODeadline: v.deadline, ScrubBytesPerSecond: -1, DirectIO: extent.DirectIOOff,
	}
	if v.scrub {
		cfg.ScrubBytesPerSecond = math.MaxInt32
	}
	if v.direct {
		cfg.DirectIO = extent.DirectIOAuto
	}
	return cfg
}

// newFilter returns the variant's offload filter, nil for none. A life of the agent
// has its own.
func (v *variant) newFilter() (blockmgr.OffloadFilter, error) {
	if !v.filter {
		return nil, nil
	}
	return policy.NewFrequencyFilter(policy.FrequencyOptions{})
}

// variantNames lists what Options.Config may be.
func variantNames() string {
	var names []string
	for _, v := range variants() {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}
