package kvbmprom_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm/kvbmprom"
)

// A manager registers KVBM's metrics with the registry of the embedding program.
func Example() {
	dir, err := os.MkdirTemp("", "kvbmprom")
	check(err)
	defer os.RemoveAll(dir)
	registry := prometheus.NewRegistry()
	cfg := config.Config{
		Runtime:    config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL(), Metrics: kvbmprom.New(registry)},
		Model:      config.Model{NumLayers: 2, OuterDim: 2, PageSize: 4, InnerDim: 64},
		HostLayout: &config.Layout{NumBlocks: 8, Logical: config.LeaderWorkerSharded},
	}
	m, err := kvbm.New(context.Background(), cfg, kvbm.Place{
		HostDir: dir, Model: "tiny", Weights: "w0", DType: "bfloat16", KVFormat: "example",
	})
	check(err)
	families, err := registry.Gather()
	check(err)
	for _, f := range families[:3] {
		fmt.Println(f.GetName())
	}
	check(m.Close())
	// Output:
	// kvbm_disk_cache_hit_rate
	// kvbm_host_cache_hit_rate
	// kvbm_matched_tokens
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
