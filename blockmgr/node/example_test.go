package node_test

import (
	"fmt"
	"log"
	"os"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
)

// A node has a host tier of 1 MiB. A tier that no node has room for is refused.
func Example() {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	tiers := node.Tiers{Config: blockmgr.Config{HostDir: dir, HostBytes: 1 << 20}, HostSetting: "--host-size"}
	manager, _, err := node.Open(&tiers, zap.NewNop())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pools:", len(manager.Pools()))
	if err := manager.Close(); err != nil {
		log.Fatal(err)
	}
	tiers.HostBytes = 1 << 60
	fmt.Println(tiers.Validate())
	// Output:
	// pools: 0
	// host size 1048576TiB (--host-size): want at most 16TiB
}
