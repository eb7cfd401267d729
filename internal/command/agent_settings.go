package command

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// fromDefault is the source of a default.
const fromDefault = "default"

// settings knows the source of each value of the agent. A flag wins over Blockyard's
// variable, Blockyard's variable over KVBM's, and KVBM's over the default.
type settings struct {
	flags    map[string]bool // on the command line
	own      map[string]bool // Blockyard's variables that are set
	kvbm     []string        // KVBM's variables that are set
	env      config.Env      // their values
	warnings []string
	fields   []zap.Field // values with their sources, for the log
}

// newSettings reads an environment. The error names the variables of KVBM that
// have a wrong value.
func newSettings(flags map[string]bool, environ []string) (*settings, error) {
	env, warnings, err := config.FromEnviron(environ)
	if err != nil {
		return nil, err
	}
	s := &settings{flags: flags, own: make(map[string]bool), kvbm: config.Given(environ), env: env, warnings: warnings}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		s.own[name] = true
	}
	return s, nil
}

// source returns the name of the flag or variable that sets the value of a flag.
// variables are KVBM's for the same value. kvbm is true when one of them sets it.
func (s *settings) source(flag string, variables ...string) (source string, kvbm bool) {
	own := "BLOCKYARD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	switch {
	case s.flags[flag]:
		return "--" + flag, false
	case s.own[own]:
		return own, false
	}
	for _, v := range variables {
		if slices.Contains(s.kvbm, v) {
			return v, true
		}
	}
	return fromDefault, false
}

// note adds a value and its source to the log line.
func (s *settings) note(name string, value any, source string) {
	s.fields = append(s.fields, zap.String(name, fmt.Sprintf("%v (%s)", value, source)))
}

// KVBM's variables of the tiers' sizes.
const (
	kvbmHostBlocks = "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS"
	kvbmHostGB     = "DYN_KVBM_CPU_CACHE_GB"
	kvbmDiskBlocks = "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS"
	kvbmDiskGB     = "DYN_KVBM_DISK_CACHE_GB"
)

// takeSizes sets the tiers' sizes. KVBM's variables that make a disk tier and no host
// tier turn the host tier off, as in KVBM. The error says that they leave no tier at
// all.
func (c *Agent) takeSizes(s *settings, cfg *agent.Config) error {
	diskNames := sizeNames(s.env.Disk, kvbmDiskBlocks, kvbmDiskGB)
	source, disk := s.source("disk-size", diskNames...)
	cfg.Tiers.DiskBytes = uint64(c.DiskSize)
	if disk {
		cfg.Tiers.DiskBytes, cfg.Tiers.DiskBlocks = s.env.Disk.Bytes, s.env.Disk.OverrideBlocks
	}
	cfg.DiskSetting = settingName(source, "disk-size")
	s.note("disk_size", tierSize(cfg.Tiers.DiskBytes, cfg.Tiers.DiskBlocks), source)

	hostNames := sizeNames(s.env.Host, kvbmHostBlocks, kvbmHostGB)
	if disk && s.env.ShouldBypassCPUCache() {
		hostNames = append(hostNames, diskNames...)
	}
	source, host := s.source("host-size", hostNames...)
	cfg.Tiers.HostBytes = uint64(c.HostSize)
	if host {
		cfg.Tiers.HostBytes, cfg.Tiers.HostBlocks = s.env.Host.Bytes, s.env.Host.OverrideBlocks
	}
	cfg.HostSetting = settingName(source, "host-size")
	s.note("host_size", tierSize(cfg.Tiers.HostBytes, cfg.Tiers.HostBlocks), source)

	if on := cfg.Tiers.HostBytes + cfg.Tiers.HostBlocks + cfg.Tiers.DiskBytes + cfg.Tiers.DiskBlocks; on == 0 && (host || disk) {
		return s.env.CheckTiers()
	}
	return nil
}

// sizeNames returns the variables of a tier's size, the deciding one first.
func sizeNames(size config.CacheSize, blocks, gb string) []string {
	if size.OverrideBlocks != 0 {
		return []string{blocks, gb}
	}
	return []string{gb, blocks}
}

// settingName returns the flag or variable that an operator changes for a value.
func settingName(source, flag string) string {
	if source == fromDefault {
		return "--" + flag
	}
	return source
}

func tierSize(bytes, blocks uint64) string {
	if blocks != 0 {
		return strconv.FormatUint(blocks, 10) + " blocks of each namespace"
	}
	return bytesize.Size(bytes).String()
}

// takeDisk sets how the disk tier makes its files and chooses blocks.
func (c *Agent) takeDisk(s *settings, cfg *agent.Config) {
	source, kvbm := s.source("disk-dir", "DYN_KVBM_DISK_CACHE_DIR")
	cfg.Tiers.DiskDir = c.DiskDir
	if kvbm {
		cfg.Tiers.DiskDir = s.env.DiskFiles.Dir
	}
	s.note("disk_dir", cfg.Tiers.DiskDir, source)

	source, kvbm = s.source("disk-filter", "DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER")
	filter := c.DiskFilter
	if kvbm {
		filter = either(s.env.Offload.DisableDiskFilter, "none", "frequency")
	}
	cfg.DiskFilter = filter == "frequency"
	s.note("disk_filter", filter, source)
	cfg.Frequency = policy.FrequencyOptions{Min: c.DiskFilterMin, Decay: c.DiskFilterDecay, MaxEntries: c.DiskFilterEntries}

	source, kvbm = s.source("disk-queue-depth", "DYN_KVBM_MAX_CONCURRENT_TRANSFERS")
	cfg.Tiers.Transfers = c.DiskQueueDepth
	if kvbm {
		cfg.Tiers.Transfers = s.env.Transfer.MaxConcurrent
	}
	s.note("disk_queue_depth", cfg.Tiers.Transfers, source)

	source, kvbm = s.source("disk-allocator", "DYN_KVBM_DISK_ALLOCATOR_TYPE")
	allocator := c.DiskAllocator
	if kvbm {
		allocator = either(s.env.DiskFiles.OpenDirect, "open-direct", "default")
	}
	cfg.Tiers.OpenDirect = allocator == "open-direct"
	s.note("disk_allocator", allocator, source)

	source, kvbm = s.source("direct-io", "DYN_KVBM_DISK_DISABLE_O_DIRECT")
	mode := c.DirectIO
	if kvbm && s.env.DiskFiles.DisableDirectIO {
		mode = "off"
	}
	cfg.Tiers.DirectIO = directIOMode(mode)
	s.note("direct_io", mode, source)

	source, kvbm = s.source("zero-fill", "DYN_KVBM_DISK_ZEROFILL_FALLBACK")
	cfg.Tiers.ZeroFill = c.ZeroFill
	if kvbm {
		cfg.Tiers.ZeroFill = s.env.DiskFiles.ZeroFill
	}
	s.note("zero_fill", cfg.Tiers.ZeroFill, source)
}

func either(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}

// noteOthers notes the settings that KVBM has no variables for.
func (c *Agent) noteOthers(s *settings, cfg *agent.Config) {
	for _, v := range []struct {
		flag  string
		value any
	}{
		{"node", cfg.Node}, {"socket", c.Socket}, {"admin", c.Admin}, {"control", c.Control}, {"nats", withoutPassword(c.NATS)}, {"cluster", c.Cluster},
		{"host-dir", c.HostDir}, {"extent-size", c.ExtentSize}, {"allow-uid", c.AllowUID}, {"io-deadline", c.IODeadline},
		{"disk-filter-min", c.DiskFilterMin}, {"disk-filter-decay", c.DiskFilterDecay}, {"disk-filter-entries", c.DiskFilterEntries},
		{"scrub-rate", c.ScrubRate}, {"quota", c.Quota}, {"discard-host", c.DiscardHost}, {"no-prefetch", c.NoPrefetch},
		{"drain-timeout", c.DrainTimeout},
	} {
		source, _ := s.source(v.flag)
		s.note(strings.ReplaceAll(v.flag, "-", "_"), v.value, source)
	}
}

// withoutPassword returns a list of URLs without users and passwords, for the log.
func withoutPassword(urls string) string {
	list := strings.Split(urls, ",")
	for i, u := range list {
		if at := strings.LastIndexByte(u, '@'); at >= 0 {
			scheme, _, ok := strings.Cut(u, "://")
			list[i] = "…" + u[at:]
			if ok {
				list[i] = scheme + "://" + list[i]
			}
		}
	}
	return strings.Join(list, ",")
}

// directIOMode returns the mode of a value of --direct-io.
func directIOMode(name string) blockmgr.DirectIOMode {
	switch name {
	case "off":
		return blockmgr.DirectIOOff
	case "require":
		return blockmgr.DirectIORequire
	}
	return blockmgr.DirectIOAuto
}

// takeKVBM sets KVBM's metrics and the values that only KVBM's variables set. The error
// names a variable whose value KVBM accepts and the agent does not.
func (c *Agent) takeKVBM(s *settings, cfg *agent.Config) error {
	source, kvbm := s.source("kvbm-metrics", "DYN_KVBM_METRICS")
	cfg.KVBM.Metrics = c.KVBMMetrics
	if stats := &s.env.Stats; kvbm && stats.Metrics {
		cfg.KVBM.Metrics = net.JoinHostPort("0.0.0.0", strconv.Itoa(int(stats.MetricsPort)))
	}
	s.note("kvbm_metrics", strconv.Quote(cfg.KVBM.Metrics), source)
	for _, v := range s.kvbm {
		var limits blockmgr.Config
		switch v {
		case "DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY":
			cfg.MinPriority = s.env.Offload.MinPriority
			s.note("min_priority", cfg.MinPriority, v)
		case "DYN_KVBM_MAX_CONCURRENT_TRANSFERS":
			limits.Transfers = s.env.Transfer.MaxConcurrent
		case "DYN_KVBM_MAX_TRANSFER_BATCH_SIZE":
			cfg.Tiers.TransferBatch = s.env.Transfer.MaxBatch
			limits.TransferBatch = cfg.Tiers.TransferBatch
			s.note("transfer_batch", cfg.Tiers.TransferBatch, v)
		case "DYN_KVBM_CACHE_STATS_MAX_REQUESTS":
			cfg.KVBM.HitRateRequests = s.env.Stats.MaxRequests
			s.note("hit_rate_requests", cfg.KVBM.HitRateRequests, v)
		case "DYN_KVBM_CACHE_STATS_LOG_INTERVAL_SECS":
			cfg.KVBM.LogHitRates, cfg.KVBM.LogInterval = true, s.env.Stats.LogInterval
			s.note("hit_rate_log_interval", cfg.KVBM.LogInterval, v)
		}
		if err := limits.Validate(); err != nil {
			return fmt.Errorf("%s: %w", v, err)
		}
	}
	return nil
}
