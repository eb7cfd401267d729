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

// eventFlags are the flags of "blockyard agent" that say how events are followed and
// where they are told.
type eventFlags struct {
	natsFlags

	EmbeddedNATS          string `name:"embedded-nats" placeholder:"HOST:PORT" env:"BLOCKYARD_EMBEDDED_NATS" help:"Run a NATS server inside this agent, for one node; its URL, with a token, is written to the socket's path with .nats behind it. Default: none."`
	EmbeddedNATSDir       string `name:"embedded-nats-dir" type:"path" placeholder:"DIR" env:"BLOCKYARD_EMBEDDED_NATS_DIR" help:"Directory of that server's JetStream. Default: it has none."`
	EmbeddedNATSAdvertise string `name:"embedded-nats-advertise" placeholder:"HOST" env:"BLOCKYARD_EMBEDDED_NATS_ADVERTISE" help:"Host in the URL that is written. Default: that of --embedded-nats, or the name of this machine where that one is all addresses."`

	DurableKVEvents bool          `name:"durable-kv-events" env:"BLOCKYARD_DURABLE_KV_EVENTS" help:"Have a JetStream stream of the NATS server keep the events."`
	Stream          string        `name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of that stream. Default: blockyard-CLUSTER."`
	StreamAge       time.Duration `name:"nats-stream-age" default:"1h" env:"BLOCKYARD_NATS_STREAM_AGE" help:"How long that stream keeps a message, at least 1s."`
	StreamSize      bytesize.Size `name:"nats-stream-size" default:"1GiB" env:"BLOCKYARD_NATS_STREAM_SIZE" help:"How much that stream keeps, at least 1MiB."`
	StreamReplicas  int           `name:"nats-stream-replicas" default:"1" env:"BLOCKYARD_NATS_STREAM_REPLICAS" help:"On how many servers it is kept, 1 to 5."`

	DynamoDiscovery   string `name:"dynamo-discovery" placeholder:"DIR" env:"BLOCKYARD_DYNAMO_DISCOVERY,DYN_FILE_KV" help:"Directory of Dynamo's file discovery backend; with --dynamo-endpoint."`
	DynamoEndpoint    string `name:"dynamo-endpoint" placeholder:"NAMESPACE.COMPONENT.ENDPOINT" env:"BLOCKYARD_DYNAMO_ENDPOINT" help:"Have Dynamo's routers told what the workers of this endpoint hold, such as dynamo.backend.generate. Default: none."`
	DynamoRecovery    string `name:"dynamo-recovery" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_RECOVERY" help:"Address at which those routers ask for what they missed. Default: none, and everything is said again from time to time."`
	DynamoAdvertise   string `name:"dynamo-advertise" placeholder:"HOST:PORT" env:"BLOCKYARD_DYNAMO_ADVERTISE" help:"That address as the routers reach it, where it is another."`
	DynamoAnyDialBack bool   `name:"dynamo-any-dial-back" env:"BLOCKYARD_DYNAMO_ANY_DIAL_BACK" help:"Let a router have its answer sent to another host than the one that asks, as behind a NAT or with several addresses."`

	ZMQEvents bool          `name:"zmq-events" env:"BLOCKYARD_ZMQ_EVENTS" help:"Publish what each worker can reach in the engines' own format over ZMQ, at the port of the engine's events plus 1000."`
	ZMQMode   string        `name:"zmq-mode" enum:"tiered,dedup,passthrough," default:"" env:"BLOCKYARD_ZMQ_MODE" help:"How that stream shows tiers: as they are (tiered, the default), as one (dedup, KVBM's default), or the engine's own batches alone (passthrough)."`
	ZMQHost   string        `name:"zmq-host" placeholder:"HOST" default:"*" env:"BLOCKYARD_ZMQ_HOST" help:"Address to publish that at; * is all of this machine, as KVBM has it. Anybody who reaches the port can read the tokens of prompts. An engine that names an endpoint has that."`
	ZMQTokens bytesize.Size `name:"zmq-token-memory" default:"256MiB" env:"BLOCKYARD_ZMQ_TOKEN_MEMORY" help:"Memory for the tokens of blocks, which that format has in it."`

	WorkerTaints []string `name:"worker-taints" placeholder:"LABEL" env:"BLOCKYARD_WORKER_TAINTS" help:"Labels of this node's workers, which requests may require or prefer, such as a100,zone=1. Default: none."`

	FullReports   bool `name:"full-reports" env:"BLOCKYARD_FULL_REPORTS" help:"Requests of the engines ask for full cache reports (kv_cache_report_mode=full): what is announced again is not counted again."`
	NoCheckpoints bool `name:"no-checkpoints" env:"BLOCKYARD_NO_CHECKPOINTS" help:"Do not keep beside the socket what engines hold, for the next agent."`
}

// configure sets what the flags say; url is that of the NATS server, empty for none.
func (f *eventFlags) configure(url string, s *settings, cfg *agent.Config) (err error) {
	o := &cfg.Events
	if f.EmbeddedNATS == "" {
		if cfg.NATSURL, o.Auth, err = f.resolve(url); err != nil {
			return err
		}
	} else {
		// The agent logs in to its own server by its own token: what the environment says
		// of others does not matter.
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

// checkDependents refuses flags that have no effect without another one; nats says that
// there is a server outside.
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
	// DYN_FILE_KV is there in every process of a Dynamo deployment, and asks for nothing.
	if source, _ := s.source("dynamo-discovery"); source != fromDefault && !dynamo {
		return fmt.Errorf("%s %q: has no effect without --dynamo-endpoint", source, f.DynamoDiscovery)
	}
	return nil
}

// embedded returns the NATS server inside the agent.
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

// note has the flags logged with their sources.
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
