package config

import (
	"math"
	"slices"
	"time"
)

// Names that errors and warnings mention.
const (
	hostGB      = "DYN_KVBM_CPU_CACHE_GB"
	hostBlocks  = "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS"
	diskGB      = "DYN_KVBM_DISK_CACHE_GB"
	diskBlocks  = "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS"
	minPriority = "DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY"
	pubPort     = "DYN_KVBM_LEADER_ZMQ_PUB_PORT"
	ackPort     = "DYN_KVBM_LEADER_ZMQ_ACK_PORT"
	metricsPort = "DYN_KVBM_METRICS_PORT"
	trtllmPort  = "DYN_KVBM_TRTLLM_ZMQ_PORT"
)

// maxCount bounds the numbers of transfers, blocks of a batch and requests.
const maxCount = 1 << 20

// Variables returns the table of KVBM's variables, grouped by subject. The caller owns the
// slice.
func Variables() []Variable {
	return slices.Concat(sizeVariables(), diskVariables(), offloadVariables(), leaderVariables(),
		statsVariables(), eventVariables(), processVariables(), ignoredVariables())
}

// sizeVariables returns KVBM's variables of the sizes of the tiers.
func sizeVariables() []Variable {
	return []Variable{
		variable(hostGB, gigabytes(), "0", func(e *Env) *uint64 { return &e.Host.Bytes },
			"Size of the host tier, all ranks together. The tier holds floor(GB * 1e9 / bytes of a block on all ranks) blocks. A size above 0 without room for one block is an error.").
			used("The size of the node's host tier, which all engines share."),
		variable(hostBlocks, number[uint64](0, maxBlocks), "0", func(e *Env) *uint64 { return &e.Host.OverrideBlocks },
			"Exact number of blocks of the host tier. It wins over the size in GB; 0 is no override.").
			used("The exact number of host blocks of each namespace."),
		variable(diskGB, gigabytes(), "0", func(e *Env) *uint64 { return &e.Disk.Bytes },
			"Size of the disk tier, by the same formula. A disk tier without a host tier bypasses the host.").
			used("The size of the node's disk tier, which all engines share."),
		variable(diskBlocks, number[uint64](0, maxBlocks), "0", func(e *Env) *uint64 { return &e.Disk.OverrideBlocks },
			"Exact number of blocks of the disk tier. It wins over the size in GB; 0 is no override.").
			used("The exact number of disk blocks of each namespace."),
	}
}

// diskVariables returns KVBM's variables of the files of the disk tier.
func diskVariables() []Variable {
	return []Variable{
		variable("DYN_KVBM_DISK_CACHE_DIR", text("a path"), "", func(e *Env) *string { return &e.DiskFiles.Dir },
			"Directory of the disk tier's files. Default: the system's temporary directory.").
			used("The same. The files outlive the agent, and the next agent starts warm. The default is the agent's own."),
		variable("DYN_KVBM_DISK_ALLOCATOR_TYPE", choice([]string{"default", "open-direct"}, []bool{false, true}), "default",
			func(e *Env) *bool { return &e.DiskFiles.OpenDirect },
			"When O_DIRECT is set: after the open, or (open-direct, for IBM Storage Scale) by the open.").
			used("As KVBM does. Where O_DIRECT is refused, the agent says so and uses the page cache."),
		variable("DYN_KVBM_DISK_DISABLE_O_DIRECT", presence(), "off", func(e *Env) *bool { return &e.DiskFiles.DisableDirectIO },
			"Use the page cache.").
			used("As KVBM does."),
		variable("DYN_KVBM_DISK_ZEROFILL_FALLBACK", presence(), "off", func(e *Env) *bool { return &e.DiskFiles.ZeroFill },
			"Write zeros where the file system cannot allocate space otherwise (fallocate: EOPNOTSUPP).").
			used("As KVBM does."),
	}
}

// offloadVariables returns KVBM's variables of the offloads, transfers and host memory.
func offloadVariables() []Variable {
	return []Variable{
		variable("DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER", boolean(), "false", func(e *Env) *bool { return &e.Offload.DisableDiskFilter },
			"Write every block of the host tier to disk, not only blocks in demand.").
			used("As KVBM does when the variable is set. Without it the agent writes every block, and `kvbm.NewFromEnviron` filters. Hits count as demand, not only repeated stores."),
		variable(minPriority, number[uint32](0, math.MaxUint32), "0", func(e *Env) *uint32 { return &e.Offload.MinPriority },
			"Offload the blocks of a request up to the first block of a lower retention priority. An engine without priorities, such as vLLM, has 0 everywhere.").
			used("Stores of a lower priority are refused, with the blocks after them."),
		variable("DYN_KVBM_MAX_CONCURRENT_TRANSFERS", number[int](1, maxCount), "4", func(e *Env) *int { return &e.Transfer.MaxConcurrent },
			"Batches copied at a time.").
			used("The number of blocks that a pool reads from disk at a time, and writes: `--disk-queue-depth`. Its default follows the device. Engines copy to and from their devices themselves."),
		variable("DYN_KVBM_MAX_TRANSFER_BATCH_SIZE", number[int](1, maxCount), "16", func(e *Env) *int { return &e.Transfer.MaxBatch },
			"Blocks in a batch.").
			used("The number of blocks whose slot records are written together."),
		variable("DYN_KVBM_DISABLE_WRITE_COMBINED", boolean(), "false", func(e *Env) *bool { return &e.Memory.DisableWriteCombined },
			"Allocate host memory without write combining.").
			unused("the agent allocates no CUDA memory. Engines register the shared memory, which is never write-combined."),
		variable("DYN_MEMORY_DISABLE_NUMA", boolean(), "false", func(e *Env) *bool { return &e.Memory.DisableNUMA },
			"Allocate host memory anywhere, not on the GPU's NUMA node.").
			used("As KVBM does: `--host-memory-nodes off`. With GPUs on several nodes the host tier takes pages of each in turn."),
		{Name: "DYN_KVBM_ENABLE_NUMA", Status: Deprecated,
			Meaning: "KVBM and the agent place memory by NUMA node unless DYN_MEMORY_DISABLE_NUMA says otherwise."},
	}
}

// leaderVariables returns KVBM's variables of the leader and workers of an engine.
func leaderVariables() []Variable {
	return []Variable{
		variable("DYN_KVBM_LEADER_WORKER_INIT_TIMEOUT_SECS", seconds(1), "1800", func(e *Env) *time.Duration { return &e.Leader.InitTimeout },
			"How long the leader waits for its workers, from start to ready.").
			unused("there is no leader; engines connect to the agent's socket at any time."),
		variable("DYN_KVBM_LEADER_ZMQ_HOST", text("a host"), "127.0.0.1", func(e *Env) *string { return &e.Leader.ZMQHost },
			"Host that the leader binds and the workers connect to.").
			unused("there is no leader; schedulers and workers connect to the agent's socket."),
		variable(pubPort, port(1), "56001", func(e *Env) *uint16 { return &e.Leader.PubPort },
			"Port on which the leader sends. The consolidator publishes on this port + 1000. All ports must differ.").
			unused("there is no leader. In an engine's environment the variable has an effect: the connector has the agent publish the consolidated stream on this port + 1000. Each engine of a node needs its own port."),
		variable(ackPort, port(1), "56002", func(e *Env) *uint16 { return &e.Leader.AckPort },
			"Port on which the workers answer the leader.").
			unused("there is no leader."),
		variable("DYN_KVBM_NCCL_MLA_MODE", boolean(), "false", func(e *Env) *bool { return &e.NCCL.MLAMode },
			"Load replicated (MLA) blocks on one rank and broadcast them (TensorRT-LLM).").
			unused("replicated blocks are stored once, and each rank loads them from shared memory."),
		variable("DYN_KVBM_NCCL_MAX_CTAS", number[int32](1, math.MaxInt32), "8", func(e *Env) *int32 { return &e.NCCL.MaxCTAs },
			"Number of CTAs of a broadcast at most.").
			unused("nothing is broadcast."),
	}
}

// statsVariables returns KVBM's variables of the metrics, hit rates and recordings.
func statsVariables() []Variable {
	return []Variable{
		variable("DYN_KVBM_METRICS", boolean(), "false", func(e *Env) *bool { return &e.Stats.Metrics },
			"Serve metrics over HTTP.").
			used("The kvbm_ metrics, on all addresses."),
		variable(metricsPort, port(0), "6880", func(e *Env) *uint16 { return &e.Stats.MetricsPort },
			"Port of the metrics; 0 is any free one.").
			used("As KVBM does."),
		variable("DYN_KVBM_CACHE_STATS_MAX_REQUESTS", number[int](1, maxCount), "1000", func(e *Env) *int { return &e.Stats.MaxRequests },
			"Finished requests that hit rates are computed over.").
			used("As KVBM does."),
		variable("DYN_KVBM_CACHE_STATS_LOG_INTERVAL_SECS", seconds(0), "5", func(e *Env) *time.Duration { return &e.Stats.LogInterval },
			"How often hit rates are logged when they changed.").
			used("As KVBM does."),
		variable("DYN_KVBM_ENABLE_RECORD", boolean(), "false", func(e *Env) *bool { return &e.Stats.Record },
			"Record every call of the engine to the connector in a JSONL file.").
			unused("the agent keeps no record of calls."),
	}
}

// eventVariables returns KVBM's variables of the consolidator.
func eventVariables() []Variable {
	return []Variable{
		variable("DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR", boolean(), "true", func(e *Env) *bool { return &e.Events.Consolidate },
			"Merge the engine's events with the block manager's.").
			unused("the agent always follows the events of an engine that names its endpoint. In an engine's environment the variable has an effect: off, the connector asks the agent for no consolidated stream."),
		variable("DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE", choice([]string{Dedup.String(), Passthrough.String(), Tiered.String()}, []ConsolidatorMode{Dedup, Passthrough, Tiered}), "dedup",
			func(e *Env) *ConsolidatorMode { return &e.Events.Mode },
			"Report a block once for all its sources (dedup), or every event as it comes (passthrough). Tiered, which KVBM does not have, reports each tier alone.").
			used("The mode of the consolidated stream for engines that name none, default tiered. A connector that has the variable names its mode."),
		variable(trtllmPort, port(1), "", func(e *Env) *uint16 { return &e.Events.TRTLLMPort },
			"Port on which TensorRT-LLM's events are published; needed to consolidate them.").
			unused("an engine names its endpoint when it registers. In an engine's environment the variable has an effect: the connector names this port."),
	}
}

// processVariables returns KVBM's variables of the process around the block manager.
func processVariables() []Variable {
	return []Variable{
		variable("DYN_RUNTIME_ENABLED_KVBM", boolean(), "false", func(e *Env) *bool { return &e.Process.AttachRuntime },
			"Attach to the Dynamo runtime of the process.").
			unused("the agent is a process of its own, without a Dynamo runtime."),
		variable("DYN_FATBIN_PATH", text("a path"), "", func(e *Env) *string { return &e.Process.FatbinPath },
			"File of the copy kernels. Default: built-in kernels.").
			unused("engines copy with kernels of their own."),
		variable("OTEL_EXPORT_ENABLED", boolean(), "false", func(e *Env) *bool { return &e.Process.OTELExport },
			"Export logs by OTLP.").
			unused("logs go to standard error."),
	}
}

// ignoredVariables returns the variables that KVBM names and never reads.
func ignoredVariables() []Variable {
	object := "KVBM declares it and does not read it; there is no object tier here either."
	return []Variable{
		{Name: "DYN_KVBM_OBJECT_ENABLED", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_BUCKET", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_ENDPOINT", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_REGION", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_ACCESS_KEY", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_SECRET_KEY", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_OBJECT_NUM_BLOCKS", Status: Ignored, Meaning: object},
		{Name: "DYN_KVBM_TRANSFER_BATCH_SIZE", Status: Ignored, Meaning: "the name that is read is DYN_KVBM_MAX_TRANSFER_BATCH_SIZE."},
		{Name: "DYN_KVBM_ENABLE", Status: Ignored, Meaning: "only release notes mention it; a tier is on when its size is above 0."},
		{Name: "DYN_KVBM_NIXL_BACKEND_*", Status: Ignored, Meaning: "KVBM's connector does not read it, and this build has no NIXL."},
	}
}
