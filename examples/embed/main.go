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
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm/kvbmprom"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
)

func main() {
	engine := flag.String("engine", "tcp://127.0.0.1:5557", "ZMQ endpoint of the engine's KV events")
	kind := flag.String("kind", "vllm", "kind of the engine: vllm or trtllm")
	listen := flag.String("listen", "127.0.0.1:9090", "address of /metrics")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "embed"), "directory of the tiers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err == nil {
		err = run(ctx, options{os.Environ(), *kind, *engine, *dir, onHangup(config.G2)}, l)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// onHangup returns the channel of a reset of level at each SIGHUP.
func onHangup(level config.CacheLevel) <-chan config.CacheLevel {
	hangups, resets := make(chan os.Signal, 1), make(chan config.CacheLevel)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			resets <- level
		}
	}()
	return resets
}

// options are what main reads from flags and environment.
type options struct {
	environ           []string
	kind, engine, dir string
	resets            <-chan config.CacheLevel
}

// run stores a block, as an engine's connector would, and serves metrics until ctx ends.
func run(ctx context.Context, o options, l net.Listener) error {
	registry := prometheus.NewRegistry()
	cfg := config.Config{
		Runtime: config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL(), Metrics: kvbmprom.New(registry), Cancellation: ctx.Done()},
		Model:   config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2},
		Reset:   o.resets,
	}
	place := kvbm.Place{
		Model: "llama", Weights: "v1", DType: "bfloat16", KVFormat: "embed", HostDir: filepath.Join(o.dir, "host"),
		Consolidate: consolidated.Start, Log: zap.Must(zap.NewProduction()),
	}
	if err := fromEnviron(&cfg, &place, &o); err != nil {
		return err
	}
	m, err := kvbm.New(context.Background(), cfg, place)
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
func fromEnviron(cfg *config.Config, place *kvbm.Place, o *options) error {
	env, warnings, err := config.FromEnviron(o.environ)
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
		if !env.Offload.DisableDiskFilter {
			if cfg.HostLayout.OffloadFilter, err = policy.NewFrequencyFilter(policy.FrequencyOptions{}); err != nil {
				return err
			}
		}
	}
	if disk > 0 {
		cfg.DiskLayout = &config.Layout{NumBlocks: disk, Logical: config.LeaderWorkerSharded}
	}
	place.Disk, place.Transfer = env.DiskFiles, env.Transfer
	if place.Disk.Dir == "" {
		place.Disk.Dir = filepath.Join(o.dir, "disk")
	}
	kind, err := config.ParseEventSource(o.kind)
	if err != nil {
		return err
	}
	if events, on, err := env.Consolidator(kind, o.engine); err != nil {
		return err
	} else if on {
		cfg.Consolidator = &events
	}
	return env.CheckTiers()
}

// store keeps one block with its tokens. An engine of several ranks asks m.Sharding which rank
// copies which part of the bytes.
func store(m *kvbm.Manager, tokens []uint32, bytes string) error {
	session, err := m.Begin()
	if err != nil {
		return err
	}
	id := blockmgr.NewIdentifier()
	block := id.First(id.Root(m.Pool().NamespaceID(), "", "", ""), tokens)
	if !m.ShouldStore(block.Seq) {
		return nil
	}
	slots, err := m.Pool().Allocate(session, 1)
	if err != nil {
		return err
	}
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
