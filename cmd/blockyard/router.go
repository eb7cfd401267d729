package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
)

// routerCmd is "blockyard router".
type routerCmd struct {
	NATS    string `name:"nats" placeholder:"URL" env:"BLOCKYARD_NATS" help:"NATS server that the agents publish on. Default: NATS_SERVER."`
	Cluster string `default:"default" env:"BLOCKYARD_CLUSTER" help:"Cluster whose agents to listen to."`
	HTTP    string `name:"http" default:"127.0.0.1:0" placeholder:"HOST:PORT" env:"BLOCKYARD_ROUTER_HTTP" help:"Address to serve HTTP on; port 0 takes a free one."`
	File    string `name:"router-config" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONFIG" help:"JSON file with settings by the names that docs/router-config.md has. Flags and variables win over it."`

	NATSFile string `name:"nats-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_NATS_FILE" help:"File with the URL of the NATS server, such as an agent with --embedded-nats writes."`

	natsFlags
	workerFlags
	dynamoWorkers

	Stream string `name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of the JetStream stream, with --router-durable-kv-events. Default: blockyard-CLUSTER."`

	Settings routerSettings `embed:""`

	// settings is what Settings, variables and File come to. DurableKVEvents and
	// ResetStates are two of them that decide where messages come from.
	settings        resolvedSettings
	DurableKVEvents bool `kong:"-"`
	ResetStates     bool `kong:"-"`
}

// AfterApply checks the environment and resolves the settings, so that a wrong one
// is an error of usage.
func (c *routerCmd) AfterApply(k *kong.Context) error {
	if err := checkEnvironment(k.Model, os.Environ()); err != nil {
		return err
	}
	if err := c.settings.resolve(k, os.Environ(), c.File); err != nil {
		return err
	}
	c.DurableKVEvents, c.ResetStates = c.settings.DurableKVEvents, c.settings.RouterResetStates
	return nil
}

// Run serves until ctx ends.
func (c *routerCmd) Run(ctx context.Context) (err error) {
	log, err := newLogger("router")
	if err != nil {
		return err
	}
	c.settings.log(log)
	address, err := c.settings.address(c.HTTP)
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
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--http %q: %w", address, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return r.Serve(ctx, listener) })
	if sources.nats != nil {
		g.Go(func() error { return r.ServeNATS(ctx, sources.nats) })
	}
	g.Go(func() error {
		return writeReady(map[string]any{"ready": true, "http": listener.Addr().String()})
	})
	return g.Wait()
}

func (c *routerCmd) options(log *zap.Logger) router.Options {
	s := &c.settings.Config
	return router.Options{
		Config: s, SnapshotThreshold: snapshotThreshold(s), ResetStates: c.ResetStates, Log: log,
	}
}

// snapshotThreshold is the option of a setting that may be off.
func snapshotThreshold(s *config.Config) int {
	events, ok := s.SnapshotEvents()
	if !ok {
		return router.NoSnapshots
	}
	return int(events)
}
