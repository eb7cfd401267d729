package config_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
)

// KVBM's environment variables size the tiers of a model.
func Example() {
	env, warnings, err := config.FromEnviron([]string{
		"DYN_KVBM_CPU_CACHE_GB=1", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS=4096",
	})
	if err != nil {
		log.Fatal(err)
	}
	model := config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2}
	blockBytes, err := model.BlockBytes()
	if err != nil {
		log.Fatal(err)
	}
	host, disk, err := env.Blocks(blockBytes)
	if err != nil {
		log.Fatal(err)
	}
	cfg := config.Config{
		Runtime:    config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL()},
		Model:      model,
		HostLayout: &config.Layout{NumBlocks: host, Logical: config.LeaderWorkerSharded},
		DiskLayout: &config.Layout{NumBlocks: disk, Logical: config.LeaderWorkerSharded},
	}
	fmt.Println(host, "host blocks,", disk, "disk blocks,", len(warnings), "warnings, error:", cfg.Validate())
	// Output:
	// 476 host blocks, 4096 disk blocks, 0 warnings, error: <nil>
}
