package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm/kvbmprom"
)

func main() {
	engine := flag.String("engine", "tcp://127.0.0.1:5557", "ZMQ endpoint of vLLM's KV events")
	listen := flag.String("listen", "127.0.0.1:9090", "address of /metrics")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "embed"), "directory of the tiers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	m, metrics, err := start(ctx, os.Environ(), *engine, *dir)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		log.Print(http.ListenAndServe(*listen, metrics))
		stop()
	}()
	<-m.Done()
	if err := m.Close(); err != nil {
		log.Fatal(err)
	}
}

// start returns a manager that lives until ctx ends, and the handler of its metrics.
func start(ctx context.Context, environ []string, engine, dir string) (*kvbm.Manager, http.Handler, error) {
	registry := prometheus.NewRegistry()
	m, err := kvbm.NewFromEnviron(ctx, environ, kvbm.Engine{Kind: "vllm", Events: engine}, config.Config{
		Runtime: config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL(), Metrics: kvbmprom.New(registry)},
		Model:   config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2},
	}, kvbm.Place{
		Model: "llama", Weights: "v1", DType: "bfloat16", KVFormat: "embed",
		HostDir: filepath.Join(dir, "host"), Disk: config.DiskFiles{Dir: filepath.Join(dir, "disk")},
		Consolidate: consolidated.Start, Log: zap.Must(zap.NewProduction()),
	})
	return m, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}
