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
	FullReports   bool     `group:"Events" name:"full-reports" env:"BLOCKYARD_FULL_REPORTS" help:"Declare that the engines send full cache reports (kv_cache_report_mode=full). A block that is announced again is then not counted again."`
	NoCheckpoints bool     `group:"Events" name:"no-checkpoints" env:"BLOCKYARD_NO_CHECKPOINTS" help:"Do not keep beside the socket what engines hold. The next agent then starts without it."`
	WorkerTaints  []string `group:"Events" name:"worker-taints" placeholder:"LABEL" env:"BLOCKYARD_WORKER_TAINTS" help:"Labels of this node's workers that requests may require or prefer, such as a100,zone=1. Default: none."`

	natsFlags

	EmbeddedNATS          string `group:"Embedded NATS" name:"embedded-nats" placeholder:"HOST:PORT" env:"BLOCKYARD_EMBEDDED_NATS" help:"Address of a NATS server inside this agent, for one node. The agent writes the server's URL, with a token, to the socket's path with .nats appended. Default: none."`
	EmbeddedNATSDir       string `group:"Embedded NATS" name:"embedded-nats-dir" type:"path" placeholder:"DIR" env:"BLOCKYARD_EMBEDDED_NATS_DIR" help:"Directory for JetStream of the embedded server. Default: no JetStream."`
	EmbeddedNATSAdvertise string `group:"Embedded NATS" name:"embedded-nats-advertise" placeholder:"HOST" env:"BLOCKYARD_EMBEDDED_NATS_ADVERTISE" help:"Host in the written URL. Default: the host of --embedded-nats, or this machine's name where that host is all addresses."`

	DurableKVEvents bool          `group:"JetStream" name:"durable-kv-events" env:"BLOCKYARD_DURABLE_KV_EVENTS" help:"Keep the events in a JetStream stream of the NATS server."`
	Stream          string        `group:"JetStream" name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of the stream. Default: blockyard-CLUSTER."`
	StreamAge       time.Duration `group:"JetStream" name:"nats-stream-age" default:"1h" env:"BLOCKYARD_NATS_STREAM_AGE" help:"Time for which the stream keeps a message, at least 1s."`
	StreamSize      bytesize.Size `group:"JetStream" name:"nats-stream-size" default:"1GiB" env:"BLOCKYARD_NATS_STREAM_SIZE" help:"Size limit of the stream, at least 1MiB."`
	StreamReplicas  int           `group:"JetStream" name:"nats-stream-replicas" default:"1" env:"BLOCKYARD_NATS_STREAM_REPLICAS" help:"Servers that keep a copy of the stream, 1 to 5."`

	DynamoDiscovery   string `group:"Dynamo's routers" name:"dynamo-discovery" placeholder:"DIR" env:"BLOCKYARD_DYNAMO_DISCOVERY,DYN_FILE_KV" help:"Directory of Dynamo's file discovery backend; with --dynamo-endpoint."`
	DynamoEndpoint    string `group:"Dynamo's routers" name:"dynamo-endpoint" placeholder:"NAMESPACE.COMPONENT.ENDPOINT" env:"BLOCKYARD_DYNAMO_ENDPOINT" help:"Endpoint whose workers the agent announces to Dynamo's routers, such as dynamo.backend.generate. Default: none."`
	DynamoRecovery    string `group:"Dynamo's routers" name:"dynamo-recovery" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_RECOVERY" help:"Address where Dynamo's routers ask for events that they missed. Default: none; the agent then announces every block again from time to time."`
	DynamoAdvertise   string `group:"Dynamo's routers" name:"dynamo-advertise" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_ADVERTISE" help:"Address under which the routers reach --dynamo-recovery, where it differs."`
	DynamoAnyDialBack bool   `group:"Dynamo's routers" name:"dynamo-any-dial-back" env:"BLOCKYARD_DYNAMO_ANY_DIAL_BACK" help:"Send an answer to another host than the one that asks, for routers behind a NAT or with several addresses."`

	ZMQEvents bool          `group:"ZMQ" name:"zmq-events" env:"BLOCKYARD_ZMQ_EVENTS" help:"Publish the blocks that each worker can reach over ZMQ in the engines' format, at the port of the engine's events plus 1000."`
	ZMQMode   string        `group:"ZMQ" name:"zmq-mode" enum:"tiered,dedup,passthrough," default:"" env:"BLOCKYARD_ZMQ_MODE" kvbm:"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE" help:"Tiers in the ZMQ stream: each by itself (tiered, the default), merged into one (dedup, KVBM's default), or the engine's own batches alone (passthrough)."`
	ZMQHost   string        `group:"ZMQ" name:"zmq-host" placeholder:"HOST" default:"*" env:"BLOCKYARD_ZMQ_HOST" help:"Address of the ZMQ stream; * is all addresses of this machine, as in KVBM. Everybody who reaches the port can read the tokens of prompts. An endpoint that the engine names takes precedence."`
	ZMQTokens bytesize.Size `group:"ZMQ" name:"zmq-token-memory" default:"256MiB" env:"BLOCKYARD_ZMQ_TOKEN_MEMORY" help:"Memory for the tokens of blocks, which the ZMQ stream contains."`
}

// configure sets the part of cfg about events and NATS from the flags. url is the NATS server's,
// empty for none. s records the source of each value. The error names the flag that is wrong.
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
	source, kvbm := s.source("zmq-mode")
	o.ZMQMode = f.ZMQMode
	if kvbm {
		o.ZMQMode = s.env.Events.Mode.String()
	}
	s.note("zmq_mode", either(o.ZMQMode == "", proto.ConsolidatorTiered, o.ZMQMode), source)
	o.ZMQ, o.FullReports, o.NoCheckpoints = f.ZMQEvents, f.FullReports, f.NoCheckpoints
	o.ZMQHost, o.TokenMemory, o.EmbeddedAdvertise = f.ZMQHost, int(min(f.ZMQTokens, math.MaxInt)), f.EmbeddedNATSAdvertise
	return nil
}

// checkDependents returns an error for a flag that has no effect because another flag is missing.
// nats is true when an external server is configured.
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
	// Every process of a Dynamo deployment has DYN_FILE_KV, so it is noted and not refused.
	if os.Getenv("DYN_FILE_KV") != "" && !dynamo {
		s.note("dynamo", "off: --dynamo-endpoint is not set", "DYN_FILE_KV")
	}
	if source, _ := s.source("dynamo-discovery"); source != fromDefault && !dynamo {
		return fmt.Errorf("%s %q: has no effect without --dynamo-endpoint", source, f.DynamoDiscovery)
	}
	return nil
}

// embedded returns the options of the NATS server inside the agent. The error is that
// --embedded-nats is not HOST:PORT.
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
