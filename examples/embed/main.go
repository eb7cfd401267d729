package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm/kvbmprom"
)

func main() {
	engine := flag.String("engine", "tcp://127.0.0.1:5557", "ZMQ endpoint of the engine's KV events")
	listen := flag.String("listen", "127.0.0.1:9090", "address of /metrics")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "embed"), "directory of the tiers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err == nil {
		err = run(ctx, os.Environ(), *engine, *dir, l)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run stores a block, as an engine's connector would, and serves metrics until ctx ends.
func run(ctx context.Context, environ []string, engine, dir string, l net.Listener) error {
	registry := prometheus.NewRegistry()
	cfg := config.Config{
		Runtime: config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL(), Metrics: kvbmprom.New(registry)},
		Model:   config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024},
	}
	place := kvbm.Place{
		Model: "llama", Weights: "v1", DType: "bfloat16", KVFormat: "embed", HostDir: filepath.Join(dir, "host"),
		Consolidate: consolidated.Start, Log: zap.Must(zap.NewProduction()),
	}
	if err := fromEnviron(&cfg, &place, environ, engine, dir); err != nil {
		return err
	}
	m, err := kvbm.New(ctx, cfg, place)
	if err != nil {
		return err
	}
	if err := store(m, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, "keys and values"); err != nil {
		return err
	}
	server := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	go func() {
		<-m.Done()
		_ = server.Close()
	}()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return m.Close()
}

// fromEnviron fills in what KVBM's environment variables say.
func fromEnviron(cfg *config.Config, place *kvbm.Place, environ []string, engine, dir string) error {
	env, warnings, err := config.FromEnviron(environ)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		place.Log.Warn(w)
	}
	blockBytes, err := cfg.Model.BlockBytes()
	if err != nil {
		return err
	}
	host, disk, err := env.Blocks(blockBytes)
	if err != nil {
		return err
	}
	if host > 0 {
		cfg.HostLayout = &config.Layout{NumBlocks: host, Logical: config.LeaderWorkerSharded}
	}
	if disk > 0 {
		cfg.DiskLayout = &config.Layout{NumBlocks: disk, Logical: config.LeaderWorkerSharded}
	}
	place.Disk, place.Transfer = env.DiskFiles, env.Transfer
	if place.Disk.Dir == "" {
		place.Disk.Dir = filepath.Join(dir, "disk")
	}
	if events, on, err := env.Consolidator(config.SourceVLLM, engine); err != nil {
		return err
	} else if on {
		cfg.Consolidator = &events
	}
	return env.CheckTiers()
}

// store keeps one block with its tokens and bytes.
func store(m *kvbm.Manager, tokens []uint32, bytes string) error {
	session, err := m.Begin()
	if err != nil {
		return err
	}
	slots, err := m.Pool().Allocate(session, 1)
	if err != nil {
		return err
	}
	id := blockmgr.NewIdentifier()
	block := id.First(id.Root(m.Pool().NamespaceID(), "", "", ""), tokens)
	if err := slots[0].ApplyTokenBlock(blockmgr.TokenBlock{Block: block, Tokens: tokens}); err != nil {
		return err
	}
	copy(slots[0].Data(), bytes)
	handles, err := m.Pool().Register(session, slots)
	if err != nil {
		return err
	}
	handles[0].Release()
	return nil
}
