package events

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// Config says what a node's hub publishes, and where.
type Config struct {
	Options
	// Node names the node, Cluster keeps deployments on one NATS apart.
	Node, Cluster string
	// NATSURL is where events are published, empty for nowhere.
	NATSURL string
	// URLFile keeps the URL of the embedded NATS server, CheckpointDir the checkpoints of
	// ranks.
	URLFile, CheckpointDir string
}

// Validate checks the options and the addresses; the error shows no credentials.
func (c *Config) Validate() error {
	if c.Cluster != "" {
		if err := kvevent.CheckCluster(c.Cluster); err != nil {
			return err
		}
	}
	if c.NATSURL != "" {
		o := c.natsOptions()
		if err := o.Validate(); err != nil {
			return err
		}
	}
	return c.Options.validate(c.NATSURL != "")
}

// natsOptions is what the publisher is told, but for its log.
func (c *Config) natsOptions() nats.Options {
	return nats.Options{
		URL: c.NATSURL, Cluster: c.Cluster, Name: "blockyard agent " + c.Node, Node: c.Node,
		Auth: c.Auth, JetStream: c.JetStream,
	}
}

// Options are how events are followed and where they are told. The zero value
// is the default.
type Options struct {
	// Auth is how to log in to NATS and whom to trust there; JetStream has a stream
	// keep what is published there, nil for none.
	Auth      natsauth.Settings
	JetStream *nats.JetStream
	// Embedded has the agent run a NATS server, over which events go when no URL is
	// set; nil for none. Its URL is written to the socket's path with .nats behind it,
	// for routers and other agents.
	Embedded *nats.EmbeddedOptions
	// EmbeddedAdvertise is the host in that URL; default: the one that the server listens
	// on, or the machine's name where that is all addresses.
	EmbeddedAdvertise string
	// Dynamo has Dynamo's routers told, over the same NATS; nil for none. Its Log is
	// the agent's.
	Dynamo *dynamo.Options
	// ZMQ publishes what each rank can reach in the engines' own format, at the port of
	// the engine's events plus 1000. An engine that names another endpoint in its HELLO
	// has it there in any case.
	ZMQ bool
	// ZMQMode is how that stream names and merges blocks, for engines that do not say:
	// one of the proto.Consolidator… constants, default tiered.
	ZMQMode string
	// ZMQHost is the host of the addresses at which the agent publishes so of its own
	// accord, not because an engine names one; default *, all addresses of the node, as
	// KVBM has it.
	ZMQHost string
	// TokenMemory bounds, in bytes, the tokens of blocks that such streams need; default
	// 256 MiB for the node.
	TokenMemory int
	// WorkerTaints are the labels of the node's workers, which routers are told.
	WorkerTaints kvevent.Taints
	// FullReports: see consolidator.RankConfig.
	FullReports bool
	// NoCheckpoints has an agent know nothing of what its engines held before it
	// started, until their events say it. By default it is kept beside the socket.
	NoCheckpoints bool
}

func (o *Options) validate(nats bool) error {
	modes := []string{"", proto.ConsolidatorTiered, proto.ConsolidatorDedup, proto.ConsolidatorPassthrough}
	if !slices.Contains(modes, o.ZMQMode) {
		return fmt.Errorf("mode of the events in the engines' format %q: want one of %q", o.ZMQMode, modes[1:])
	}
	if strings.ContainsAny(o.ZMQHost, ":/ ") && net.ParseIP(o.ZMQHost) == nil {
		return fmt.Errorf("host of the events in the engines' format %q: want an address, a name, an interface or *", o.ZMQHost)
	}
	if o.TokenMemory < 0 {
		return fmt.Errorf("memory for tokens %d: want 0 (default) or more", o.TokenMemory)
	}
	if o.Embedded != nil && nats {
		return errors.New("embedded NATS server: want no NATS URL besides")
	}
	if o.Dynamo == nil {
		return nil
	}
	if !nats && o.Embedded == nil {
		return errors.New("events for Dynamo's routers: want a NATS URL, over which they go")
	}
	return o.Dynamo.Validate()
}
