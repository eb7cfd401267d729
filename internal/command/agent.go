package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/limits"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/internal/servertls"
)

// Agent runs the node agent until ctx ends. Each setting is declared once, as a field:
// the help, docs/agent-config.md and the log line "configuration" come from the tags. The
// tag kvbm names KVBM's variables that hold when neither the flag nor Blockyard's variable
// is given. The ranges are in agent.Config.Validate.
type Agent struct {
	ConfigFile   string        `group:"Node" name:"config" type:"path" help:"YAML file with settings of agent and router. Flags and variables win over the file." env:"BLOCKYARD_CONFIG" placeholder:"FILE"`
	Node         string        `group:"Node" help:"Name of this node: unique in the cluster, the same at every start. Default: the host name." env:"BLOCKYARD_NODE" placeholder:"NAME"`
	Socket       string        `group:"Node" help:"Unix socket that engines connect to, an absolute path." default:"/run/blockyard/agent.sock" env:"BLOCKYARD_SOCKET"`
	Admin        string        `group:"Node" help:"Address of the HTTP server for health, metrics and events. It has no access control: keep it on loopback or on a network of routers." default:"127.0.0.1:0" env:"BLOCKYARD_ADMIN"`
	Control      string        `group:"Node" help:"Address where operators reset, keep and list blocks: an absolute path of a Unix socket for the agent's own user, or HOST:PORT, which asks for a token only with --control-token-file. Default: --socket with .control appended." env:"BLOCKYARD_CONTROL" placeholder:"ADDRESS"`
	ControlToken string        `group:"Node" name:"control-token-file" type:"path" help:"File with the tokens of operators, a line NAME TOKEN for each. Without it --control asks for none." env:"BLOCKYARD_CONTROL_TOKEN_FILE" placeholder:"FILE"`
	ControlCert  string        `group:"Node" name:"control-tls-cert" type:"path" help:"PEM certificate of --control HOST:PORT. Default: no TLS." env:"BLOCKYARD_CONTROL_TLS_CERT" placeholder:"FILE"`
	ControlKey   string        `group:"Node" name:"control-tls-key" type:"path" help:"PEM key of --control-tls-cert." env:"BLOCKYARD_CONTROL_TLS_KEY" placeholder:"FILE"`
	ControlCA    string        `group:"Node" name:"control-tls-client-ca" type:"path" help:"PEM certificates of the authorities of operators. With it, operators need a certificate." env:"BLOCKYARD_CONTROL_TLS_CLIENT_CA" placeholder:"FILE"`
	AllowUID     []uint32      `group:"Node" live:"" name:"allow-uid" help:"User whose engines may connect; repeatable. Default: the agent's own user and root. With another user everybody may open the socket, and the agent checks the user that the kernel reports." env:"BLOCKYARD_ALLOW_UID" placeholder:"UID"`
	DrainTimeout time.Duration `group:"Node" live:"" name:"drain-timeout" help:"Time for engines to finish copies and say goodbye before the agent stops, at most 1h; 0 does not wait." default:"2s" env:"BLOCKYARD_DRAIN_TIMEOUT"`
	LogLevel     process.Level `group:"Node" live:"" name:"log-level" help:"Least level of log lines: debug, info, warn or error." default:"info" env:"BLOCKYARD_LOG_LEVEL" placeholder:"LEVEL"`
	KVBMMetrics  string        `group:"Node" name:"kvbm-metrics" help:"Address that serves metrics under KVBM's names. Default: none." env:"BLOCKYARD_KVBM_METRICS" kvbm:"DYN_KVBM_METRICS" placeholder:"HOST:PORT"`

	HostDir     string            `group:"Tiers" help:"Directory of the host tier, best on tmpfs or hugetlbfs." default:"/dev/shm/blockyard" type:"path" env:"BLOCKYARD_HOST_DIR"`
	HostSize    bytesize.Size     `group:"Tiers" help:"Size of the host tier, such as 64GiB; 0 turns the tier off." default:"1GiB" env:"BLOCKYARD_HOST_SIZE" kvbm:"DYN_KVBM_CPU_CACHE_GB,DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS"`
	HostNodes   string            `group:"Tiers" name:"host-memory-nodes" help:"Memory nodes (NUMA) of new extents of the host tier: those of the GPUs that NVML names (auto), any (off), or a list such as 0,1. One node is preferred, several take pages in turn." default:"auto" env:"BLOCKYARD_HOST_MEMORY_NODES" kvbm:"DYN_MEMORY_DISABLE_NUMA" placeholder:"NODES"`
	DiskDir     string            `group:"Tiers" help:"Directory of the disk tier." default:"/var/lib/blockyard" type:"path" env:"BLOCKYARD_DISK_DIR" kvbm:"DYN_KVBM_DISK_CACHE_DIR"`
	DiskSize    bytesize.Size     `group:"Tiers" help:"Size of the disk tier, such as 1TiB; 0 turns the tier off." default:"0" env:"BLOCKYARD_DISK_SIZE" kvbm:"DYN_KVBM_DISK_CACHE_GB,DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS"`
	ExtentSize  bytesize.Size     `group:"Tiers" help:"Step by which a pool grows, at most 1GiB. 0 chooses by the size of each tier: 64MiB, and more from 256GiB on. A tier that was made with another size than the given one forgets its blocks." default:"0" env:"BLOCKYARD_EXTENT_SIZE"`
	HostRule    string            `group:"Tiers" name:"host-eviction" help:"What a full host tier evicts first. lru: the least recently used block. adaptive: like lru while that has the most hits, else the block that is requested least; resists scans and conversations that take turns." enum:"lru,adaptive" default:"adaptive" env:"BLOCKYARD_HOST_EVICTION"`
	DiskRule    string            `group:"Tiers" name:"disk-eviction" help:"What a full disk tier evicts first: lru or adaptive, as for the host tier." enum:"lru,adaptive" default:"adaptive" env:"BLOCKYARD_DISK_EVICTION"`
	Quota       map[string]uint64 `group:"Tiers" live:"" help:"Share of a model in a tier that several models want; repeatable. Default: 1 each." env:"BLOCKYARD_QUOTA" placeholder:"MODEL=WEIGHT"`
	LimitsFile  string            `group:"Tiers" live:"" name:"limits-file" type:"path" help:"YAML file with how much of the tiers each model and each tenant may have, and how long a tenant's blocks live." env:"BLOCKYARD_LIMITS_FILE" placeholder:"FILE"`
	ScrubRate   bytesize.Size     `group:"Tiers" help:"Bytes per second that the agent verifies of its stored blocks; 0 turns verification off." default:"16MiB" env:"BLOCKYARD_SCRUB_RATE"`
	DiscardHost bool              `group:"Tiers" help:"Remove the host tier's files at an orderly stop. The next agent then starts cold." env:"BLOCKYARD_DISCARD_HOST"`
	NoPrefetch  bool              `group:"Tiers" help:"Leave blocks on disk until a lookup asks for them. By default they move to host memory when a request begins." env:"BLOCKYARD_NO_PREFETCH"`

	DiskFilter        string        `group:"Disk" help:"Blocks that are written to disk: all (none) or those in demand (frequency)." enum:"frequency,none" default:"none" env:"BLOCKYARD_DISK_FILTER" kvbm:"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER"`
	DiskFilterMin     uint32        `group:"Disk" help:"Count at which the filter lets a block pass. The count starts at 1, doubles with each use and falls by --disk-filter-decay." default:"2" env:"BLOCKYARD_DISK_FILTER_MIN"`
	DiskFilterDecay   time.Duration `group:"Disk" help:"Time in which the count of every block falls by 1." default:"10m" env:"BLOCKYARD_DISK_FILTER_DECAY"`
	DiskFilterEntries int           `group:"Disk" help:"Blocks that the filter counts, at about 40 bytes each. 0 means twice the blocks that the tiers hold, at least 1,000,000." default:"0" env:"BLOCKYARD_DISK_FILTER_ENTRIES"`
	DiskWriteBudget   bytesize.Size `group:"Disk" help:"Most bytes that are written to the disk tier in any 24 hours, such as 500GiB, at least 1GiB; 0 sets no bound. The less is left, the more demand a block needs to be written." default:"0" env:"BLOCKYARD_DISK_WRITE_BUDGET"`
	DiskKeyFile       string        `group:"Disk" name:"disk-key-file" type:"path" help:"File with the key that encrypts the disk tier: 32 bytes, 64 hexadecimal digits or base64. The file's owner may write it, its group may read it, other users have no rights. Default: no encryption." env:"BLOCKYARD_DISK_KEY_FILE" placeholder:"FILE"`
	DiskKeyCommand    string        `group:"Disk" name:"disk-key-command" help:"Shell command that writes the key of the disk tier to its standard output within 30s. The agent runs it at the start." env:"BLOCKYARD_DISK_KEY_COMMAND" placeholder:"COMMAND"`
	DiskKeyReset      bool          `group:"Disk" name:"disk-key-reset" help:"Empty a disk tier that was written with another key, or with none. Without this flag the agent refuses such a tier and does not start." env:"BLOCKYARD_DISK_KEY_RESET"`
	DiskQueueDepth    int           `group:"Disk" help:"Concurrent reads of a pool, and concurrent writes, at most 1024. 0 follows the device: 4 for rotating and unknown devices, 16 for each solid-state device, at most 64." default:"0" env:"BLOCKYARD_DISK_QUEUE_DEPTH" kvbm:"DYN_KVBM_MAX_CONCURRENT_TRANSFERS"`
	DiskAllocator     string        `group:"Disk" help:"Moment at which O_DIRECT is set: after a file was opened (default) or by the open call (open-direct, for IBM Storage Scale)." enum:"default,open-direct" default:"default" env:"BLOCKYARD_DISK_ALLOCATOR" kvbm:"DYN_KVBM_DISK_ALLOCATOR_TYPE"`
	DirectIO          string        `group:"Disk" name:"direct-io" help:"Bypass of the page cache: where it works (auto), never (off), or an error where it does not work (require)." enum:"auto,off,require" default:"auto" env:"BLOCKYARD_DIRECT_IO" kvbm:"DYN_KVBM_DISK_DISABLE_O_DIRECT"`
	ZeroFill          bool          `group:"Disk" help:"Write zeros where the file system cannot reserve disk space." env:"BLOCKYARD_ZERO_FILL" kvbm:"DYN_KVBM_DISK_ZEROFILL_FALLBACK"`
	IODeadline        time.Duration `group:"Disk" name:"io-deadline" help:"Time after which a disk operation counts as stalled, at least 1ms." default:"5s" env:"BLOCKYARD_IO_DEADLINE"`

	NATS    string `group:"Events" name:"nats" help:"NATS server to publish events to. Default: NATS_SERVER. Without a server events go over HTTP alone." env:"BLOCKYARD_NATS" placeholder:"URL"`
	Cluster string `group:"Events" help:"Name that separates deployments on one NATS server." default:"default" env:"BLOCKYARD_CLUSTER"`

	eventFlags

	flags []*kong.Flag
	given map[string]bool // flags on the command line
	file  fileValues
}

// BeforeResolve is called by kong before it sets the flags that are not on the command line. It
// reads --config.
func (c *Agent) BeforeResolve(k *kong.Context) (err error) {
	c.file, err = readConfig(k, "agent")
	return err
}

// AfterApply is called by kong when it has parsed the flags. It checks the environment for misspelt
// variables, and records which flags were on the command line: they win over every variable.
func (c *Agent) AfterApply(k *kong.Context) error {
	if err := checkEnvironment(k.Model, os.Environ()); err != nil {
		return err
	}
	c.flags, c.given = k.Flags(), make(map[string]bool)
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			c.given[p.Flag.Name] = true
		}
	}
	return nil
}

// Run starts the agent, writes the ready line with its addresses to standard output, and serves
// until ctx ends.
func (c *Agent) Run(ctx context.Context, b build, from *settingsSource) error {
	level := zap.NewAtomicLevelAt(c.LogLevel.Level)
	log := process.LoggerFrom("agent", level)
	hangups := from.hangups.Take()
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and there is nothing to do about it
	cfg, err := c.configure(os.Environ(), log)
	if err != nil {
		return err
	}
	cfg.Version = b.Version
	a, err := agent.New(ctx, cfg, log)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // told to stop while it started
	}
	if err != nil {
		return err
	}
	ready := struct {
		Ready   bool   `json:"ready"`
		Socket  string `json:"socket"`
		Admin   string `json:"admin"`
		Control string `json:"control"`
	}{true, a.SocketPath(), a.AdminAddr(), a.ControlAddr()}
	if err := process.WriteReady(ready); err != nil {
		return errors.Join(err, a.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	reloads.Go(func() { c.reloader(a, from, level, log).Run(ctx, hangups) })
	defer reloads.Wait()
	defer stop()
	return a.Run(ctx)
}

// reloader returns what takes over the agent's live settings.
func (c *Agent) reloader(a *agent.Agent, from *settingsSource, level zap.AtomicLevel, log *zap.Logger) *process.Reloader {
	live := make(map[string]bool)
	for _, f := range c.flags {
		live[f.Name] = process.IsLive(f)
	}
	return &process.Reloader{
		Log: log, Now: process.ValuesOf(c.flags), Live: func(name string) bool { return live[name] },
		Read: func() (process.Values, func() error, error) {
			root, err := from.parse()
			if err != nil {
				return nil, nil, err
			}
			next := &root.Agent
			cfg, _, err := next.resolveSettings(os.Environ())
			if err != nil {
				return nil, nil, err
			}
			return process.ValuesOf(next.flags), func() error {
				if err := a.Reload(cfg); err != nil {
					return err
				}
				level.SetLevel(next.LogLevel.Level)
				return nil
			}, nil
		},
	}
}

// configure returns the agent's configuration from the flags and environ. It logs each value with
// its source: a flag, a variable, the file or the default.
func (c *Agent) configure(environ []string, log *zap.Logger) (agent.Config, error) {
	cfg, s, err := c.resolveSettings(environ)
	if err != nil {
		return agent.Config{}, err
	}
	for _, w := range s.warnings {
		log.Warn("warning about the environment", zap.String("warning", w))
	}
	fields := make([]zap.Field, 0, len(s.notes))
	for _, n := range s.notes {
		fields = append(fields, zap.String(n.Name, n.Value+" ("+n.Source+")"))
	}
	log.Info("configuration", fields...)
	return cfg, nil
}

// resolveSettings returns the agent's configuration, and each value with its source.
func (c *Agent) resolveSettings(environ []string) (agent.Config, *settings, error) {
	name := c.Node
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return agent.Config{}, nil, fmt.Errorf("node name: %w", err)
		}
	}
	s, err := newSettings(c.flags, c.given, environ)
	if err != nil {
		return agent.Config{}, nil, err
	}
	s.file = c.file
	cfg := agent.Config{
		Node: name, Socket: c.Socket, Admin: c.Admin, Control: c.Control, ControlTokens: c.ControlToken, Cluster: c.Cluster,
		ControlTLS: servertls.Files{Cert: c.ControlCert, Key: c.ControlKey, ClientCA: c.ControlCA},
		AllowUIDs:  c.AllowUID, NoPrefetch: c.NoPrefetch, DrainTimeout: c.DrainTimeout,
		Tiers: node.Tiers{LimitHeap: true, Config: blockmgr.Config{
			HostDir: c.HostDir, ExtentBytes: uint64(c.ExtentSize), Weights: c.Quota, IODeadline: c.IODeadline, ScrubBytesPerSecond: int64(min(c.ScrubRate, math.MaxInt64)),
			DiscardHost: c.DiscardHost,
		}},
	}
	if c.ScrubRate == 0 {
		cfg.Tiers.ScrubBytesPerSecond = -1 // off; 0 would mean the default rate
	}
	if c.LimitsFile != "" {
		if cfg.Limits, err = limits.Load(c.LimitsFile); err != nil {
			return agent.Config{}, nil, fmt.Errorf("--limits-file: %w", err)
		}
	}
	if err := c.takeSizes(s, &cfg); err != nil {
		return agent.Config{}, nil, err
	}
	if err := c.takeHostNodes(s, &cfg); err != nil {
		return agent.Config{}, nil, err
	}
	if err := c.eventFlags.configure(c.NATS, s, &cfg); err != nil {
		return agent.Config{}, nil, err
	}
	c.takeDisk(s, &cfg)
	if err := c.takeKVBM(s, &cfg); err != nil {
		return agent.Config{}, nil, err
	}
	s.note("node", cfg.Node, first(s.source("node")))
	s.note("nats", withoutPassword(c.NATS), first(s.source("nats")))
	s.noteFlags()
	return cfg, s, nil
}
