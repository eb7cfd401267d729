package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/dynamo"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	zmqsource "github.com/blockyard-ai/blockyard/router/source/zmq"
	"github.com/blockyard-ai/blockyard/router/workers"
	"github.com/blockyard-ai/blockyard/router/workers/kubernetes"
)

// routerSources are the joined sources of a router's messages.
type routerSources struct {
	*registry.Source
	nats *natssource.Source // nil: there is none
	// engines follows servers without an agent; nil when no server is named, or without
	// events.
	engines *zmqsource.Source
	made    []io.Closer
}

// closerFunc is a function that closes something.
type closerFunc func() error

// Close implements io.Closer.
func (f closerFunc) Close() error { return f() }

// openSources connects to every source of workers and events that the flags name, and joins them.
// The caller closes the result. The error names the flag whose source cannot be opened.
func (c *Router) openSources(log *zap.Logger) (*routerSources, error) {
	options, err := c.natsOptions(log)
	if err != nil {
		return nil, err
	}
	s := &routerSources{}
	if err := s.open(c, options, log); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open connects to the sources and sets s. s.made has all that was opened, also after an error. The
// options of NATS are nil without a server.
func (s *routerSources) open(c *Router, options *natssource.Options, log *zap.Logger) (err error) {
	var given []source.Transport
	if options != nil {
		if s.nats, err = natssource.Connect(*options); err != nil {
			return err
		}
		s.made = append(s.made, s.nats)
		given = append(given, s.nats)
	}
	workers, err := c.dynamoWorkers.open(s.nats, c.wantsEvents(), log)
	if err != nil {
		return err
	}
	if workers != nil {
		s.made = append(s.made, workers)
		given = append(given, workers)
	}
	if (c.serverFlags.given() || c.serviceFlags.given()) && c.wantsEvents() {
		if s.engines, err = zmqsource.New(zmqsource.Options{Log: log}); err != nil {
			return err
		}
		s.made = append(s.made, s.engines)
		given = append(given, s.engines)
	}
	joined, closeJoined, err := c.workerFlags.join(log, c.wantsEvents(), s.nats, given...)
	if err != nil {
		return err
	}
	s.Source, s.made = joined, append(s.made, closerFunc(closeJoined))
	return nil
}

// Close closes the sources, the last one opened first.
func (s *routerSources) Close() (err error) {
	for _, c := range slices.Backward(s.made) {
		err = errors.Join(err, c.Close())
	}
	return err
}

// wantsEvents reports whether the router asks its sources for events.
func (c *Router) wantsEvents() bool { return c.settings.ShouldSubscribeToKVEvents() }

// durable reports whether events come from a stream that keeps them.
func (c *Router) durable() bool { return c.DurableKVEvents && c.wantsEvents() }

// natsOptions returns the options of the connection to NATS, nil when no server is named. It returns
// an error for flags that need NATS, and warns when the flags name no source of workers at all.
func (c *Router) natsOptions(log *zap.Logger) (*natssource.Options, error) {
	url := c.NATS
	if c.NATSFile != "" {
		if url != "" {
			return nil, errors.New("--nats-file: want no --nats besides")
		}
		b, err := os.ReadFile(c.NATSFile)
		if err != nil {
			return nil, fmt.Errorf("--nats-file: %w", err)
		}
		url = strings.TrimSpace(string(b))
	}
	url, auth, err := c.resolve(url)
	switch {
	case err != nil:
		return nil, err
	case url != "":
		return &natssource.Options{URL: url, Cluster: c.Cluster, Auth: auth, JetStream: c.durable(), Stream: c.Stream,
			NoEvents: !c.wantsEvents(), Log: log}, nil
	case c.DurableKVEvents:
		return nil, errors.New("--durable-kv-events: needs --nats")
	case c.settings.RouterReplicaSync:
		return nil, errors.New("--router-replica-sync: needs --nats, over which routers share their bookings")
	case c.settings.ServeIndexer:
		return nil, errors.New("--serve-indexer: needs --nats, over which other routers ask")
	case c.settings.UseRemoteIndexer:
		return nil, errors.New("--use-remote-indexer: needs --nats, over which another router answers")
	case c.dynamoWorkers.Endpoint != "" && c.wantsEvents():
		return nil, errors.New("--dynamo-endpoint: needs --nats, over which Dynamo's workers send events")
	case !c.workerFlags.sources() && c.dynamoWorkers.Endpoint == "" && !c.serverFlags.given():
		log.Warn("the router has no source of workers and serves only workers that register over --control, or over --http with --http-registration; name sources with --worker, --nats, --agents or --workers-file")
	}
	return nil, nil
}

// workerFlags are the flags of "blockyard router" for sources of events and workers
// besides NATS.
type workerFlags struct {
	Agents      []string `group:"Sources" name:"agents" placeholder:"URL" env:"BLOCKYARD_ROUTER_AGENTS" help:"Admin servers of agents to listen to over HTTP, such as http://node-7:9400."`
	WorkersFile string   `group:"Sources" name:"workers-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_WORKERS_FILE" help:"JSON file with agents and with workers that have no agent. The router reads the file again when it changes."`
}

// sources reports whether the flags name any source of workers.
func (f *workerFlags) sources() bool { return len(f.Agents) > 0 || f.WorkersFile != "" }

// join returns one source that joins the given transports with the agents and workers of the flags,
// and with the load reports over n, which is nil without NATS. events is true when agents are asked
// for events too. closeAll closes the source and everything that join opened, but not the given
// transports.
func (f *workerFlags) join(log *zap.Logger, events bool, n *natssource.Source, given ...source.Transport) (joined *registry.Source, closeAll func() error, err error) {
	var made []io.Closer
	closeMade := func() (err error) {
		for _, c := range slices.Backward(made) {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	http, err := httpsource.Connect(httpsource.Options{NoEvents: !events, Log: log})
	if err != nil {
		return nil, nil, err
	}
	made, given = append(made, http), append(given, http)
	if n != nil {
		loads, err := natssource.FollowLoads(n)
		if err != nil {
			return nil, nil, errors.Join(err, closeMade())
		}
		made, given = append(made, loads), append(given, loads)
	}
	joined, err = registry.New(registry.Options{
		File: f.WorkersFile, HTTP: http, Agents: f.Agents, Log: log,
	}, given...)
	if err != nil {
		return nil, nil, errors.Join(err, closeMade())
	}
	made = append(made, joined)
	return joined, closeMade, nil
}

// dynamoWorkers are the flags of "blockyard router" to follow workers of NVIDIA
// Dynamo.
type dynamoWorkers struct {
	Discovery string `group:"Sources" name:"dynamo-discovery" placeholder:"DIR" env:"BLOCKYARD_DYNAMO_DISCOVERY,DYN_FILE_KV" help:"Directory of Dynamo's file discovery backend; with --dynamo-endpoint. The router then follows Dynamo's workers too, over the same NATS server."`
	Endpoint  string `group:"Sources" name:"dynamo-endpoint" placeholder:"NAMESPACE.COMPONENT.ENDPOINT" env:"BLOCKYARD_DYNAMO_ENDPOINT" help:"Endpoint of Dynamo's workers, such as dynamo.backend.generate. Default: none."`
}

// open returns the source of Dynamo's workers, nil when the flags name none. Their events come
// over n, which may be nil when events is false.
func (d *dynamoWorkers) open(n *natssource.Source, events bool, log *zap.Logger) (*dynamo.Source, error) {
	if d.Endpoint == "" {
		return nil, nil
	}
	endpoint, err := dynamo.ParseEndpoint(d.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("--dynamo-endpoint: %w", err)
	}
	if d.Discovery == "" {
		return nil, errors.New("--dynamo-endpoint: --dynamo-discovery is required with it")
	}
	var plane dynamo.Plane
	if n != nil {
		plane = n
	}
	return dynamo.Open(dynamo.Options{Directory: d.Discovery, Endpoint: endpoint, NoEvents: !events, Log: log}, plane)
}

// serverFlags are the flags of "blockyard router" that name worker servers: inference
// servers that take requests over HTTP.
type serverFlags struct {
	Workers    []string      `group:"Worker servers" live:"" name:"worker" sep:";" placeholder:"URL[,KEY=VALUE...]" env:"BLOCKYARD_ROUTER_WORKER" help:"Inference server that takes requests, such as http://a:8000. Repeat the flag for each server. Keys: events and replay (ZMQ addresses of rank 0), id, role (both, prefill, decode), model, block-size, taint, api-key-file."`
	DNS        []string      `group:"Worker servers" name:"worker-dns" sep:";" placeholder:"NAME:PORT[,KEY=VALUE...]" env:"BLOCKYARD_ROUTER_WORKER_DNS" help:"DNS name whose addresses are inference servers. Keys: those of --worker except id; the host * in events and replay is the server's."`
	DNSEvery   time.Duration `group:"Worker servers" name:"worker-dns-every" range:"100ms..1h" default:"10s" env:"BLOCKYARD_ROUTER_WORKER_DNS_EVERY" help:"How often the names of --worker-dns are resolved, 100ms to 1h."`
	Kubernetes []string      `group:"Worker servers" name:"worker-kubernetes" sep:";" placeholder:"NAMESPACE/SERVICE[:PORT][,KEY=VALUE...]" env:"BLOCKYARD_ROUTER_WORKER_KUBERNETES" help:"Kubernetes Service whose endpoints are inference servers, for a router in a pod. PORT is a number or a name. Keys: those of --worker-dns."`
	SlowStart  time.Duration `group:"Worker servers" name:"worker-slow-start" range:"0s..24h" default:"0s" env:"BLOCKYARD_ROUTER_WORKER_SLOW_START" help:"How long the share of requests of a server grows after it became ready. 0s is off."`
}

// given reports whether the flags name any server or a way to find some.
func (f *serverFlags) given() bool { return len(f.Workers)+len(f.DNS)+len(f.Kubernetes) > 0 }

// directory returns the directory of worker servers: the inference servers that the flags name, DNS
// names and Kubernetes Services included, and the workers of r that announce an endpoint. The
// directory tells s of servers that no agent announces.
func (f *serverFlags) directory(r *router.Router, s *routerSources, log *zap.Logger) (*workers.Directory, error) {
	o := workers.Options{Registry: s.Source, Known: func() []workers.Known { return knownWorkers(r.Workers()) }, SlowStart: f.SlowStart, Log: log}
	if s.engines != nil {
		o.Follower = s.engines
	}
	if size := r.Config().KVCacheBlockSize; size != nil {
		o.BlockSize = *size
	}
	if f.SlowStart < 0 {
		return nil, fmt.Errorf("--worker-slow-start: %v is negative", f.SlowStart)
	}
	var err error
	if o.Specs, err = f.specs(); err != nil {
		return nil, err
	}
	for _, text := range f.DNS {
		finder, err := workers.ParseDNS(text, f.DNSEvery)
		if err != nil {
			return nil, fmt.Errorf("--worker-dns: %w", err)
		}
		finder.Log = log
		o.Finders = append(o.Finders, finder)
	}
	if err := f.findInCluster(&o); err != nil {
		return nil, fmt.Errorf("--worker-kubernetes: %w", err)
	}
	return workers.New(o)
}

// specs returns the servers of --worker.
func (f *serverFlags) specs() (specs []workers.Spec, err error) {
	for _, text := range f.Workers {
		s, err := workers.ParseSpec(text)
		if err != nil {
			return nil, fmt.Errorf("--worker: %w", err)
		}
		specs = append(specs, s)
	}
	if err := (&workers.Options{Specs: specs}).Validate(); err != nil {
		return nil, fmt.Errorf("--worker: %w", err)
	}
	return specs, nil
}

// findInCluster adds to o a finder for each Kubernetes Service that the flags name. It returns an
// error outside a cluster.
func (f *serverFlags) findInCluster(o *workers.Options) error {
	if len(f.Kubernetes) == 0 {
		return nil
	}
	cluster, err := kubernetes.InCluster()
	if err != nil {
		return err
	}
	for _, text := range f.Kubernetes {
		finder, err := kubernetes.Parse(text, cluster)
		if err != nil {
			return err
		}
		finder.Log = o.Log
		o.Finders = append(o.Finders, finder)
	}
	return nil
}

// knownWorkers returns one entry for each worker, with its range of ranks. ranks has an entry for
// each rank of a worker, ordered by worker and rank.
func knownWorkers(ranks []feed.Worker) []workers.Known {
	var all []workers.Known
	for i := range ranks {
		w := &ranks[i]
		if last := len(all) - 1; last >= 0 && all[last].ID == w.Worker.ID {
			all[last].Ranks = uint32(w.Worker.Rank) - all[last].FirstRank + 1
			continue
		}
		all = append(all, workers.Known{
			ID: w.Worker.ID, FirstRank: uint32(w.Worker.Rank), Ranks: 1, Model: w.Model, BlockSize: w.BlockSize,
			DeviceBlocks: w.Card.DeviceBlocks, Pool: w.Pool, MaxBatchedTokens: w.Card.MaxBatchedTokens, Endpoint: w.Card.Endpoint, Source: workerSource(w.Card.Source),
		})
	}
	return all
}

// workerSource returns the name by which package workers calls the source of a worker's model card.
// An agent's card has no source.
func workerSource(cardSource string) string {
	switch cardSource {
	case source.FromFile:
		return workers.FromFile
	case source.FromHTTP:
		return workers.FromRegistration
	case source.FromEngine:
		return workers.FromEvents
	case "":
		return workers.FromAgent
	}
	return cardSource
}
