package config

// MetricsNamespaceName is the namespace of KVBM's metrics. Their names begin with kvbm_.
const MetricsNamespaceName = "kvbm"

// MetricsRegistry hands out namespaces of metrics. It hides the metrics library
// of the program that embeds the manager. Package blockmgr/kvbm/kvbmprom implements it
// for Prometheus.
type MetricsRegistry interface {
	// Namespace returns the metrics whose names begin with name and an underscore.
	Namespace(name string) (MetricsNamespace, error)
}

// MetricsNamespace receives values. Several goroutines call it at once, so it must not
// block.
type MetricsNamespace interface {
	// Add adds n to a counter. Each counter gets an Add of 0 at the start.
	Add(m Metric, n uint64)
	// Set sets a gauge. Each gauge gets a Set to 0 at the start.
	Set(m Metric, v float64)
}

// Metric is the name of a metric within its namespace: a name in the tags of
// MetricValues.
type Metric string

// MetricValues are the values of KVBM's metrics under KVBM's names, for dashboards
// that exist. Package internal/metric reads the tags. In the names of offloads h2d means
// host to disk, in those of onboards host to device; d2d means device to disk and back.
// There is no object store, so its metrics stay 0. Hit rates are shares from 0 to 1 of
// the blocks asked for, over the last requests.
type MetricValues struct {
	OffloadDeviceToHost   uint64  `metric:"offload_blocks_d2h" help:"Blocks copied from device to host memory."`
	OffloadHostToDisk     uint64  `metric:"offload_blocks_h2d" help:"Blocks copied from host memory to disk."`
	OffloadDeviceToDisk   uint64  `metric:"offload_blocks_d2d" help:"Blocks copied from device to disk, without a host tier."`
	OffloadDeviceToObject uint64  `metric:"offload_blocks_d2o" help:"Blocks copied from device to an object store: there is none."`
	OnboardHostToDevice   uint64  `metric:"onboard_blocks_h2d" help:"Blocks that workers were told to copy from host memory to device."`
	OnboardDiskToDevice   uint64  `metric:"onboard_blocks_d2d" help:"Blocks found on disk that workers were told to copy to device."`
	OnboardObjectToDevice uint64  `metric:"onboard_blocks_o2d" help:"Blocks copied from an object store to device: there is none."`
	MatchedTokens         uint64  `metric:"matched_tokens" help:"Tokens that lookups found, each once for its request."`
	ObjectReadFailures    uint64  `metric:"object_read_failures" help:"Failed reads of an object store: there is none."`
	ObjectWriteFailures   uint64  `metric:"object_write_failures" help:"Failed writes of an object store: there is none."`
	HostCacheHitRate      float64 `metric:"host_cache_hit_rate" help:"Share of the blocks asked for that host memory had, over the last requests."`
	DiskCacheHitRate      float64 `metric:"disk_cache_hit_rate" help:"Share of the blocks asked for that the disk had, over the last requests."`
	ObjectCacheHitRate    float64 `metric:"object_cache_hit_rate" help:"Share of the blocks asked for that an object store had: there is none."`
}

// SetOffloads sets the counters of blocks that left the device: stored blocks reached
// host memory and written blocks reached the disk. With bypass there is no host tier,
// and written blocks count as copied from device to disk.
func (v *MetricValues) SetOffloads(stored, written uint64, bypass bool) {
	if bypass {
		v.OffloadDeviceToDisk = written
		return
	}
	v.OffloadDeviceToHost, v.OffloadHostToDisk = stored, written
}
