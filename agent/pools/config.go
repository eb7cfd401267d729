package pools

import (
	"cmp"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Config says which tiers a node has.
type Config struct {
	// Node names the node. The ids of pools are made from it.
	Node string
	// Tiers configures the block manager. Open sets Sink and Log.
	Tiers blockmgr.Config
	// HostSetting and DiskSetting name the settings behind the sizes of the tiers, for
	// messages. Empty: no name.
	HostSetting, DiskSetting string
	// LimitHeap keeps the Go heap of the process below what control groups leave beside
	// the tiers, unless GOMEMLIMIT is set.
	LimitHeap bool
}

// Validate checks the sizes of the tiers. The error names the setting to change.
func (c *Config) Validate() error {
	for _, t := range c.tiers() {
		if t.blocks > blockmgr.MaxBlocks {
			return fmt.Errorf("%s size of %d blocks%s: want at most %d", t.name, t.blocks, inBrackets(t.setting), uint64(blockmgr.MaxBlocks))
		}
		extent := cmp.Or(c.Tiers.ExtentBytes, blockmgr.ExtentBytesFor(t.bytes))
		n := t.bytes / extent
		if n <= blockmgr.MaxExtents || extent < storage.PageSize { // Tiers.Validate refuses the latter
			continue
		}
		// the least extent size with which the tier has at most MaxExtents, in whole pages
		least := (t.bytes/blockmgr.MaxExtents + storage.PageSize) / storage.PageSize * storage.PageSize
		if least > blockmgr.MaxExtentBytes {
			return fmt.Errorf("%s size %v%s: want at most %v", t.name, bytesize.Size(t.bytes), inBrackets(t.setting), bytesize.Size(blockmgr.MaxExtents*blockmgr.MaxExtentBytes))
		}
		return fmt.Errorf("%s size %v%s: makes %d extents of the extent size %v, want at most %d: an extent size of at least %v, or a smaller tier",
			t.name, bytesize.Size(t.bytes), inBrackets(t.setting), n, bytesize.Size(extent), blockmgr.MaxExtents, bytesize.Size(least))
	}
	return c.Tiers.Validate()
}

// Extents returns the number of extents of full tiers. Each is an open file.
func (c *Config) Extents() (n int) {
	for _, t := range c.tiers() {
		n += int(t.bytes / cmp.Or(c.Tiers.ExtentBytes, blockmgr.ExtentBytesFor(t.bytes)))
	}
	return n
}

// tier is the size of one tier and the setting behind it.
type tier struct {
	name, setting string
	bytes, blocks uint64
}

func (c *Config) tiers() []tier {
	return []tier{
		{"host", c.HostSetting, c.Tiers.HostBytes, c.Tiers.HostBlocks},
		{"disk", c.DiskSetting, c.Tiers.DiskBytes, c.Tiers.DiskBlocks},
	}
}

// hostOn and diskOn report whether the tier has a size.
func (c *Config) hostOn() bool { return c.Tiers.HostBytes != 0 || c.Tiers.HostBlocks != 0 }
func (c *Config) diskOn() bool { return c.Tiers.DiskBytes != 0 || c.Tiers.DiskBlocks != 0 }

func inBrackets(setting string) string {
	if setting == "" {
		return ""
	}
	return " (" + setting + ")"
}
