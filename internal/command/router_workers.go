package command

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/workers"
	"github.com/blockyard-ai/blockyard/router/workers/kubernetes"
)

// serverFlags are the flags of "blockyard router" that name worker servers: inference
// servers that take requests over HTTP.
type serverFlags struct {
	Workers    []string      `group:"Worker servers" name:"worker" sep:";" placeholder:"URL[,KEY=VALUE...]" env:"BLOCKYARD_ROUTER_WORKER" help:"Inference server that takes requests, such as http://a:8000. Repeat the flag for each server. Keys: events and replay (ZMQ addresses of rank 0), id, role (both, prefill, decode), model, block-size, taint, api-key-file."`
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
	for _, text := range f.Workers {
		s, err := workers.ParseSpec(text)
		if err != nil {
			return nil, fmt.Errorf("--worker: %w", err)
		}
		o.Specs = append(o.Specs, s)
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
