package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// routerCmd is "blockyard router".
type routerCmd struct {
	NATS    string `name:"nats" placeholder:"URL" env:"BLOCKYARD_NATS" help:"NATS server that the agents publish on. Default: NATS_SERVER."`
	Cluster string `default:"default" env:"BLOCKYARD_CLUSTER" help:"Cluster whose agents to listen to."`
	HTTP    string `name:"http" default:"127.0.0.1:0" placeholder:"HOST:PORT" env:"BLOCKYARD_ROUTER_HTTP" help:"Address to serve HTTP on; port 0 takes a free one."`
	Mode    string `enum:"kv,round-robin" default:"kv" env:"BLOCKYARD_ROUTER_MODE" help:"How to choose: by what is cached (kv) or in turn (round-robin)."`

	NATSFile string `name:"nats-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_NATS_FILE" help:"File with the URL of the NATS server, such as an agent with --embedded-nats writes."`

	natsFlags
	workerFlags
	dynamoWorkers

	DurableKVEvents   bool   `name:"durable-kv-events" aliases:"router-durable-kv-events" env:"DYN_ROUTER_DURABLE_KV_EVENTS" help:"Read events from a JetStream stream that keeps them, and keep snapshots beside it."`
	Stream            string `name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of that stream. Default: blockyard-CLUSTER."`
	SnapshotThreshold uint32 `name:"router-snapshot-threshold" default:"1000000" env:"DYN_ROUTER_SNAPSHOT_THRESHOLD" help:"Events from one stored snapshot to the next, with --durable-kv-events; 0 stores none."`
	ResetStates       bool   `name:"router-reset-states" env:"DYN_ROUTER_RESET_STATES" help:"Discard the stored snapshot at the start, with --durable-kv-events."`

	OverlapScoreCredit  float64 `name:"overlap-score-credit" aliases:"router-kv-overlap-score-credit" default:"1" env:"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT" help:"Credit for a block cached on the device, in blocks."`
	OverlapCreditDecay  float64 `name:"overlap-score-credit-decay" aliases:"router-kv-overlap-score-credit-decay" default:"0" env:"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY" help:"How fast that credit fades on workers with prefill pending."`
	PrefillLoadScale    float64 `name:"prefill-load-scale" aliases:"router-prefill-load-scale" default:"1" env:"DYN_ROUTER_PREFILL_LOAD_SCALE" help:"Weight of blocks to compute against blocks that decode."`
	ActiveRequestWeight float64 `name:"decode-active-request-weight" aliases:"router-decode-active-request-weight" default:"0" env:"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT" help:"Cost of a running request besides its blocks, in blocks."`
	HostCacheHitWeight  float64 `name:"host-cache-hit-weight" aliases:"router-host-cache-hit-weight" default:"0.75" env:"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT" help:"Worth of a block in host memory, 0 to 1."`
	DiskCacheHitWeight  float64 `name:"disk-cache-hit-weight" aliases:"router-disk-cache-hit-weight" default:"0.25" env:"DYN_ROUTER_DISK_CACHE_HIT_WEIGHT" help:"Worth of a block on disk or farther away, 0 to 1."`
	Temperature         float64 `name:"router-temperature" default:"0" env:"DYN_ROUTER_TEMPERATURE" help:"Above 0, sample workers by a softmax over their costs."`
	Seed                uint64  `default:"0" help:"Make draws repeatable; 0 does not."`
	FirstOfEqual        bool    `name:"first-of-equal" help:"Take the first of equally good workers instead of drawing one."`
}

// Run serves until ctx ends.
func (c *routerCmd) Run(ctx context.Context) (err error) {
	log, err := newLogger("router")
	if err != nil {
		return err
	}
	options := c.options(log)
	if err := options.Validate(); err != nil {
		return err
	}
	sources, err := c.openSources(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sources.Close()) }()
	if c.DurableKVEvents {
		options.Snapshots = sources.nats
	}
	r, err := router.New(options, sources.Registry)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.HTTP)
	if err != nil {
		return fmt.Errorf("--http %q: %w", c.HTTP, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return r.Serve(ctx, listener) })
	g.Go(func() error {
		return writeReady(map[string]any{"ready": true, "http": listener.Addr().String()})
	})
	return g.Wait()
}

func (c *routerCmd) options(log *zap.Logger) router.Options {
	return router.Options{
		Mode: router.Mode(c.Mode),
		Weights: &schedule.Config{
			OverlapCredit:       c.OverlapScoreCredit,
			CreditDecay:         c.OverlapCreditDecay,
			PrefillLoadScale:    c.PrefillLoadScale,
			ActiveRequestWeight: c.ActiveRequestWeight,
			HostWeight:          c.HostCacheHitWeight,
			DiskWeight:          c.DiskCacheHitWeight,
		},
		Choice:            schedule.CostOptions{Temperature: c.Temperature, Seed: c.Seed, FirstOfEqual: c.FirstOfEqual},
		SnapshotThreshold: snapshotThreshold(c.SnapshotThreshold),
		ResetStates:       c.ResetStates,
		Log:               log,
	}
}

// snapshotThreshold is the option of a flag whose 0 turns snapshots off.
func snapshotThreshold(events uint32) int {
	if events == 0 {
		return router.NoSnapshots
	}
	return int(events)
}
