package main

import (
	"context"
	"errors"
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
	var engine kvbm.Engine
	flag.StringVar(&engine.Kind, "kind", "vllm", "kind of the engine: vllm or trtllm")
	flag.StringVar(&engine.Events, "engine", "tcp://127.0.0.1:5557", "ZMQ endpoint of the engine's KV events")
	listen := flag.String("listen", "127.0.0.1:9090", "address of /metrics")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "embed"), "directory of the tiers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err == nil {
		err = run(ctx, os.Environ(), engine, *dir, l)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run stores a block, as an engine's connector would, and serves metrics on l until ctx ends.
func run(ctx context.Context, environ []string, engine kvbm.Engine, dir string, l net.Listener) error {
	registry := prometheus.NewRegistry()
	m, err := kvbm.NewFromEnviron(ctx, environ, engine, config.Config{
		Runtime: config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL(), Metrics: kvbmprom.New(registry)},
		Model:   config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2},
	}, kvbm.Place{
		Model: "llama", Weights: "v1", DType: "bfloat16", KVFormat: "embed",
		HostDir: filepath.Join(dir, "host"), Disk: config.DiskFiles{Dir: filepath.Join(dir, "disk")},
		Consolidate: consolidated.Start, Log: zap.Must(zap.NewProduction()),
	})
	if err != nil {
		return err
	}
	if err := store(m, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, "keys and values"); err != nil {
		return errors.Join(err, m.Close())
	}
	server := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	go func() { <-m.Done(); _ = server.Close() }()
	if err = server.Serve(l); errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, m.Close())
}

// store keeps one block with its tokens.
func store(m *kvbm.Manager, tokens []uint32, bytes string) error {
	session, err := m.Begin()
	if err != nil {
		return err
	}
	defer m.Pool().EndSession(session, nil)
	blocks, err := m.Pool().Allocate(session, 1)
	if err != nil {
		return err
	}
	id := blockmgr.NewIdentifier()
	block := id.First(id.Root(m.Pool().NamespaceID(), "", "", ""), tokens)
	if err := blocks[0].ApplyTokenBlock(blockmgr.TokenBlock{Block: block, Tokens: tokens}); err != nil {
		return err
	}
	copy(blocks[0].Data(), bytes)
	_, err = m.Pool().Register(session, blocks)
	return err
}
