package blockmgr

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// DirectIOMode says whether disk extents bypass the page cache.
type DirectIOMode = extent.DirectIOMode

const (
	// DirectIOAuto uses O_DIRECT where a probe shows that it works.
	DirectIOAuto = extent.DirectIOAuto
	// DirectIOOff never uses O_DIRECT.
	DirectIOOff = extent.DirectIOOff
	// DirectIORequire fails where O_DIRECT does not work.
	DirectIORequire = extent.DirectIORequire
)

const (
	// MaxExtentBytes is the largest Config.ExtentBytes.
	MaxExtentBytes = storage.MaxExtentBytes
	// minExtentBytes holds one slot.
	minExtentBytes = storage.PageSize
	// DefaultMaxPinsPerSession is Config.MaxPinsPerSession when it is zero.
	DefaultMaxPinsPerSession = 65536
	// MaxExtents bounds the extents of a tier: each is an open file. One namespace has at
	// most registry.MaxExtents, one less.
	MaxExtents = 1 << 14
	// MaxBlocks bounds Config.HostBlocks and DiskBlocks. It is the number of slots that a
	// registry.Ref can name.
	MaxBlocks = registry.MaxExtents * registry.MaxExtentSlots
	// fewExtents is the most extents of a namespace that is bounded in blocks, as long as
	// its extents can be made larger instead.
	fewExtents = 4096
	// defaultTransferBatch is the default of Config.TransferBatch.
	defaultTransferBatch = 64
	// maxTransfers bounds Config.Transfers and TransferBatch.
	maxTransfers = 1024
	// defaultIODeadline and defaultScrubRate are the defaults of
	// Config.IODeadline and ScrubBytesPerSecond.
	defaultIODeadline = 5 * time.Second
	defaultScrubRate  = 16 << 20
	// stagingSlots is the least number of slots of a staging extent; see Config.HostBytes.
	stagingSlots = 64
)

// Config sets the directories and the sizes of the tiers. With the zero value the manager is
// off: lookups find nothing and grants are refused. Fields that JSON leaves out are hooks of
// the program that opens the manager.
type Config struct {
	// HostDir is the directory of the host extents, best on tmpfs or hugetlbfs. It is made
	// when absent. Needed when a tier is configured.
	HostDir string
	// HostBytes is the size of the host tier. With 0 and a disk tier the host is bypassed:
	// blocks only pass through one staging extent of each namespace, of ExtentBytes or 64
	// slots, whichever is more.
	HostBytes uint64
	// DiskDir is the directory of the disk extents and of their slot table. It is
	// made when absent. Needed when DiskBytes is set.
	DiskDir string
	// DiskBytes is the size of the disk tier; zero is none.
	DiskBytes uint64
	// ExtentBytes is the size of an extent, at most 1 GiB and at least one slot. A tier
	// smaller than one extent has one extent of its own size. A tier has at most MaxExtents
	// extents. The default is ExtentBytesFor of each tier. With the default, extents of
	// another size that an earlier agent left stay; with a set size they are deleted.
	ExtentBytes uint64
	// HostBlocks and DiskBlocks, when set, bound the blocks of each namespace in a tier,
	// instead of a size that all namespaces share. They are at most MaxBlocks, in at most
	// MaxExtents files. Extents of an earlier agent beyond them are deleted, except those
	// that its sessions still use.
	HostBlocks, DiskBlocks uint64
	// HostRule and DiskRule say what a full tier evicts first. The zero value is policy.RuleLRU.
	HostRule, DiskRule policy.Rule
	// HostNodes are the memory nodes (NUMA) of new host extents: one that is preferred, or several
	// that take pages in turn. Empty: any. Extents of an earlier agent stay where they are.
	HostNodes []int
	// DiscardHost deletes the host files at Close, so that the next agent starts cold.
	DiscardHost bool
	// MaxPinsPerSession bounds the pins of one session, default 65536. Lookup does not
	// report blocks beyond the bound.
	MaxPinsPerSession int
	// SharePins lets Lookup pin for one session at most three quarters of the slots that no
	// other session has pinned. It is for sessions of other processes, which may hang. Lookup
	// does not report blocks beyond the bound.
	SharePins bool
	// Filter chooses the blocks to write to disk; nil for all. See policy.FrequencyFilter. A
	// filter with a method Expect(blocks uint64) gets the number of blocks that the tiers can hold.
	Filter OffloadFilter `json:"-"`
	// Budget bounds the bytes that all pools write to disk; nil for no bound. See
	// policy.WriteBudget, which a policy.FrequencyFilter follows too.
	Budget diskio.Budget `json:"-"`
	// Weights are the shares, by model, in a tier that several namespaces want; default 1.
	// Manager.SetWeights changes them.
	// See policy.Giver.
	Weights map[string]uint64
	// Transfers bounds the blocks that a pool reads from disk at once, and those that it
	// writes at once. The default follows the device; see extent.QueueDepth. TransferBatch is
	// the number of blocks that share the two writes of their slot records, default 64.
	Transfers, TransferBatch int
	// IODeadline is the time after which a read or write of a block means that the disk
	// stalls, and after which a read is abandoned. Default 5 s.
	IODeadline time.Duration
	// ScrubBytesPerSecond is the rate at which the scrubbers of all pools together read
	// blocks, default 16 MiB/s. A negative rate turns them off.
	ScrubBytesPerSecond int64
	// DirectIO says whether disk extents use O_DIRECT. OpenDirect gives the flag to open
	// instead of setting it afterwards.
	DirectIO   DirectIOMode
	OpenDirect bool
	// ZeroFill writes zeros where the file system cannot reserve disk space.
	ZeroFill bool
	// DiskKey encrypts the disk tier; nil for none. A tier that was written with another key, or without one,
	// is refused with sealed.ErrKey, or emptied with DiskKeyReset.
	DiskKey      *sealed.Key `json:"-"`
	DiskKeyReset bool
	// Sink gets every change of residency; may be nil.
	Sink EventSink `json:"-"`
	// WrapDisk wraps each disk file, such as in storagetest.Faulty; nil for nothing.
	WrapDisk func(path string, f extent.File) extent.File `json:"-"`
	// now is the clock of the disk's breakers; nil for time.Now.
	now func() time.Time
	// Log gets warnings and errors; may be nil.
	Log *zap.Logger `json:"-"`
}

// OffloadFilter chooses the blocks to write to disk; see diskio.Filter.
type OffloadFilter = diskio.Filter

// Validate checks every field's range; the error names the first bad one.
func (c *Config) Validate() error {
	if c.ExtentBytes != 0 && (c.ExtentBytes < minExtentBytes || c.ExtentBytes > MaxExtentBytes) {
		return fmt.Errorf("extent size %v: want %v to %v", bytesize.Size(c.ExtentBytes), bytesize.Size(minExtentBytes), bytesize.Size(MaxExtentBytes))
	}
	if c.HostBytes != 0 && c.HostBytes < minExtentBytes {
		return fmt.Errorf("host size %v: want 0 or at least %v", bytesize.Size(c.HostBytes), bytesize.Size(minExtentBytes))
	}
	if c.DiskBytes != 0 && c.DiskBytes < minExtentBytes {
		return fmt.Errorf("disk size %v: want 0 or at least %v", bytesize.Size(c.DiskBytes), bytesize.Size(minExtentBytes))
	}
	// By default a large tier gets larger extents, up to MaxExtentBytes; see ExtentBytesFor.
	extent := cmp.Or(c.ExtentBytes, MaxExtentBytes)
	if n := max(c.HostBytes, c.DiskBytes) / extent; n > MaxExtents {
		return fmt.Errorf("extent size %v: makes %d extents, want at most %d", bytesize.Size(extent), n, MaxExtents)
	}
	if n := max(c.HostBlocks, c.DiskBlocks); n > MaxBlocks {
		return fmt.Errorf("blocks of a namespace %d: want 0 to %d in each tier", n, uint64(MaxBlocks))
	}
	if c.enabled() && c.HostDir == "" {
		return fmt.Errorf("host directory %q: must be set when the host or disk size is not 0", c.HostDir)
	}
	if c.hasDisk() && c.DiskDir == "" {
		return fmt.Errorf("disk directory %q: must be set when the disk size is not 0", c.DiskDir)
	}
	if c.hasDisk() && filepath.Clean(c.HostDir) == filepath.Clean(c.DiskDir) {
		return fmt.Errorf("disk directory %q: must not be the host directory", c.DiskDir)
	}
	for _, r := range []policy.Rule{c.HostRule, c.DiskRule} {
		if int(r) >= len(policy.RuleNames) {
			return fmt.Errorf("eviction rule %s: want %s", r, strings.Join(policy.RuleNames, " or "))
		}
	}
	return c.validateLimits()
}

// validateLimits checks the fields other than sizes and directories, for Validate.
func (c *Config) validateLimits() error {
	for _, n := range c.HostNodes {
		if n < 0 || n > extent.MaxNode {
			return fmt.Errorf("memory node %d of the host tier: want 0 to %d", n, extent.MaxNode)
		}
	}
	if c.MaxPinsPerSession < 0 {
		return fmt.Errorf("pins per session %d: want 0 (default %d) or more", c.MaxPinsPerSession, DefaultMaxPinsPerSession)
	}
	if c.Transfers < 0 || c.Transfers > maxTransfers {
		return fmt.Errorf("concurrent transfers %d: want 0 (what the device takes) to %d", c.Transfers, maxTransfers)
	}
	if c.TransferBatch < 0 || c.TransferBatch > maxTransfers {
		return fmt.Errorf("transfer batch %d: want 0 (default %d) to %d blocks", c.TransferBatch, defaultTransferBatch, maxTransfers)
	}
	if c.IODeadline < 0 {
		return fmt.Errorf("I/O deadline %v: want 0 (default %v) or more", c.IODeadline, defaultIODeadline)
	}
	if err := checkWeights(c.Weights); err != nil {
		return err
	}
	return c.DirectIO.Validate()
}

// checkWeights returns an error for a model without a share.
func checkWeights(weights map[string]uint64) error {
	for model, w := range weights {
		if w == 0 {
			return fmt.Errorf("weight 0 of model %q: want 1 or more", model)
		}
	}
	return nil
}

// Weights returns the shares of the models in a tier that several namespaces want. A model that is
// absent has 1. The caller must not change the map.
func (m *Manager) Weights() map[string]uint64 { return *m.broker.weights.Load() }

// SetWeights replaces Config.Weights. Pools give and take room by the new shares from their next request
// for an extent on. The error names a model with the share 0, and then nothing has changed.
func (m *Manager) SetWeights(weights map[string]uint64) error {
	if err := checkWeights(weights); err != nil {
		return err
	}
	weights = maps.Clone(weights)
	m.broker.weights.Store(&weights)
	m.broker.turns.Add(1) // pools that could not grow may try again
	return nil
}

// weight returns a model's share.
func (b *broker) weight(model string) uint64 {
	if w, ok := (*b.weights.Load())[model]; ok {
		return w
	}
	return 1
}

// enabled reports whether any tier has room for blocks.
func (c *Config) enabled() bool {
	return c.HostBytes != 0 || c.HostBlocks != 0 || c.hasDisk()
}

// blocksOf returns how many blocks in slots of that size both tiers can hold.
func (c *Config) blocksOf(slotBytes uint64) uint64 {
	return cmp.Or(c.HostBlocks, c.HostBytes/slotBytes) + cmp.Or(c.DiskBlocks, c.DiskBytes/slotBytes)
}

func (c *Config) hasDisk() bool { return c.DiskBytes != 0 || c.DiskBlocks != 0 }

// BypassesHost reports whether blocks only pass through host memory: there is a
// disk tier and no host tier.
func (c *Config) BypassesHost() bool { return c.hasDisk() && c.HostBytes == 0 && c.HostBlocks == 0 }

// leastSlots returns the fewest slots that an extent may have, so that a namespace of that many
// blocks has at most fewExtents extents. most is the most slots that an extent may have.
func leastSlots(blocks, most uint64) uint64 {
	return max(min((blocks+fewExtents-1)/fewExtents, most), 1)
}

// maxHostExtents returns the most host extents that a pool can have in a tier of hostBytes. An extent has extentBytes
// of slots, or leastSlots slots if that is more.
func (c *Config) maxHostExtents(hostBytes, slotBytes, extentBytes, leastSlots uint64) int {
	perExtent := max(extentBytes/slotBytes, leastSlots)
	slots := hostBytes / slotBytes
	if c.HostBlocks != 0 {
		slots = c.HostBlocks
	}
	// Rounded up, with one extent to spare: the last extent may be shorter.
	return int(min(slots/perExtent+2, registry.MaxExtents))
}

// ExtentBytesFor returns the default of Config.ExtentBytes for a new tier of that many bytes,
// 0 for a tier that is bounded in blocks. It is 64 MiB. From 256 GiB on it is larger, up
// to 1 GiB, to keep the number of extents small.
func ExtentBytesFor(tierBytes uint64) uint64 { return storage.ExtentBytesFor(tierBytes) }

// withDefaults returns c with the defaults of its zero fields.
func (c Config) withDefaults() Config {
	c.MaxPinsPerSession = cmp.Or(c.MaxPinsPerSession, DefaultMaxPinsPerSession)
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Transfers == 0 && c.hasDisk() {
		c.Transfers = extent.QueueDepth(c.DiskDir)
	}
	c.TransferBatch = cmp.Or(c.TransferBatch, defaultTransferBatch)
	c.IODeadline = cmp.Or(c.IODeadline, defaultIODeadline)
	c.ScrubBytesPerSecond = cmp.Or(c.ScrubBytesPerSecond, defaultScrubRate)
	return c
}
