package config

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Config is the configuration of a block manager.
type Config struct {
	// Runtime says which worker this is and what it may use.
	Runtime Runtime
	// Model is the shape of a block, equal in all tiers.
	Model Model

	// DeviceLayout, HostLayout and DiskLayout describe the blocks of G1, G2 and G3. Nil: the
	// tier is off.
	DeviceLayout *Layout
	HostLayout   *Layout
	DiskLayout   *Layout

	// Events hears of every change of residency. Nil: the consolidator does, if there is one.
	Events EventManager
	// Reset brings requests to empty a tier; nil for none. A closed channel brings no more.
	// See ServeResets.
	Reset <-chan CacheLevel
	// Metrics receives the counts of offloads and onboards. Nil asks Runtime.Metrics for the
	// namespace MetricsNamespaceName.
	Metrics MetricsNamespace
	// Consolidator merges the engine's events with the manager's; nil for none. Events wins
	// over the consolidator as the manager's listener.
	Consolidator *Consolidator
}

// tierLayout is one of the three layouts with its name and tier.
type tierLayout struct {
	name   string
	tier   kv.Tier
	layout *Layout
}

// layouts returns the layouts of G1, G2 and G3, nil ones too, with their names in errors.
func (c *Config) layouts() []tierLayout {
	return []tierLayout{
		{"device_layout", kv.TierDevice, c.DeviceLayout},
		{"host_layout", kv.TierHost, c.HostLayout},
		{"disk_layout", kv.TierDisk, c.DiskLayout},
	}
}

// Validate checks every part. The error names the first bad field, its value and what is
// allowed.
func (c *Config) Validate() error {
	if err := c.Runtime.Validate(); err != nil {
		return fmt.Errorf("runtime %w", err)
	}
	if err := c.Model.Validate(); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	for _, l := range c.layouts() {
		if l.layout == nil {
			continue
		}
		if err := l.layout.Validate(l.tier, c.Model); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	if c.Consolidator != nil {
		return c.Consolidator.Validate()
	}
	return nil
}

// Warnings returns a sentence for each setting that is allowed and probably a mistake. Config must be
// valid.
func (c *Config) Warnings() []string {
	var w []string
	if c.Runtime.NIXL.Mode != NIXLDisabled {
		w = append(w, fmt.Sprintf("runtime nixl is %s, but this build has no NIXL: blocks move through shared host memory and files", c.Runtime.NIXL))
	} else if c.DiskLayout != nil {
		w = append(w, "runtime nixl is disabled: the disk tier is kept, because it does not need NIXL here; KVBM would drop it")
	}
	if c.HostLayout != nil && c.DiskLayout != nil && c.HostLayout.OffloadFilter == nil {
		w = append(w, "host_layout offload_filter is not set: every block that reaches host memory is written to disk, which wears SSDs")
	}
	return w
}

// Storage is memory or a file that holds the blocks of a tier.
type Storage interface {
	// Tier returns where the bytes lie.
	Tier() kv.Tier
	// Bytes returns the number of bytes.
	Bytes() uint64
}

// Located is a Storage whose bytes are files in a directory.
type Located interface {
	Storage
	// Dir returns the directory, which need not exist and must not be empty.
	Dir() string
}

// Allocator makes storages.
type Allocator interface {
	// Tier returns where the storages lie.
	Tier() kv.Tier
	// Allocate returns a storage of at least size bytes. The caller owns the storage, and
	// closes an io.Closer after the last use.
	Allocate(size uint64) (Storage, error)
}

// OffloadFilter chooses the blocks that move to the next lower tier. Several goroutines ask
// at once, before a block is copied. An answer must not wait for anything.
type OffloadFilter interface {
	ShouldOffload(hash kv.SequenceHash) bool
}

// EventManager hears where blocks are. The calls for one block come in the order of the
// changes. Calls for different blocks may come from several goroutines at once. A call must
// neither block nor call back.
type EventManager interface {
	// BlockStored says that the block is now in tier t. Parent is the block before the block
	// in its sequence; hasParent is false for the first block.
	BlockStored(t kv.Tier, hash, parent kv.SequenceHash, hasParent bool)
	// BlockRemoved says that the block is no longer in tier t.
	BlockRemoved(t kv.Tier, hash kv.SequenceHash)
}
