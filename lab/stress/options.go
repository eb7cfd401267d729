package stress

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 30 * time.Second
	// DefaultOps is Options.Ops when it is zero.
	DefaultOps = 1000
	// DefaultHostDir is Options.HostDir when it is empty and the directory exists.
	DefaultHostDir = "/dev/shm"

	maxDuration = 24 * time.Hour
	maxOps      = 1 << 20
)

// Options of a run. The zero value of a field is its default.
type Options struct {
	// Duration is the time in which streams are started, default DefaultDuration. Each
	// configuration gets at least one whole stream.
	Duration time.Duration
	// Seed draws the first stream, and following numbers the next ones; 0 is a random
	// seed.
	Seed uint64
	// Config names the one configuration to run; empty for all. A run of one
	// configuration has no negative control.
	Config string
	// Ops is the number of operations in a stream, default DefaultOps.
	Ops int
	// Encrypt encrypts the disk tiers of all configurations. Without it only "encrypted" has an encrypted
	// tier.
	Encrypt bool
	// Parallel is the number of streams that run at a time, default 4.
	Parallel int
	// Dir is the directory for disk tiers, default the temporary directory.
	Dir string
	// HostDir is the directory for host tiers, default DefaultHostDir, or Dir where
	// that does not exist.
	HostDir string
	// Out gets the report; it must be set.
	Out io.Writer
	// Live shows progress on Out, on one line that is overwritten.
	Live bool
	// Log gets the managers' warnings; nil drops them.
	Log *zap.Logger
}

// Validate checks every field. The error names the first bad one.
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

// withDefaults returns o with the defaults in place of zero values. A seed of 0 becomes a random
// one.
func (o Options) withDefaults() Options {
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	for o.Seed == 0 {
		o.Seed = kv.RandomID()
	}
	o.Ops = cmp.Or(o.Ops, DefaultOps)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	if o.HostDir == "" {
		o.HostDir = DefaultHostDir
		if st, err := os.Stat(o.HostDir); err != nil || !st.IsDir() {
			o.HostDir = o.Dir
		}
	}
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// chosen returns the configurations to run.
func (o *Options) chosen() []variant {
	chosen := slices.DeleteFunc(variants(), func(v variant) bool { return o.Config != "" && v.name != o.Config })
	for i := range chosen {
		chosen[i].encrypt = chosen[i].hasDisk() && (chosen[i].encrypt || o.Encrypt)
	}
	return chosen
}

// variant is one configuration. Sizes are in pages; a block of the first namespace
// takes one page.
type variant struct {
	name       string
	namespaces int
	// groups: the namespaces have KV groups.
	groups     bool
	host, disk uint64
	extent     uint64
	// hostBlocks and diskBlocks set blockmgr.Config's fields instead of host and disk.
	hostBlocks, diskBlocks uint64
	transfers, batch       int
	filter                 bool
	// discard sets blockmgr.Config.DiscardHost.
	discard bool
	weights map[string]uint64
	direct  bool
	// scrub removes the scrubber's rate limit.
	scrub bool
	// spoil flips bits in files while no agent runs.
	spoil bool
	// encrypt sets blockmgr.Config.DiskKey.
	encrypt bool
	rates   storagetest.FaultRates
	// deadline sets blockmgr.Config.IODeadline. Stalled operations go on after
	// stallTime, which is longer.
	deadline time.Duration
}

// stallTime is the longest wait of a stalled operation.
const stallTime = 350 * time.Millisecond

// variants returns all configurations: tiers from roomy to tiny, each way to use the
// disk, each kind of fault. Sizes of tiers and extents are in pages, which is a small slot.
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
		{name: "encrypted", namespaces: 2, host: 12, disk: 64, extent: 8, spoil: true, scrub: true, encrypt: true, rates: faultRates(0)},
		{name: "groups", namespaces: 2, host: 20, disk: 64, extent: 5, scrub: true, spoil: true, groups: true},
		{name: "groups-host", namespaces: 1, host: 16, extent: 8, groups: true},
		{name: "stalls", namespaces: 2, host: 10, disk: 48, extent: 8, spoil: true, rates: faultRates(0.01), deadline: 150 * time.Millisecond},
	}
}

// faultRates returns the probability of each fault for each disk operation. stall is that of
// operations that do not end for a while.
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

// faulty reports whether the disk of the variant has faults.
func (v *variant) faulty() bool { return len(v.rates) > 0 }

// hasDisk reports whether the variant has a disk tier.
func (v *variant) hasDisk() bool { return v.disk+v.diskBlocks > 0 }

// engines returns the number n of engines, and held, the most slots that each of them holds
// granted or pinned between operations. Together they leave a part of the host tier evictable, so
// that grants find room.
func (v *variant) engines() (n, held int) {
	slots := int(v.host)
	if v.hostBlocks > 0 {
		slots = int(v.hostBlocks) * v.namespaces
	}
	slots = cmp.Or(slots, stagingSlots)
	n = max(min(slots/4, maxClients)/v.namespaces, 1) * v.namespaces
	return n, max(slots/(3*n), 1)
}

// stagingSlots is the approximate size of a host tier that blocks only pass through.
const stagingSlots = 64

// canWrong reports whether faults of the variant change bytes, so that checksums
// matter.
func (v *variant) canWrong() bool { return v.faulty() || v.spoil }

// testKey returns the key of encrypted disk tiers.
func testKey() *sealed.Key {
	key, err := sealed.ParseKey(bytes.Repeat([]byte{1}, sealed.KeyBytes), "the stress run")
	if err != nil {
		panic(fmt.Sprintf("BUG: the constant key: %v", err))
	}
	return key
}

// config returns the block manager's configuration under this variant, without the parts that
// differ for each agent: sink, filter and disk. The scrubber is off
// unless the variant has it.
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
	if v.encrypt {
		cfg.DiskKey = testKey()
	}
	return cfg
}

// newFilter returns the offload filter of one life, nil for none.
func (v *variant) newFilter() (blockmgr.OffloadFilter, error) {
	if !v.filter {
		return nil, nil
	}
	return policy.NewFrequencyFilter(policy.FrequencyOptions{})
}

// variantNames lists the values of Options.Config.
func variantNames() string {
	var names []string
	for _, v := range variants() {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}

// judge returns an error for wrong bytes, and for a run that saw too little to prove anything. In
// the negative control each flipped bit must be seen. A run of one configuration, which repeats a
// failure, has no control and proves what it proves.
func (o *Options) judge(res *Result) error {
	switch {
	case res.WrongBytes > 0:
		return fmt.Errorf("seed %d: %d wrong bytes", res.Seed, res.WrongBytes)
	case o.Config != "":
		return nil
	case res.Control.Flipped == 0 || res.Control.Seen != res.Control.Flipped:
		return fmt.Errorf("seed %d: %d wrong bytes seen, %d bits flipped: the run is blind", res.Seed, res.Control.Seen, res.Control.Flipped)
	case res.Verified <= res.Ops/10:
		return fmt.Errorf("seed %d: %d blocks verified in %d operations, want more than a tenth", res.Seed, res.Verified, res.Ops)
	case res.Torn == 0:
		return fmt.Errorf("seed %d: no torn, dropped or flipped block was refused", res.Seed)
	}
	return nil
}
