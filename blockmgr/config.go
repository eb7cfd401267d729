package blockmgr

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/kv"
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
	// DefaultExtentBytes is the least of the sizes that ExtentBytesFor chooses.
	DefaultExtentBytes = storage.DefaultExtentBytes
	// MaxExtentBytes is the largest Config.ExtentBytes.
	MaxExtentBytes = storage.MaxExtentBytes
	// minExtentBytes holds one slot.
	minExtentBytes = storage.PageSize
	// DefaultMaxPinsPerSession is Config.MaxPinsPerSession when it is zero.
	DefaultMaxPinsPerSession = 65536
	// MaxExtents bounds the extents of a tier: each is an open file. One namespace
	// uses all of them but one, in no more than maxParts.
	MaxExtents = 1 << 14
	maxParts   = registry.MaxExtents
	// MaxBlocks bounds Config.HostBlocks and DiskBlocks: what slots can be named.
	MaxBlocks = maxParts * registry.MaxExtentSlots
	// fewExtents is how many extents a namespace with a number of blocks has, while
	// they can be made larger instead.
	fewExtents = 4096
	// defaultTransferBatch is the default of Config.TransferBatch.
	defaultTransferBatch = 64
	// maxTransfers bounds Config.Transfers and TransferBatch.
	maxTransfers = 1024
	// defaultIODeadline and defaultScrubRate are the defaults of
	// Config.IODeadline and ScrubBytesPerSecond.
	defaultIODeadline = 5 * time.Second
	defaultScrubRate  = 16 << 20
	// stagingSlots is what a staging arena holds at least; see Config.HostBytes.
	stagingSlots = 64
)

// Config says where blocks live and how many. The zero value is a manager that
// is off: lookups find nothing and nothing is granted. The fields without a JSON name are
// hooks of the program that opens the manager.
type Config struct {
	// HostDir is the directory of the host extents; it should be on tmpfs or
	// hugetlbfs. It is made when absent. Needed whenever a tier is configured.
	HostDir string
	// HostBytes is the size of the host tier. Zero with a disk tier bypasses the
	// host: blocks only pass through a staging extent of ExtentBytes, or of 64
	// slots if that is more, for each namespace.
	HostBytes uint64
	// DiskDir is the directory of the disk extents and of their slot table. It is
	// made when absent. Needed when DiskBytes is set.
	DiskDir string
	// DiskBytes is the size of the disk tier; zero is none.
	DiskBytes uint64
	// ExtentBytes is how much a pool grows by, at most 1 GiB. A tier smaller than
	// one extent has one extent of its own size; an extent is never smaller than one
	// slot. Each extent is an open file, of which a tier has at most MaxExtents. By
	// default each tier has its own size, ExtentBytesFor, and what an earlier agent
	// left in extents of another size stays; with a size that is set it is forgotten.
	ExtentBytes uint64
	// HostBlocks and DiskBlocks, when set, are the exact number of blocks of each
	// namespace in a tier, instead of a size that all of them share; at most
	// MaxBlocks, and no more than fit into MaxExtents files. What an earlier agent
	// left beyond it goes, but for extents that its sessions still use.
	HostBlocks, DiskBlocks uint64
	// DiscardHost unlinks the host files at Close, so that the next agent starts
	// cold.
	DiscardHost bool
	// MaxPinsPerSession bounds the pins of one session, default 65536. Lookup
	// does not report blocks beyond it.
	MaxPinsPerSession int
	// SharePins bounds the slots that one session pins by Lookup to three quarters of
	// those that no other session has pinned. It is for sessions that are processes of
	// their own and may hang. Lookup does not report blocks beyond it.
	SharePins bool
	// Filter chooses which blocks are worth writing to disk; nil for all. See
	// policy.FrequencyFilter. One with a method Expect(blocks uint64) is told how many
	// blocks the tiers can hold.
	Filter OffloadFilter `json:"-"`
	// Weights are the shares of models in a tier that several namespaces want,
	// default 1 each. See policy.Giver.
	Weights map[string]uint64
	// Transfers is how many blocks a pool reads from disk at once, and how many it
	// writes; by default it follows the device, see extent.QueueDepth. TransferBatch is how many blocks share the two writes of
	// their slot records, default 64.
	Transfers, TransferBatch int
	// IODeadline is how long one read or write of a block may take before its
	// block is given up and the disk is taken for stalled, default 5 s.
	IODeadline time.Duration
	// ScrubBytesPerSecond is how fast all pools together compare what they store with
	// its checksums, default 16 MiB/s; negative turns that off.
	ScrubBytesPerSecond int64
	// DirectIO says whether disk extents are opened with O_DIRECT, OpenDirect that
	// the flag is given to open instead of set afterwards.
	DirectIO   DirectIOMode
	OpenDirect bool
	// ZeroFill writes zeros where the file system cannot reserve disk space.
	ZeroFill bool
	// Sink is told of every change of residency; nil for nobody.
	Sink EventSink `json:"-"`
	// Reset is where requests to empty a tier arrive; nil for none. See
	// Manager.Reset.
	Reset <-chan kv.Tier `json:"-"`
	// WrapDisk puts something between the manager and each of its disk files, such
	// as storagetest.Faulty; nil for nothing.
	WrapDisk func(path string, f extent.File) extent.File `json:"-"`
	// Log is where warnings go; nil for nowhere.
	Log *zap.Logger `json:"-"`
}

// OffloadFilter chooses the blocks that are worth a place on disk; see diskio.Filter.
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
	return c.validateLimits()
}

func (c *Config) validateLimits() error {
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
	for model, w := range c.Weights {
		if w == 0 {
			return fmt.Errorf("weight 0 of model %q: want 1 or more", model)
		}
	}
	return c.DirectIO.Validate()
}

func (c *Config) enabled() bool {
	return c.HostBytes != 0 || c.HostBlocks != 0 || c.hasDisk()
}

// blocksOf is how many blocks in slots of that size both tiers can hold.
func (c *Config) blocksOf(slotBytes uint64) uint64 {
	return cmp.Or(c.HostBlocks, c.HostBytes/slotBytes) + cmp.Or(c.DiskBlocks, c.DiskBytes/slotBytes)
}

func (c *Config) hasDisk() bool { return c.DiskBytes != 0 || c.DiskBlocks != 0 }

// BypassesHost reports whether blocks only pass through host memory: there is a
// disk tier and no host tier.
func (c *Config) BypassesHost() bool { return c.hasDisk() && c.HostBytes == 0 && c.HostBlocks == 0 }

// leastSlots is how many slots the extents of a namespace of a number of blocks
// have at least, where one can have most: so many that it has enough extents.
func leastSlots(blocks, most uint64) uint64 {
	return max(min((blocks+fewExtents-1)/fewExtents, most), 1)
}

// maxHostExtents is the most host extents that a pool of such slots can have, when
// it makes each as large as extentBytes and leastSlots say.
func (c *Config) maxHostExtents(slotBytes, extentBytes, leastSlots uint64) int {
	perExtent := max(extentBytes/slotBytes, leastSlots)
	slots := c.HostBytes / slotBytes
	if c.HostBlocks != 0 {
		slots = c.HostBlocks
	}
	// An extent may be cut short where the size ends, once for each tier's end.
	return int(min(slots/perExtent+2, maxParts))
}

// ExtentBytesFor is the default of Config.ExtentBytes for a new tier of that many
// bytes, 0 for one that is bounded in blocks: 64 MiB, and from 256 GiB on as much
// more as keeps the number of extents small, up to 1 GiB.
func ExtentBytesFor(tierBytes uint64) uint64 { return storage.ExtentBytesFor(tierBytes) }

// weight is a model's share.
func (c *Config) weight(model string) uint64 {
	if w, ok := c.Weights[model]; ok {
		return w
	}
	return 1
}

// withDefaults is c with zero fields replaced by their defaults.
func (c Config) withDefaults() Config {
	if c.MaxPinsPerSession == 0 {
		c.MaxPinsPerSession = DefaultMaxPinsPerSession
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Transfers == 0 && c.hasDisk() {
		c.Transfers = extent.QueueDepth(c.DiskDir)
	}
	if c.TransferBatch == 0 {
		c.TransferBatch = defaultTransferBatch
	}
	if c.IODeadline == 0 {
		c.IODeadline = defaultIODeadline
	}
	if c.ScrubBytesPerSecond == 0 {
		c.ScrubBytesPerSecond = defaultScrubRate
	}
	return c
}
