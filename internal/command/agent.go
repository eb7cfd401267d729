package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Agent runs the node agent until its context ends. A variable of KVBM sets a value
// when neither the flag nor Blockyard's variable of the same meaning is given.
type Agent struct {
	Node       string        `help:"Name of this node, unique in the cluster and the same at every start. Default: the host name." env:"BLOCKYARD_NODE" placeholder:"NAME"`
	Socket     string        `help:"Absolute path of the Unix socket that engines connect to." default:"/run/blockyard/agent.sock" env:"BLOCKYARD_SOCKET"`
	Admin      string        `help:"Address of the HTTP server for health, metrics and events. It asks for no password: keep it on loopback or on a network of routers." default:"127.0.0.1:0" env:"BLOCKYARD_ADMIN"`
	Control    string        `help:"Where operators reset, keep and list blocks: the absolute path of a Unix socket for the agent's own user, or HOST:PORT, which asks for no password. Default: the path of --socket followed by .control." env:"BLOCKYARD_CONTROL" placeholder:"ADDRESS"`
	NATS       string        `name:"nats" help:"NATS server to publish events to. Default: NATS_SERVER. Without a server events are served over HTTP only." env:"BLOCKYARD_NATS" placeholder:"URL"`
	Cluster    string        `help:"Name that keeps deployments on one NATS apart." default:"default" env:"BLOCKYARD_CLUSTER"`
	HostDir    string        `help:"Directory of the host tier, on tmpfs or hugetlbfs." default:"/dev/shm/blockyard" type:"path" env:"BLOCKYARD_HOST_DIR"`
	HostSize   bytesize.Size `help:"Size of the host tier, such as 64GiB; 0 turns it off." default:"1GiB" env:"BLOCKYARD_HOST_SIZE"`
	DiskDir    string        `help:"Directory of the disk tier." default:"/var/lib/blockyard" type:"path" env:"BLOCKYARD_DISK_DIR"`
	DiskSize   bytesize.Size `help:"Size of the disk tier, such as 1TiB; 0 turns it off." default:"0" env:"BLOCKYARD_DISK_SIZE"`
	ExtentSize bytesize.Size `help:"Size by which a pool grows, at most 1GiB. 0 follows the size of each tier: 64MiB, and more from 256GiB on. A tier that was made with another size forgets its blocks." default:"0" env:"BLOCKYARD_EXTENT_SIZE"`
	AllowUID   []uint32      `name:"allow-uid" help:"User whose engines may connect; may be given several times. Default: the agent's own user and root. With this flag the socket's mode lets every user connect, and the agent checks the user that the kernel reports." env:"BLOCKYARD_ALLOW_UID" placeholder:"UID"`

	DiskFilter        string            `help:"Which blocks go to disk: those in demand (frequency) or all (none)." enum:"frequency,none" default:"frequency" env:"BLOCKYARD_DISK_FILTER"`
	DiskFilterMin     uint32            `help:"Count at which a block goes to disk. Each request for the block doubles the count; --disk-filter-decay lowers the count." default:"2" env:"BLOCKYARD_DISK_FILTER_MIN"`
	DiskFilterDecay   time.Duration     `help:"Time in which each count of --disk-filter-min falls by 1." default:"10m" env:"BLOCKYARD_DISK_FILTER_DECAY"`
	DiskFilterEntries int               `help:"Blocks that the filter counts, at about 40 bytes each. 0 follows the tiers: twice the blocks that fit them, at least 1,000,000." default:"0" env:"BLOCKYARD_DISK_FILTER_ENTRIES"`
	DiskQueueDepth    int               `help:"Disk reads that each pool has in flight, and as many writes, at most 1024. 0 follows the device: 4 for rotating disks and unknown devices, 16 for each solid-state device, at most 64." default:"0" env:"BLOCKYARD_DISK_QUEUE_DEPTH"`
	DiskAllocator     string            `help:"When O_DIRECT is set on disk files: after opening (default), or with open (open-direct, for IBM Storage Scale)." enum:"default,open-direct" default:"default" env:"BLOCKYARD_DISK_ALLOCATOR"`
	DirectIO          string            `name:"direct-io" help:"Whether disk files bypass the page cache: where the file system allows it (auto), never (off), or refuse to start where it does not (require)." enum:"auto,off,require" default:"auto" env:"BLOCKYARD_DIRECT_IO"`
	ZeroFill          bool              `help:"Write zeros where the file system cannot reserve disk space." env:"BLOCKYARD_ZERO_FILL"`
	IODeadline        time.Duration     `name:"io-deadline" help:"How long a disk operation may take before the disk counts as stalled, at least 1ms." default:"5s" env:"BLOCKYARD_IO_DEADLINE"`
	ScrubRate         bytesize.Size     `help:"Bytes a second at which the agent verifies stored blocks in the background; 0 turns that off." default:"16MiB" env:"BLOCKYARD_SCRUB_RATE"`
	Quota             map[string]uint64 `help:"Share of a model in a tier that several models fill, 1 by default; may be given several times." env:"BLOCKYARD_QUOTA" placeholder:"MODEL=WEIGHT"`
	DiscardHost       bool              `help:"Remove the host tier's files at an orderly stop, so that the next agent starts cold." env:"BLOCKYARD_DISCARD_HOST"`
	NoPrefetch        bool              `help:"Leave blocks on disk until they are looked up, instead of fetching them when a request begins." env:"BLOCKYARD_NO_PREFETCH"`
	DrainTimeout      time.Duration     `name:"drain-timeout" help:"How long a stopping agent waits for engines to finish copies and disconnect, at most 1h; 0 does not wait." default:"2s" env:"BLOCKYARD_DRAIN_TIMEOUT"`
	KVBMMetrics       string            `name:"kvbm-metrics" help:"Address at which to serve metrics under KVBM's names. Default: none." env:"BLOCKYARD_KVBM_METRICS" placeholder:"HOST:PORT"`

	eventFlags

	given map[string]bool // flags on the command line
}

// AfterApply checks the environment and notes which flags were on the command line.
// A flag wins over every variable.
func (c *Agent) AfterApply(k *kong.Context) error {
	if err := checkEnvironment(k.Model, os.Environ()); err != nil {
		return err
	}
	c.given = make(map[string]bool)
	for _, p := range k.Path {
		if p.Flag != nil {
			c.given[p.Flag.Name] = true
		}
	}
	return nil
}

// Run starts the agent, says that it is ready and serves until ctx ends.
func (c *Agent) Run(ctx context.Context) error {
	log, err := NewLogger("agent")
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and there is nothing to do about it
	cfg, err := c.configure(os.Environ(), log)
	if err != nil {
		return err
	}
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
	if err := WriteReady(ready); err != nil {
		return errors.Join(err, a.Close())
	}
	return a.Run(ctx)
}

// configure returns what flags and environ make of an agent; the log gets each value
// with its source.
func (c *Agent) configure(environ []string, log *zap.Logger) (agent.Config, error) {
	node := c.Node
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return agent.Config{}, fmt.Errorf("node name: %w", err)
		}
	}
	s, err := newSettings(c.given, environ)
	if err != nil {
		return agent.Config{}, err
	}
	cfg := agent.Config{
		Node: node, Socket: c.Socket, Admin: c.Admin, Control: c.Control, Cluster: c.Cluster,
		AllowUIDs: c.AllowUID, NoPrefetch: c.NoPrefetch, DrainTimeout: c.DrainTimeout, LimitHeap: true,
		Tiers: blockmgr.Config{
			HostDir: c.HostDir, ExtentBytes: uint64(c.ExtentSize), Weights: c.Quota, IODeadline: c.IODeadline, ScrubBytesPerSecond: int64(min(c.ScrubRate, math.MaxInt64)),
			DiscardHost: c.DiscardHost,
		},
	}
	if c.ScrubRate == 0 {
		cfg.Tiers.ScrubBytesPerSecond = -1
	}
	if err := c.takeSizes(s, &cfg); err != nil {
		return agent.Config{}, err
	}
	if err := c.eventFlags.configure(c.NATS, s, &cfg); err != nil {
		return agent.Config{}, err
	}
	c.takeDisk(s, &cfg)
	if err := c.takeKVBM(s, &cfg); err != nil {
		return agent.Config{}, err
	}
	c.noteOthers(s, &cfg)
	c.eventFlags.note(s)
	for _, w := range s.warnings {
		log.Warn("environment", zap.String("warning", w))
	}
	log.Info("configuration", s.fields...)
	return cfg, nil
}
