package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/agent/engine"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/limits"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/servertls"
)

const (
	// DefaultCluster is Config.Cluster when it is empty.
	DefaultCluster = "default"
	// DefaultAdmin is Config.Admin when it is empty: loopback, any free port.
	DefaultAdmin = "127.0.0.1:0"
	// DefaultMaxRequests is Config.MaxRequests when it is zero.
	DefaultMaxRequests = 4096
	// DefaultMaxPins is Config.MaxPins when it is zero.
	DefaultMaxPins = 65536
	// maxSocketPath is the longest path in the address of a Unix socket.
	maxSocketPath = 107
	maxNodeName   = 253
	// minIODeadline is the least Tiers.IODeadline other than 0: no disk answers sooner.
	minIODeadline = time.Millisecond
)

// Config configures an agent. Node and Socket must be set; the zero value of every other field
// is its documented default.
type Config struct {
	// Node names this node. The ids of pools are made from it: it must be unique in the
	// cluster and stay the same from start to start.
	Node string
	// Socket is the path of the Unix socket for engines. Its directory is made when absent.
	Socket string
	// Admin is the address of the HTTP server for health, metrics and events, default
	// 127.0.0.1:0. It has no login: use loopback or a network of routers.
	Admin string
	// Control is where operators reset, keep and list blocks: the absolute path of a Unix
	// socket for the agent's own user, or HOST:PORT. Default: Socket plus ".control".
	Control string
	// ControlTokens is the file with the tokens of operators; see control.ReadTokens. Empty: Control
	// asks for none.
	ControlTokens string
	// ControlTLS has the certificates of Control, which is HOST:PORT then. The zero Files are no TLS.
	ControlTLS servertls.Files
	// NATSURL names the NATS servers for events: nats:// or tls:// URLs, separated by commas.
	// Empty: no NATS.
	NATSURL string
	// Cluster separates deployments on one NATS, default "default".
	Cluster string
	// Tiers is the host and the disk tier of the node. Engines bring the models. New
	// sets Sink, Filter, Budget, Log and the bounds of pins. IODeadline is 0 or at least 1 ms.
	Tiers node.Tiers
	// NearGPUs sets Tiers.HostNodes to the memory nodes of the node's GPUs, on a machine with several
	// memory nodes.
	NearGPUs bool
	// Limits say how much of the tiers models and tenants may have.
	Limits limits.Limits
	// DiskFilter writes a block to disk only after it was stored or hit often enough
	// recently; Frequency has the thresholds. Without DiskFilter every block is written, as far as
	// DiskWriteBudget allows.
	DiskFilter bool
	Frequency  policy.FrequencyOptions
	// DiskWriteBudget is how many bytes the disk tier is written in any 24 hours, 0 for no bound, else at
	// least policy.LeastWriteBudget. The emptier the budget, the more demand a block needs to be written.
	DiskWriteBudget uint64
	// DiskKey is the source of the key that encrypts the disk tier. The zero value means no encryption. New
	// loads the key. Tiers.DiskKeyReset empties a tier that was written with another key, or with none.
	DiskKey sealed.Source
	// AllowUIDs are the users whose processes may connect; default the agent's own user and
	// root. With any other user the mode of the socket, and of a directory that the agent
	// makes for it, admits everybody. The agent then refuses connections by the kernel's
	// credentials of the peer.
	AllowUIDs []uint32
	// MaxRequests bounds the open requests of a session, default 4096. MaxPins bounds its
	// pinned blocks, default 65536.
	MaxRequests int
	MaxPins     int
	// SendTimeout is the time after which an unread frame closes a client's connection,
	// default 2 s.
	SendTimeout time.Duration
	// DrainTimeout is the time that a stopping agent gives engines to finish copies and say BYE
	// before it closes their connections; 0 closes them at once.
	DrainTimeout time.Duration
	// MinPriority is the least retention priority of blocks that are stored. A block below it
	// also keeps the later blocks of its request out.
	MinPriority uint32
	// NoPrefetch leaves blocks on disk until a LOOKUP asks for them. By default they begin to
	// move to host memory when a router says that a request is on its way, or when a request's
	// tokens arrive.
	NoPrefetch bool
	// Events says how engines' events are followed and where events are published.
	Events events.Options
	// KVBM serves metrics for dashboards made for KVBM.
	KVBM KVBMOptions
	// Version is the program's version in the metrics.
	Version string
}

// KVBMOptions serve KVBM's metrics and log hit rates.
type KVBMOptions struct {
	// Metrics is the address of KVBM's metrics, at /metrics; empty for none.
	Metrics string
	// HitRateRequests is the number of requests that hit rates span, default 1000.
	HitRateRequests int
	// LogHitRates logs the hit rates when they change, at most once every LogInterval.
	LogHitRates bool
	LogInterval time.Duration
}

// withDefaults returns c with the defaults of its zero fields.
func (c Config) withDefaults() Config {
	c.Admin = cmp.Or(c.Admin, DefaultAdmin)
	c.Control = cmp.Or(c.Control, c.defaultControl())
	c.Cluster = cmp.Or(c.Cluster, DefaultCluster)
	if len(c.AllowUIDs) == 0 {
		c.AllowUIDs = []uint32{0, uint32(os.Getuid())}
	}
	c.MaxRequests = cmp.Or(c.MaxRequests, DefaultMaxRequests)
	c.MaxPins = cmp.Or(c.MaxPins, DefaultMaxPins)
	return c
}

// defaultControl returns the default of Control.
func (c *Config) defaultControl() string { return c.Socket + ".control" }

// tiers returns the tiers with the bounds of pins, without sink, filter and log.
func (c *Config) tiers() node.Tiers {
	t := c.Tiers
	t.MaxPinsPerSession, t.SharePins = c.MaxPins, true
	return t
}

// events and engine return the configurations of the parts.
func (c *Config) events() events.Config {
	return events.Config{
		NoReadAhead: c.NoPrefetch,
		Options:     c.Events, Node: c.Node, Cluster: c.Cluster, NATSURL: c.NATSURL,
		URLFile: c.Socket + ".nats", CheckpointDir: c.Socket + ".ranks",
	}
}

func (c *Config) engine() engine.Config {
	return engine.Config{
		AllowUIDs: c.AllowUIDs, MaxRequests: c.MaxRequests, MaxPins: c.MaxPins, MinPriority: c.MinPriority,
		NoPrefetch: c.NoPrefetch, SendTimeout: c.SendTimeout, HitRateRequests: c.KVBM.HitRateRequests,
	}
}

// Validate checks every field. The error names the first bad one and shows no credentials. New
// finds what only use can tell, such as a directory that cannot be written.
func (c *Config) Validate() error {
	if n := len(c.Node); n == 0 || n > maxNodeName {
		return fmt.Errorf("node name %.64q: %d bytes, want 1..%d", c.Node, n, maxNodeName)
	}
	if n := len(c.Socket); n == 0 || n > maxSocketPath {
		return fmt.Errorf("socket path %q: %d bytes, want 1..%d", c.Socket, n, maxSocketPath)
	}
	if !filepath.IsAbs(c.Socket) {
		return fmt.Errorf("socket path %q: must be absolute", c.Socket)
	}
	if err := c.validateListeners(); err != nil {
		return err
	}
	published := c.events()
	if err := published.Validate(); err != nil {
		return err
	}
	if c.MaxRequests < 0 || c.MaxRequests > 1<<20 {
		return fmt.Errorf("requests per session %d: want 0 (default %d) to %d", c.MaxRequests, DefaultMaxRequests, 1<<20)
	}
	if c.MaxPins < 0 || c.MaxPins > 1<<24 {
		return fmt.Errorf("pins per session %d: want 0 (default %d) to %d", c.MaxPins, DefaultMaxPins, 1<<24)
	}
	if c.SendTimeout < 0 {
		return fmt.Errorf("send timeout %v: want 0 (default) or more", c.SendTimeout)
	}
	if c.DrainTimeout < 0 || c.DrainTimeout > proto.MaxDrainMillis*time.Millisecond {
		return fmt.Errorf("drain timeout %v: want 0 (none) to %v", c.DrainTimeout, proto.MaxDrainMillis*time.Millisecond)
	}
	if c.KVBM.HitRateRequests < 0 || c.KVBM.HitRateRequests > 1<<20 {
		return fmt.Errorf("requests of hit rates %d: want 0 (default %d) to %d", c.KVBM.HitRateRequests, engine.DefaultHitRateRequests, 1<<20)
	}
	if c.KVBM.LogInterval < 0 {
		return fmt.Errorf("log interval of hit rates %v: want 0 or more", c.KVBM.LogInterval)
	}
	if d := c.Tiers.IODeadline; d != 0 && d < minIODeadline {
		return fmt.Errorf("I/O deadline %v: want 0 (default) or at least %v", d, minIODeadline)
	}
	if err := c.Frequency.Validate(); err != nil {
		return err
	}
	if b := c.DiskWriteBudget; b != 0 && b < policy.LeastWriteBudget {
		return fmt.Errorf("disk write budget %v: want 0 (none) or at least %v a day", bytesize.Size(b), bytesize.Size(policy.LeastWriteBudget))
	}
	if err := c.validateDiskKey(); err != nil {
		return err
	}
	tiers := c.tiers()
	return tiers.Validate()
}

// validateDiskKey checks the source of the key, which New reads.
func (c *Config) validateDiskKey() error {
	if (c.DiskKey.Given() || c.Tiers.DiskKeyReset) && !c.Tiers.Sizes()[1].On() {
		return errors.New("disk key: the disk size is 0: set a disk size, or remove the key and the reset")
	}
	return c.DiskKey.Validate()
}

// validateListeners checks the addresses of the HTTP listeners.
func (c *Config) validateListeners() error {
	if err := checkAddress("admin address", c.Admin); err != nil {
		return err
	}
	if n := len(c.defaultControl()); c.Control == "" && n > maxSocketPath {
		return fmt.Errorf("control address %q: %d bytes, want 1..%d; a shorter socket path, or another control address", c.defaultControl(), n, maxSocketPath)
	}
	if err := c.ControlTLS.Validate(); err != nil {
		return fmt.Errorf("control address: %w", err)
	}
	if encrypted := c.ControlTLS.Cert != ""; encrypted || c.Control != "" {
		if err := control.Check(c.Control, encrypted); err != nil {
			return err
		}
	}
	return checkAddress("KVBM metrics address", c.KVBM.Metrics)
}

// checkAddress checks the address of an HTTP server. It may be empty.
func checkAddress(name, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q: want HOST:PORT", name, address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s %q: port %q: want 0 (any free one) to 65535", name, address, port)
	}
	return nil
}

// allowsOthers reports whether users other than root and the agent's own may connect.
func (c *Config) allowsOthers() bool {
	return slices.ContainsFunc(c.AllowUIDs, func(uid uint32) bool { return uid != 0 && uid != uint32(os.Getuid()) })
}
