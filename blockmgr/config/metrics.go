package config

// MetricsNamespaceName is the namespace of KVBM's metrics: the prefix kvbm_.
const MetricsNamespaceName = "kvbm"

// MetricsRegistry hands out namespaces of metrics. It hides the metrics library
// of whoever exposes them.
type MetricsRegistry interface {
	// Namespace returns the metrics whose names begin with name and an underscore.
	Namespace(name string) (MetricsNamespace, error)
}

// MetricsNamespace receives values. It is called from several goroutines at
// once, on hot paths, and must not block.
type MetricsNamespace interface {
	// Add counts n more of a counter.
	Add(m Metric, n uint64)
	// Set says what a gauge is now.
	Set(m Metric, v float64)
}

// Metric is the name of a metric within its namespace.
type Metric string

// Counters of blocks moved. Beware that h2d means host to disk for an offload
// and host to device for an onboard, and d2d device to disk and back; the names
// are KVBM's, for dashboards that exist.
const (
	OffloadDeviceToHost   Metric = "offload_blocks_d2h"
	OffloadHostToDisk     Metric = "offload_blocks_h2d"
	OffloadDeviceToDisk   Metric = "offload_blocks_d2d"
	OffloadDeviceToObject Metric = "offload_blocks_d2o"
	OnboardHostToDevice   Metric = "onboard_blocks_h2d"
	OnboardDiskToDevice   Metric = "onboard_blocks_d2d"
	OnboardObjectToDevice Metric = "onboard_blocks_o2d"
)

// Other counters.
const (
	// MatchedTokens counts the tokens that lookups promised to an engine.
	MatchedTokens Metric = "matched_tokens"
	// ObjectReadFailures and ObjectWriteFailures count blocks.
	ObjectReadFailures  Metric = "object_read_failures"
	ObjectWriteFailures Metric = "object_write_failures"
)

// Gauges from 0 to 1: hits in a tier divided by all blocks asked for, in any
// tier, over the last requests; see CacheStats.
const (
	HostCacheHitRate   Metric = "host_cache_hit_rate"
	DiskCacheHitRate   Metric = "disk_cache_hit_rate"
	ObjectCacheHitRate Metric = "object_cache_hit_rate"
)
