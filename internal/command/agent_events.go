package command

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// eventFlags are the flags of "blockyard agent" about events: how engines' events are
// followed, and where events are published.
type eventFlags struct {
	natsFlags

	EmbeddedNATS          string `name:"embedded-nats" placeholder:"HOST:PORT" env:"BLOCKYARD_EMBEDDED_NATS" help:"Run a NATS server inside this agent, for one node. The file named as --socket followed by .nats gets its URL, token included. Default: none."`
	EmbeddedNATSDir       string `name:"embedded-nats-dir" type:"path" placeholder:"DIR" env:"BLOCKYARD_EMBEDDED_NATS_DIR" help:"Directory for the JetStream of the embedded server. Default: no JetStream."`
	EmbeddedNATSAdvertise string `name:"embedded-nats-advertise" placeholder:"HOST" env:"BLOCKYARD_EMBEDDED_NATS_ADVERTISE" help:"Host in the URL of the embedded server. Default: the host of --embedded-nats, or this machine's name when the server listens on all addresses."`

	DurableKVEvents bool          `name:"durable-kv-events" env:"BLOCKYARD_DURABLE_KV_EVENTS" help:"Keep events in a JetStream stream of the NATS server."`
	Stream          string        `name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of the JetStream stream. Default: blockyard-CLUSTER."`
	StreamAge       time.Duration `name:"nats-stream-age" default:"1h" env:"BLOCKYARD_NATS_STREAM_AGE" help:"How long the stream keeps a message, at least 1s."`
	StreamSize      bytesize.Size `name:"nats-stream-size" default:"1GiB" env:"BLOCKYARD_NATS_STREAM_SIZE" help:"Bytes that the stream keeps, at least 1MiB."`
	StreamReplicas  int           `name:"nats-stream-replicas" default:"1" env:"BLOCKYARD_NATS_STREAM_REPLICAS" help:"Servers that keep the stream, 1 to 5."`

	DynamoDiscovery   string `name:"dynamo-discovery" placeholder:"DIR" env:"BLOCKYARD_DYNAMO_DISCOVERY,DYN_FILE_KV" help:"Directory of Dynamo's file discovery backend; with --dynamo-endpoint."`
	DynamoEndpoint    string `name:"dynamo-endpoint" placeholder:"NAMESPACE.COMPONENT.ENDPOINT" env:"BLOCKYARD_DYNAMO_ENDPOINT" help:"Publish the blocks of this endpoint's workers to Dynamo's routers, such as dynamo.backend.generate. Default: none."`
	DynamoRecovery    string `name:"dynamo-recovery" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_RECOVERY" help:"Address at which Dynamo's routers ask for missed events. Default: none; all blocks are then published again from time to time."`
	DynamoAdvertise   string `name:"dynamo-advertise" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_ADVERTISE" help:"Address of --dynamo-recovery as routers see it, where it differs."`
	DynamoAnyDialBack bool   `name:"dynamo-any-dial-back" env:"BLOCKYARD_DYNAMO_ANY_DIAL_BACK" help:"Let a router name another host for the answer than the host it asks from, as behind a NAT or with several addresses."`

	ZMQEvents bool          `name:"zmq-events" env:"BLOCKYARD_ZMQ_EVENTS" help:"Publish over ZMQ, in vLLM's format, the blocks of each worker and its pool. The port is the port of the engine's events plus 1000."`
	ZMQMode   string        `name:"zmq-mode" enum:"tiered,dedup,passthrough," default:"" env:"BLOCKYARD_ZMQ_MODE" help:"How the ZMQ stream shows tiers: each tier (tiered, the default), all tiers as one (dedup, KVBM's default), or the engine's own batches only (passthrough)."`
	ZMQHost   string        `name:"zmq-host" placeholder:"HOST" default:"*" env:"BLOCKYARD_ZMQ_HOST" help:"Address of the ZMQ stream; * is every address of this machine, as in KVBM. Everybody who can connect to the port can read the tokens of prompts. An engine that names an endpoint overrides this."`
	ZMQTokens bytesize.Size `name:"zmq-token-memory" default:"256MiB" env:"BLOCKYARD_ZMQ_TOKEN_MEMORY" help:"Memory for the tokens of blocks, which the ZMQ format carries."`

	WorkerTaints []string `name:"worker-taints" placeholder:"LABEL" env:"BLOCKYARD_WORKER_TAINTS" help:"Labels of this node's workers that requests may require or prefer, such as a100,zone=1. Default: none."`

	FullReports   bool `name:"full-reports" env:"BLOCKYARD_FULL_REPORTS" help:"The engines' requests ask for full cache reports (kv_cache_report_mode=full): blocks that are announced again are not counted again."`
	NoCheckpoints bool `name:"no-checkpoints" env:"BLOCKYARD_NO_CHECKPOINTS" help:"Do not write checkpoints of the engines' blocks beside the socket for the next agent."`
}

// configure sets the events part of cfg. url is the NATS server's, empty for none.
func (f *eventFlags) configure(url string, s *settings, cfg *agent.Config) (err error) {
	o := &cfg.Events
	if f.EmbeddedNATS == "" {
		if cfg.NATSURL, o.Auth, err = f.resolve(url); err != nil {
			return err
		}
	} else {
		// The agent logs in to its own server with its own token. Settings for other
		// servers do not apply.
		if url != "" {
			return fmt.Errorf("--embedded-nats %q: want no --nats besides", f.EmbeddedNATS)
		}
		if err := f.unused("--nats; the agent logs in to its embedded server by itself"); err != nil {
			return err
		}
		if o.Embedded, err = f.embedded(); err != nil {
			return err
		}
	}
	if f.DurableKVEvents {
		o.JetStream = &nats.JetStream{
			Stream: f.Stream, MaxAge: f.StreamAge, MaxBytes: int64(f.StreamSize), Replicas: f.StreamReplicas,
		}
	}
	if err := f.checkDependents(s, cfg.NATSURL != ""); err != nil {
		return err
	}
	if f.DynamoEndpoint != "" {
		name := strings.Split(f.DynamoEndpoint, ".")
		if len(name) != 3 {
			return fmt.Errorf("--dynamo-endpoint %q: want NAMESPACE.COMPONENT.ENDPOINT", f.DynamoEndpoint)
		}
		if f.DynamoDiscovery == "" {
			return fmt.Errorf("--dynamo-endpoint %q: --dynamo-discovery is required with it", f.DynamoEndpoint)
		}
		o.Dynamo = &dynamo.Options{
			Namespace: name[0], Component: name[1], Endpoint: name[2],
			FileKV: f.DynamoDiscovery, Recovery: f.DynamoRecovery, Advertise: f.DynamoAdvertise,
			AnyDialBack: f.DynamoAnyDialBack,
		}
	}
	if o.WorkerTaints, err = kvevent.NewTaints(f.WorkerTaints); err != nil {
		return fmt.Errorf("--worker-taints: %w", err)
	}
	source, kvbm := s.source("zmq-mode", "DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE")
	o.ZMQMode = f.ZMQMode
	if kvbm {
		o.ZMQMode = s.env.Events.Mode.String()
	}
	s.note("zmq_mode", either(o.ZMQMode == "", proto.ConsolidatorTiered, o.ZMQMode), source)
	o.ZMQ, o.FullReports, o.NoCheckpoints = f.ZMQEvents, f.FullReports, f.NoCheckpoints
	o.ZMQHost, o.TokenMemory, o.EmbeddedAdvertise = f.ZMQHost, int(min(f.ZMQTokens, math.MaxInt)), f.EmbeddedNATSAdvertise
	return nil
}

// checkDependents refuses flags that have no effect without another flag. nats is true
// when an external server is configured.
func (f *eventFlags) checkDependents(s *settings, nats bool) error {
	embedded, dynamo := f.EmbeddedNATS != "", f.DynamoEndpoint != ""
	for _, d := range []struct {
		flag string
		bad  bool
		want string
	}{
		{"embedded-nats-dir", f.EmbeddedNATSDir != "" && !embedded, "--embedded-nats, whose JetStream it is for"},
		{"embedded-nats-advertise", f.EmbeddedNATSAdvertise != "" && !embedded, "--embedded-nats, whose URL it is for"},
		{"durable-kv-events", f.DurableKVEvents && !nats && !embedded, "--nats, or --embedded-nats with --embedded-nats-dir"},
		{"durable-kv-events", f.DurableKVEvents && embedded && f.EmbeddedNATSDir == "", "--embedded-nats-dir, without which that server has no JetStream"},
		{"dynamo-recovery", f.DynamoRecovery != "" && !dynamo, "--dynamo-endpoint"},
		{"dynamo-advertise", f.DynamoAdvertise != "" && !dynamo, "--dynamo-endpoint"},
		{"dynamo-any-dial-back", f.DynamoAnyDialBack && !dynamo, "--dynamo-endpoint"},
		{"dynamo-endpoint", dynamo && !nats && !embedded, "--nats or --embedded-nats, over which Dynamo's routers are told"},
	} {
		if d.bad {
			return fmt.Errorf("--%s: has no effect without %s", d.flag, d.want)
		}
	}
	// DYN_FILE_KV is set in every process of a Dynamo deployment and asks for nothing.
	if source, _ := s.source("dynamo-discovery"); source != fromDefault && !dynamo {
		return fmt.Errorf("%s %q: has no effect without --dynamo-endpoint", source, f.DynamoDiscovery)
	}
	return nil
}

// embedded returns the options of the NATS server inside the agent.
func (f *eventFlags) embedded() (*nats.EmbeddedOptions, error) {
	host, port, err := net.SplitHostPort(f.EmbeddedNATS)
	if err != nil {
		return nil, fmt.Errorf("--embedded-nats %q: want HOST:PORT", f.EmbeddedNATS)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--embedded-nats %q: port %q: want 0 (any free one) to 65535", f.EmbeddedNATS, port)
	}
	return &nats.EmbeddedOptions{Host: host, Port: int(n), StoreDir: f.EmbeddedNATSDir}, nil
}

// note adds the flags and their sources to the log line.
func (f *eventFlags) note(s *settings) {
	for _, v := range []struct {
		flag  string
		value any
	}{
		{"embedded-nats", f.EmbeddedNATS}, {"embedded-nats-dir", f.EmbeddedNATSDir}, {"embedded-nats-advertise", f.EmbeddedNATSAdvertise}, {"durable-kv-events", f.DurableKVEvents}, {"nats-stream", f.Stream}, {"nats-stream-age", f.StreamAge},
		{"nats-stream-size", f.StreamSize}, {"nats-stream-replicas", f.StreamReplicas},
		{"dynamo-discovery", f.DynamoDiscovery}, {"dynamo-endpoint", f.DynamoEndpoint},
		{"dynamo-recovery", f.DynamoRecovery}, {"dynamo-advertise", f.DynamoAdvertise}, {"dynamo-any-dial-back", f.DynamoAnyDialBack},
		{"zmq-events", f.ZMQEvents}, {"zmq-host", f.ZMQHost}, {"zmq-token-memory", f.ZMQTokens}, {"worker-taints", strings.Join(f.WorkerTaints, ",")}, {"full-reports", f.FullReports}, {"no-checkpoints", f.NoCheckpoints},
	} {
		source, _ := s.source(v.flag)
		s.note(strings.ReplaceAll(v.flag, "-", "_"), v.value, source)
	}
	if os.Getenv("DYN_FILE_KV") != "" && f.DynamoEndpoint == "" {
		s.note("dynamo", "off: --dynamo-endpoint is not set", "DYN_FILE_KV")
	}
}
