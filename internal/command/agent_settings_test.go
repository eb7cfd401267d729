package command

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
)

// configured returns the configuration that a command line and variables make, and
// the sources that are logged, by name.
func configured(t *testing.T, args []string, variables map[string]string) (agent.Config, map[string]string, error) {
	t.Helper()
	var environ []string
	for name, value := range variables {
		t.Setenv(name, value) // kong reads Blockyard's own variables
		environ = append(environ, name+"="+value)
	}
	var root struct {
		Agent Agent `cmd:""`
	}
	parser, err := kong.New(&root, kong.BindTo(context.Background(), (*context.Context)(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"agent", "--node=n"}, args...)); err != nil {
		return agent.Config{}, nil, err
	}
	core, logged := observer.New(zap.DebugLevel)
	cfg, err := root.Agent.configure(environ, zap.New(core))
	sources := map[string]string{}
	for _, e := range logged.FilterMessage("configuration").All() {
		for name, value := range e.ContextMap() {
			sources[name] = value.(string)
		}
	}
	return cfg, sources, err
}

// The rows are: a flag wins over Blockyard's variable, that over KVBM's, and all
// over the default.
func TestAgentValuesComeFromTheFirstOfFlagVariableKVBMAndDefault(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want func(*agent.Config)
		log  map[string]string
	}{
		"nothing": {
			want: func(*agent.Config) {},
			log: map[string]string{"host_size": "1GiB (default)", "disk_size": "0 (default)", "disk_filter": "none (default)", "kvbm_metrics": `"" (default)`,
				"node": "n (--node)", "socket": "/run/blockyard/agent.sock (default)", "admin": "127.0.0.1:0 (default)", "nats": " (default)", "cluster": "default (default)",
				"host_dir": "/dev/shm/blockyard (default)", "extent_size": "0 (default)", "allow_uid": "[] (default)", "io_deadline": "5s (default)",
				"scrub_rate": "16MiB (default)", "quota": "map[] (default)", "discard_host": "false (default)", "no_prefetch": "false (default)", "drain_timeout": "2s (default)",
				"host_memory_nodes": "auto (default)", "disk_allocator": "default (default)", "direct_io": "auto (default)", "zero_fill": "false (default)", "disk_dir": "/var/lib/blockyard (default)"},
		},
		"KVBM's sizes": {
			env: map[string]string{"DYN_KVBM_CPU_CACHE_GB": "0.5", "DYN_KVBM_DISK_CACHE_GB": "2"},
			want: func(c *agent.Config) {
				c.Tiers.HostBytes, c.Tiers.DiskBytes = 5e8, 2e9
				c.Tiers.HostSetting, c.Tiers.DiskSetting = "DYN_KVBM_CPU_CACHE_GB", "DYN_KVBM_DISK_CACHE_GB"
			},
			log: map[string]string{"host_size": "500MB (DYN_KVBM_CPU_CACHE_GB)"},
		},
		"KVBM's disk alone bypasses the host": {
			env: map[string]string{"DYN_KVBM_DISK_CACHE_GB": "0.5"},
			want: func(c *agent.Config) {
				c.Tiers.HostBytes, c.Tiers.DiskBytes = 0, 5e8
				c.Tiers.HostSetting, c.Tiers.DiskSetting = "DYN_KVBM_DISK_CACHE_GB", "DYN_KVBM_DISK_CACHE_GB"
			},
			log: map[string]string{"host_size": "0 (DYN_KVBM_DISK_CACHE_GB)"},
		},
		"KVBM's disk of nothing leaves the host tier on": {
			env:  map[string]string{"DYN_KVBM_DISK_CACHE_GB": "0"},
			want: func(c *agent.Config) { c.Tiers.DiskSetting = "DYN_KVBM_DISK_CACHE_GB" },
			log:  map[string]string{"host_size": "1GiB (default)", "disk_size": "0 (DYN_KVBM_DISK_CACHE_GB)"},
		},
		"KVBM's disk does not count where a flag turns it off": {
			args: []string{"--disk-size=0"},
			env:  map[string]string{"DYN_KVBM_DISK_CACHE_GB": "0.5"},
			want: func(*agent.Config) {},
			log:  map[string]string{"host_size": "1GiB (default)", "disk_size": "0 (--disk-size)"},
		},
		"a number of blocks of 0 is none": {
			env:  map[string]string{"DYN_KVBM_CPU_CACHE_GB": "100", "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS": "0"},
			want: func(c *agent.Config) { c.Tiers.HostBytes, c.Tiers.HostSetting = 100e9, "DYN_KVBM_CPU_CACHE_GB" },
		},
		"flags may turn off what KVBM's variables turn on": {
			args: []string{"--host-size=0", "--disk-size=0"},
			env:  map[string]string{"DYN_KVBM_CPU_CACHE_GB": "1"},
			want: func(c *agent.Config) { c.Tiers.HostBytes = 0 },
		},
		"KVBM's numbers of blocks": {
			env: map[string]string{"DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS": "100", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS": "200"},
			want: func(c *agent.Config) {
				c.Tiers.HostBytes, c.Tiers.HostBlocks, c.Tiers.DiskBlocks = 0, 100, 200
				c.Tiers.HostSetting, c.Tiers.DiskSetting = "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS"
			},
			log: map[string]string{"disk_size": "200 blocks of each namespace (DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS)"},
		},
		"flag over Blockyard's variable over KVBM's": {
			args: []string{"--host-size=3MiB"},
			env:  map[string]string{"BLOCKYARD_HOST_SIZE": "2MiB", "BLOCKYARD_DISK_SIZE": "4MiB", "DYN_KVBM_CPU_CACHE_GB": "1", "DYN_KVBM_DISK_CACHE_GB": "1"},
			want: func(c *agent.Config) {
				c.Tiers.HostBytes, c.Tiers.DiskBytes = 3<<20, 4<<20
				c.Tiers.DiskSetting = "BLOCKYARD_DISK_SIZE"
			},
			log: map[string]string{"host_size": "3MiB (--host-size)", "disk_size": "4MiB (BLOCKYARD_DISK_SIZE)"},
		},
		"KVBM's disk files": {
			env: map[string]string{"DYN_KVBM_DISK_CACHE_DIR": "/mnt/kv", "DYN_KVBM_DISK_ALLOCATOR_TYPE": "open-direct", "DYN_KVBM_DISK_DISABLE_O_DIRECT": "", "DYN_KVBM_DISK_ZEROFILL_FALLBACK": "1",
				"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER": "true"},
			want: func(c *agent.Config) {
				c.Tiers.DiskDir = "/mnt/kv"
				c.Tiers.OpenDirect, c.Tiers.ZeroFill, c.Tiers.DirectIO = true, true, blockmgr.DirectIOOff
			},
			log: map[string]string{"direct_io": "off (DYN_KVBM_DISK_DISABLE_O_DIRECT)", "disk_filter": "none (DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER)", "disk_allocator": "open-direct (DYN_KVBM_DISK_ALLOCATOR_TYPE)"},
		},
		"KVBM's disk filter, when its variable asks for it": {
			env:  map[string]string{"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER": "false"},
			want: func(c *agent.Config) { c.DiskFilter = true },
			log:  map[string]string{"disk_filter": "frequency (DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER)"},
		},
		"flags over KVBM's disk files": {
			args: []string{"--disk-dir=/a", "--disk-allocator=default", "--direct-io=require", "--disk-filter=frequency"},
			env:  map[string]string{"DYN_KVBM_DISK_CACHE_DIR": "/mnt/kv", "DYN_KVBM_DISK_ALLOCATOR_TYPE": "open-direct", "DYN_KVBM_DISK_DISABLE_O_DIRECT": "1", "DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER": "true"},
			want: func(c *agent.Config) {
				c.Tiers.DiskDir, c.Tiers.DirectIO, c.DiskFilter = "/a", blockmgr.DirectIORequire, true
			},
			log: map[string]string{"direct_io": "require (--direct-io)"},
		},
		"KVBM's metrics": {
			env: map[string]string{"DYN_KVBM_METRICS": "1", "DYN_KVBM_CACHE_STATS_MAX_REQUESTS": "50", "DYN_KVBM_CACHE_STATS_LOG_INTERVAL_SECS": "9"},
			want: func(c *agent.Config) {
				c.KVBM = agent.KVBMOptions{Metrics: "0.0.0.0:6880", HitRateRequests: 50, LogHitRates: true, LogInterval: 9 * time.Second}
			},
			log: map[string]string{"kvbm_metrics": `"0.0.0.0:6880" (DYN_KVBM_METRICS)`},
		},
		"KVBM's metrics on another port": {
			env:  map[string]string{"DYN_KVBM_METRICS": "1", "DYN_KVBM_METRICS_PORT": "7000"},
			want: func(c *agent.Config) { c.KVBM.Metrics = "0.0.0.0:7000" },
		},
		"a port alone turns nothing on": {
			env:  map[string]string{"DYN_KVBM_METRICS_PORT": "7000"},
			want: func(*agent.Config) {},
		},
		"flag over KVBM's metrics": {
			args: []string{"--kvbm-metrics=127.0.0.1:0"},
			env:  map[string]string{"DYN_KVBM_METRICS": "1"},
			want: func(c *agent.Config) { c.KVBM.Metrics = "127.0.0.1:0" },
		},
		"KVBM's offloads": {
			env:  map[string]string{"DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY": "7", "DYN_KVBM_MAX_CONCURRENT_TRANSFERS": "8", "DYN_KVBM_MAX_TRANSFER_BATCH_SIZE": "32"},
			want: func(c *agent.Config) { c.MinPriority, c.Tiers.Transfers, c.Tiers.TransferBatch = 7, 8, 32 },
			log:  map[string]string{"min_priority": "7 (DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY)"},
		},
		"the disk's queue": {
			args: []string{"--disk-queue-depth=48"},
			env:  map[string]string{"DYN_KVBM_MAX_CONCURRENT_TRANSFERS": "8"},
			want: func(c *agent.Config) { c.Tiers.Transfers = 48 },
			log:  map[string]string{"disk_queue_depth": "48 (--disk-queue-depth)"},
		},
		"the disk's filter": {
			args: []string{"--disk-filter-min=3", "--disk-filter-decay=1m"},
			env:  map[string]string{"BLOCKYARD_DISK_FILTER_ENTRIES": "5000000"},
			want: func(c *agent.Config) {
				c.Frequency = policy.FrequencyOptions{Min: 3, Decay: time.Minute, MaxEntries: 5_000_000}
			},
			log: map[string]string{"disk_filter_min": "3 (--disk-filter-min)", "disk_filter_entries": "5000000 (BLOCKYARD_DISK_FILTER_ENTRIES)"},
		},
		"what the disk may be written": {
			args: []string{"--disk-write-budget=2TB"},
			want: func(c *agent.Config) { c.DiskWriteBudget = 2e12 },
			log:  map[string]string{"disk_write_budget": "2TB (--disk-write-budget)"},
		},
		"memory nodes": {
			args: []string{"--host-memory-nodes=0, 2"},
			env:  map[string]string{"DYN_MEMORY_DISABLE_NUMA": "1"},
			want: func(c *agent.Config) { c.NearGPUs, c.Tiers.HostNodes = false, []int{0, 2} },
			log:  map[string]string{"host_memory_nodes": "0, 2 (--host-memory-nodes)"},
		},
		"no memory nodes": {
			env:  map[string]string{"BLOCKYARD_HOST_MEMORY_NODES": "off"},
			want: func(c *agent.Config) { c.NearGPUs = false },
		},
		"KVBM without memory nodes": {
			env:  map[string]string{"DYN_MEMORY_DISABLE_NUMA": "1"},
			want: func(c *agent.Config) { c.NearGPUs = false },
			log:  map[string]string{"host_memory_nodes": "off (DYN_MEMORY_DISABLE_NUMA)"},
		},
		"KVBM with memory nodes": {
			env:  map[string]string{"DYN_MEMORY_DISABLE_NUMA": "0"},
			want: func(*agent.Config) {},
			log:  map[string]string{"host_memory_nodes": "auto (DYN_MEMORY_DISABLE_NUMA)"},
		},
		"what only Blockyard has": {
			args: []string{"--quota=meta/llama=3", "--quota=b=2", "--scrub-rate=0", "--io-deadline=2s", "--discard-host", "--no-prefetch", "--drain-timeout=0"},
			want: func(c *agent.Config) {
				c.Tiers.Weights = map[string]uint64{"meta/llama": 3, "b": 2}
				c.Tiers.ScrubBytesPerSecond, c.Tiers.IODeadline = -1, 2*time.Second
				c.Tiers.DiscardHost, c.NoPrefetch, c.DrainTimeout = true, true, 0
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := agent.Config{
				Node: "n", Socket: "/run/blockyard/agent.sock", Admin: "127.0.0.1:0", Cluster: "default",
				Tiers: node.Tiers{HostSetting: "--host-size", DiskSetting: "--disk-size", LimitHeap: true, Config: blockmgr.Config{
					HostDir: "/dev/shm/blockyard", HostBytes: 1 << 30, DiskDir: "/var/lib/blockyard",
					HostRule: policy.AgentRule, DiskRule: policy.AgentRule,
					IODeadline: 5 * time.Second, ScrubBytesPerSecond: 16 << 20,
				}},
				NearGPUs: true, Frequency: policy.FrequencyOptions{Min: 2, Decay: 10 * time.Minute},
				DrainTimeout: 2 * time.Second,
				Events:       events.Options{ZMQHost: "*", TokenMemory: 256 << 20},
			}
			c.want(&want)
			got, sources, err := configured(t, c.args, c.env)
			if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(blockmgr.Config{})); err != nil || d != "" {
				t.Errorf("error %v (-want +got):\n%s", err, d)
			}
			for name, value := range c.log {
				if sources[name] != value {
					t.Errorf("%s is logged as %q, want %q", name, sources[name], value)
				}
			}
		})
	}
}

func TestAgentNamesTheVariableThatIsWrong(t *testing.T) {
	for variable, value := range map[string]string{
		"DYN_KVBM_CPU_CACHE_GB": "lots", "DYN_KVBM_METRICS_PORT": "99999", "DYN_KVBM_DISK_ALLOCATOR_TYPE": "nvme",
		"DYN_KVBM_DISK_CACHE_GB": "1_0", "BLOCKYARD_HOST_SIZE": "1XB", "BLOCKYARD_HOST_MEMORY_NODES": "0-1", "DYN_KVBM_MAX_TRANSFER_BATCH_SIZE": "100000",
	} {
		t.Run(variable, func(t *testing.T) {
			_, _, err := configured(t, nil, map[string]string{variable: value})
			if err == nil || !strings.Contains(err.Error(), variable) && !strings.Contains(err.Error(), "host-size") || !strings.Contains(err.Error(), value) {
				t.Errorf("got error %v, want the name and the value %q", err, value)
			}
		})
	}
}

func TestAgentWarnsOfVariablesWithoutEffect(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	if _, err := new(Agent).configure([]string{"DYN_KVBM_CPU_CACHE_GBS=5", "DYN_KVBM_OBJECT_ENABLED=1"}, zap.New(core)); err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, e := range logged.All() {
		text = append(text, e.ContextMap()["warning"].(string))
	}
	for _, name := range []string{"DYN_KVBM_CPU_CACHE_GBS", "DYN_KVBM_OBJECT_ENABLED"} {
		if !strings.Contains(strings.Join(text, "\n"), name) {
			t.Errorf("%s is not mentioned in %q", name, text)
		}
	}
}

func TestKVBMsVariablesThatLeaveNoTierAreRefused(t *testing.T) {
	_, _, err := configured(t, nil, map[string]string{"DYN_KVBM_CPU_CACHE_GB": "0"})
	if err == nil || !strings.Contains(err.Error(), "DYN_KVBM_CPU_CACHE_GB 0 and DYN_KVBM_DISK_CACHE_GB 0") {
		t.Errorf("got error %v, want the variables", err)
	}
}

func TestNoPasswordIsLogged(t *testing.T) {
	for urls, want := range map[string]string{
		"":                                     "",
		"nats://a:4222":                        "nats://a:4222",
		"nats://u:pass@word@a:1,tls://token@b": "nats://…@a:1,tls://…@b",
		"u:secret@a":                           "…@a",
	} {
		if got := withoutPassword(urls); got != want {
			t.Errorf("%q is logged as %q, want %q", urls, got, want)
		}
	}
}

// A flag that does nothing without another one is refused, and the error says with which.
func TestEventFlagsNameTheFlagThatTheyNeed(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		want []string
	}{
		{args: []string{"--durable-kv-events"}, want: []string{"--durable-kv-events", "--nats", "--embedded-nats"}},
		{args: []string{"--durable-kv-events", "--embedded-nats=127.0.0.1:0"}, want: []string{"--durable-kv-events", "--embedded-nats-dir"}},
		{args: []string{"--embedded-nats-dir=/var/lib/js"}, want: []string{"--embedded-nats-dir", "--embedded-nats,"}},
		{args: []string{"--embedded-nats-advertise=node"}, want: []string{"--embedded-nats-advertise", "--embedded-nats,"}},
		{args: []string{"--dynamo-recovery=127.0.0.1:0"}, want: []string{"--dynamo-recovery", "--dynamo-endpoint"}},
		{args: []string{"--dynamo-advertise=a:1"}, want: []string{"--dynamo-advertise", "--dynamo-endpoint"}},
		{args: []string{"--dynamo-any-dial-back"}, want: []string{"--dynamo-any-dial-back", "--dynamo-endpoint"}},
		{args: []string{"--dynamo-discovery=/kv"}, want: []string{"--dynamo-discovery", "--dynamo-endpoint"}},
		{env: map[string]string{"BLOCKYARD_DYNAMO_DISCOVERY": "/kv"}, want: []string{"BLOCKYARD_DYNAMO_DISCOVERY", "--dynamo-endpoint"}},
		{args: []string{"--dynamo-endpoint=a.b.c", "--dynamo-discovery=/kv"}, want: []string{"--dynamo-endpoint", "--nats", "--embedded-nats"}},
		{args: []string{"--durable-kv-events", "--embedded-nats=127.0.0.1:0", "--embedded-nats-dir=/var/lib/js"}},
		{args: []string{"--durable-kv-events", "--nats=nats://a:1"}},
		{args: []string{"--dynamo-endpoint=a.b.c", "--dynamo-discovery=/kv", "--embedded-nats=127.0.0.1:0", "--dynamo-any-dial-back"}},
		{env: map[string]string{"DYN_FILE_KV": "/kv"}}, // every process of a Dynamo deployment has it
	} {
		_, _, err := configured(t, c.args, c.env)
		if c.want == nil && err != nil {
			t.Errorf("%q %v: %v", c.args, c.env, err)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q %v: got error %v, want %q", c.args, c.env, err, want)
			}
		}
	}
}

func TestStreamsInTheEnginesFormatAreConfigured(t *testing.T) {
	cfg, _, err := configured(t, []string{"--zmq-events", "--zmq-host=127.0.0.1", "--zmq-token-memory=1MiB"},
		map[string]string{"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE": "tiered"})
	want := events.Options{ZMQ: true, ZMQHost: "127.0.0.1", TokenMemory: 1 << 20, ZMQMode: "tiered"}
	if d := cmp.Diff(want, cfg.Events); err != nil || d != "" {
		t.Errorf("error %v (-want +got):\n%s", err, d)
	}
}

// The labels of workers come from a flag or its variable, and one that cannot be is named.
func TestWorkerTaintsAreConfigured(t *testing.T) {
	cfg, logged, err := configured(t, nil, map[string]string{"BLOCKYARD_WORKER_TAINTS": "zone=1,a100"})
	if err != nil || cfg.Events.WorkerTaints != "a100,zone=1" || logged["worker_taints"] != "zone=1,a100 (BLOCKYARD_WORKER_TAINTS)" {
		t.Errorf("%q, logged %q, %v", cfg.Events.WorkerTaints, logged["worker_taints"], err)
	}
	cfg, _, err = configured(t, []string{"--worker-taints=b"}, nil)
	if err != nil || cfg.Events.WorkerTaints != "b" {
		t.Errorf("the flag: %q, %v", cfg.Events.WorkerTaints, err)
	}
	if _, _, err = configured(t, []string{"--worker-taints=a,b c"}, nil); err == nil || !strings.Contains(err.Error(), `--worker-taints: taints[1]: "b c"`) {
		t.Errorf("error %v", err)
	}
}
