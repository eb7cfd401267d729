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

	// DeviceLayout, HostLayout and DiskLayout describe the blocks of G1, G2 and
	// G3; nil is a tier that is not there.
	DeviceLayout *Layout
	HostLayout   *Layout
	DiskLayout   *Layout

	// Events is told of every change of residency. Nil leaves that to the
	// consolidator when there is one, and otherwise to nobody.
	Events EventManager
	// Reset is where requests to empty a tier arrive; nil for none. A closed
	// channel is one without further requests. See ServeResets.
	Reset <-chan CacheLevel
	// Metrics receives the counts of offloads and onboards; nil asks
	// Runtime.Metrics for the namespace MetricsNamespaceName.
	Metrics MetricsNamespace
	// Consolidator, when set, merges the engine's events with the manager's. A
	// set Events takes its place as the manager's listener.
	Consolidator *Consolidator
}

// tierLayout is one of the three layouts with its name and tier.
type tierLayout struct {
	name   string
	tier   kv.Tier
	layout *Layout
}

func (c *Config) layouts() []tierLayout {
	return []tierLayout{
		{"device_layout", kv.TierDevice, c.DeviceLayout},
		{"host_layout", kv.TierHost, c.HostLayout},
		{"disk_layout", kv.TierDisk, c.DiskLayout},
	}
}

// Validate checks every part; the error names the first bad field, its value
// and what is allowed.
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

// Warnings lists what is allowed and probably not meant, a sentence each.
// Config must be valid.
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
