package command

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// fromDefault is the source of a default.
const fromDefault = "default"

// settings finds the source of each value of the agent. A flag wins over
// Blockyard's variable, that over KVBM's, each over the file of --config, and all over the default.
type settings struct {
	flags    []*kong.Flag    // of the command
	given    map[string]bool // names of the flags on the command line
	set      map[string]bool // names of all variables of the environment
	kvbm     []string        // KVBM's variables among them
	env      config.Env      // the values of KVBM's variables
	file     fileValues      // of --config
	warnings []string
	notes    []note          // values with their sources
	noted    map[string]bool // names of notes
}

// newSettings returns the settings of a command line and an environment. given has the names
// of the flags on the command line. The error names the variables of KVBM that have a wrong
// value.
func newSettings(flags []*kong.Flag, given map[string]bool, environ []string) (*settings, error) {
	env, warnings, err := config.FromEnviron(environ)
	if err != nil {
		return nil, err
	}
	s := &settings{
		flags: flags, given: given, set: make(map[string]bool), noted: make(map[string]bool),
		kvbm: config.Given(environ), env: env, warnings: warnings,
	}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		s.set[name] = true
	}
	return s, nil
}

// source returns the name of the flag, the variable, the line of the file or the default that a flag's value comes from.
// kvbm is true when the source is a variable of KVBM: then the caller takes the value from s.env.
// KVBM's variables are those given, in their order, or those that the flag's tag names.
func (s *settings) source(flag string, variables ...string) (source string, kvbm bool) {
	own := variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	switch {
	case s.given[flag]:
		return "--" + flag, false
	case s.set[own]:
		return own, false
	case variables == nil:
		variables = s.kvbmVariables(flag)
	}
	for _, v := range variables {
		if slices.Contains(s.kvbm, v) {
			return v, true
		}
	}
	if v, ok := s.file[flag]; ok {
		return v.Origin, false
	}
	return fromDefault, false
}

// kvbmVariables returns the names of KVBM's variables that set the same value as a flag, from the
// flag's tag "kvbm". Most flags have none.
func (s *settings) kvbmVariables(flag string) []string {
	for _, f := range s.flags {
		if f.Name == flag && f.Tag.Has("kvbm") {
			return strings.Split(f.Tag.Get("kvbm"), ",")
		}
	}
	return nil
}

// first returns the first result of source.
func first(source string, _ bool) string { return source }

// noteFlags has the value of every flag logged with its source. It leaves out credentials, and
// values that were noted under their own rule.
func (s *settings) noteFlags() {
	for _, f := range s.flags {
		name := strings.ReplaceAll(f.Name, "-", "_")
		if s.noted[name] || f.Name == "help" || f.Tag.Get("log") == "-" {
			continue
		}
		value := f.Target.Interface()
		if list, ok := value.([]string); ok {
			value = strings.Join(list, ",")
		}
		s.note(name, value, first(s.source(f.Name)))
	}
}

// note is a value with its source.
type note struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// note has a value logged with its source.
func (s *settings) note(name string, value any, source string) {
	s.noted[name] = true
	s.notes = append(s.notes, note{name, fmt.Sprint(value), source})
}

// KVBM's variables of the tiers' sizes.
const (
	kvbmHostBlocks = "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS"
	kvbmHostGB     = "DYN_KVBM_CPU_CACHE_GB"
	kvbmDiskBlocks = "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS"
	kvbmDiskGB     = "DYN_KVBM_DISK_CACHE_GB"
)

// takeSizes sets the sizes of the host and disk tiers in cfg, in bytes or in blocks of each
// namespace. KVBM's variables that make a disk tier and no host tier turn the host tier off, as in
// KVBM. The error says that KVBM's variables leave no tier at all.
func (c *Agent) takeSizes(s *settings, cfg *agent.Config) error {
	diskNames := sizeNames(s.env.Disk, kvbmDiskBlocks, kvbmDiskGB)
	source, disk := s.source("disk-size", diskNames...)
	cfg.Tiers.DiskBytes = uint64(c.DiskSize)
	if disk {
		cfg.Tiers.DiskBytes, cfg.Tiers.DiskBlocks = s.env.Disk.Bytes, s.env.Disk.OverrideBlocks
	}
	cfg.Tiers.DiskSetting = settingName(source, "disk-size")
	s.note("disk_size", tierSize(cfg.Tiers.DiskBytes, cfg.Tiers.DiskBlocks), source)

	hostNames := sizeNames(s.env.Host, kvbmHostBlocks, kvbmHostGB)
	// Then the variables of the disk tier decide that there is no host tier.
	if disk && s.env.ShouldBypassCPUCache() {
		hostNames = append(hostNames, diskNames...)
	}
	source, host := s.source("host-size", hostNames...)
	cfg.Tiers.HostBytes = uint64(c.HostSize)
	if host {
		cfg.Tiers.HostBytes, cfg.Tiers.HostBlocks = s.env.Host.Bytes, s.env.Host.OverrideBlocks
	}
	cfg.Tiers.HostSetting = settingName(source, "host-size")
	s.note("host_size", tierSize(cfg.Tiers.HostBytes, cfg.Tiers.HostBlocks), source)

	sizes := cfg.Tiers.HostBytes | cfg.Tiers.HostBlocks | cfg.Tiers.DiskBytes | cfg.Tiers.DiskBlocks
	if sizes == 0 && (host || disk) {
		return s.env.CheckTiers()
	}
	return nil
}

// takeHostNodes sets the memory nodes of the host tier in cfg.
func (c *Agent) takeHostNodes(s *settings, cfg *agent.Config) error {
	source, kvbm := s.source("host-memory-nodes")
	nodes := c.HostNodes
	if kvbm {
		nodes = either(s.env.Memory.DisableNUMA, "off", "auto")
	}
	s.note("host_memory_nodes", nodes, source)
	switch nodes {
	case "auto":
		cfg.NearGPUs = true
		return nil
	case "off", "":
		return nil
	}
	for _, text := range strings.Split(nodes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("%s %q: want auto, off, or numbers of memory nodes such as 0,1", settingName(source, "host-memory-nodes"), nodes)
		}
		cfg.Tiers.HostNodes = append(cfg.Tiers.HostNodes, n)
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
	switch {
	case source == fromDefault:
		return "--" + flag
	case strings.Contains(source, ":"): // the file of --config and a line
		return flag + " at " + source
	}
	return source
}

func tierSize(bytes, blocks uint64) string {
	if blocks != 0 {
		return strconv.FormatUint(blocks, 10) + " blocks of each namespace"
	}
	return bytesize.Size(bytes).String()
}

// takeDisk sets how the disk tier makes its files and chooses blocks. Each value comes from its
// flag, or from the variable of KVBM that means the same, where the two have different forms.
func (c *Agent) takeDisk(s *settings, cfg *agent.Config) {
	source, kvbm := s.source("disk-dir")
	cfg.Tiers.DiskDir = c.DiskDir
	if kvbm {
		cfg.Tiers.DiskDir = s.env.DiskFiles.Dir
	}
	s.note("disk_dir", cfg.Tiers.DiskDir, source)

	source, kvbm = s.source("disk-filter")
	filter := c.DiskFilter
	if kvbm {
		filter = either(s.env.Offload.DisableDiskFilter, "none", "frequency")
	}
	cfg.DiskFilter = filter == "frequency"
	s.note("disk_filter", filter, source)
	cfg.DiskWriteBudget = uint64(c.DiskWriteBudget)
	cfg.DiskKey = sealed.Source{File: c.DiskKeyFile, Command: c.DiskKeyCommand}
	cfg.Tiers.DiskKeyReset = c.DiskKeyReset
	cfg.Tiers.HostRule, _ = policy.RuleOf(c.HostRule) // kong has checked both
	cfg.Tiers.DiskRule, _ = policy.RuleOf(c.DiskRule)
	cfg.Frequency = policy.FrequencyOptions{Min: c.DiskFilterMin, Decay: c.DiskFilterDecay, MaxEntries: c.DiskFilterEntries}

	source, kvbm = s.source("disk-queue-depth")
	cfg.Tiers.Transfers = c.DiskQueueDepth
	if kvbm {
		cfg.Tiers.Transfers = s.env.Transfer.MaxConcurrent
	}
	s.note("disk_queue_depth", cfg.Tiers.Transfers, source)

	source, kvbm = s.source("disk-allocator")
	allocator := c.DiskAllocator
	if kvbm {
		allocator = either(s.env.DiskFiles.OpenDirect, "open-direct", "default")
	}
	cfg.Tiers.OpenDirect = allocator == "open-direct"
	s.note("disk_allocator", allocator, source)

	source, kvbm = s.source("direct-io")
	mode := c.DirectIO
	if kvbm && s.env.DiskFiles.DisableDirectIO {
		mode = "off"
	}
	cfg.Tiers.DirectIO = directIOMode(mode)
	s.note("direct_io", mode, source)

	source, kvbm = s.source("zero-fill")
	cfg.Tiers.ZeroFill = c.ZeroFill
	if kvbm {
		cfg.Tiers.ZeroFill = s.env.DiskFiles.ZeroFill
	}
	s.note("zero_fill", cfg.Tiers.ZeroFill, source)
}

// either returns yes when condition is true, and else no.
func either(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}

// withoutPassword returns a list of URLs, with commas between them, for the log: an ellipsis
// replaces the user and the password of each.
func withoutPassword(urls string) string {
	list := strings.Split(urls, ",")
	for i, u := range list {
		// The last @, because a password may have one.
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

// directIOMode returns the mode that name, the value of --direct-io, means. Kong has checked the
// name.
func directIOMode(name string) blockmgr.DirectIOMode {
	switch name {
	case "off":
		return blockmgr.DirectIOOff
	case "require":
		return blockmgr.DirectIORequire
	}
	return blockmgr.DirectIOAuto
}

// takeKVBM sets in cfg the address of KVBM's metrics, and the values that have a variable of KVBM
// but no flag. The error names a variable whose value KVBM accepts and the agent does not.
func (c *Agent) takeKVBM(s *settings, cfg *agent.Config) error {
	source, kvbm := s.source("kvbm-metrics")
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
