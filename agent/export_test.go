package agent

import "github.com/blockyard-ai/blockyard/blockmgr"

// What tests see besides the exported names.
var (
	MetricsHandler = metricsHandler
	KVBMHandler    = kvbmHandler
	HostNodes      = hostNodes
	LogGPUs        = logGPUs
)

// Manager returns the block manager.
func (a *Agent) Manager() *blockmgr.Manager { return a.pools.Manager() }

// KVBMAddr returns the address of KVBM's metrics.
func (a *Agent) KVBMAddr() string { return a.kvbm.Addr() }

// BlockManager returns what the block manager is configured with.
func (c *Config) BlockManager() blockmgr.Config { return c.tiers().Config }
