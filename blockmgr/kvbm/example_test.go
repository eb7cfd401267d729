package kvbm_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// folder is a storage of one tier: so many bytes in a directory.
type folder struct {
	tier kv.Tier
	size uint64
	dir  string
}

func (f folder) Tier() kv.Tier { return f.tier }
func (f folder) Bytes() uint64 { return f.size }
func (f folder) Dir() string   { return f.dir }

// folders is an allocator of them.
type folders struct {
	tier kv.Tier
	dir  string
}

func (f folders) Tier() kv.Tier { return f.tier }

func (f folders) Allocate(size uint64) (config.Storage, error) {
	return folder{f.tier, size, f.dir}, nil
}

// printer is an event manager.
type printer struct{}

func (printer) BlockStored(t kv.Tier, hash, _ kv.SequenceHash, _ bool) {
	fmt.Printf("stored %d in %s\n", hash, t)
}

func (printer) BlockRemoved(t kv.Tier, hash kv.SequenceHash) {
	fmt.Printf("removed %d from %s\n", hash, t)
}

// The configuration is KVBM's: a host tier of 128 blocks that an allocator makes,
// a disk tier of 1024, and an event manager. A block is stored, leaves host memory,
// and comes back from disk.
func Example() {
	dir, err := os.MkdirTemp("", "kvbm")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := config.Config{
		Runtime:    config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL()},
		Model:      config.Model{NumLayers: 2, OuterDim: 2, PageSize: 4, InnerDim: 64},
		HostLayout: &config.Layout{NumBlocks: 128, Allocator: folders{kv.TierHost, dir + "/host"}},
		DiskLayout: &config.Layout{NumBlocks: 1024, Allocator: folders{kv.TierDisk, dir + "/disk"}},
		Events:     printer{},
	}
	ctx := context.Background()
	m, err := kvbm.New(ctx, cfg, kvbm.Place{Model: "tiny", Weights: "w0", DType: "bfloat16", KVFormat: "example"})
	if err != nil {
		log.Fatal(err)
	}
	if err := storeAndFind(ctx, m); err != nil {
		log.Fatal(err)
	}
	if err := m.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// stored 14643705804678351452 in host_pinned
	// stored 14643705804678351452 in disk
	// removed 14643705804678351452 from host_pinned
	// stored 14643705804678351452 in host_pinned
	// found "what the engine computed"
}

func storeAndFind(ctx context.Context, m *kvbm.Manager) error {
	pool := m.Pool()
	session, err := m.Begin()
	if err != nil {
		return err
	}
	root := blockmgr.NewIdentifier().Root(pool.NamespaceID(), "", "", "")
	slots, err := pool.Allocate(session, 1)
	if err != nil {
		return err
	}
	b := slots[0]
	if err := b.InitSequence(root); err != nil {
		return err
	}
	if _, err := b.AddTokens([]uint32{1, 2, 3, 4}); err != nil {
		return err
	}
	if err := b.Commit(); err != nil {
		return err
	}
	block, _ := b.Block()
	copy(b.Data(), "what the engine computed")
	handles, err := pool.Register(session, slots)
	if err != nil {
		return err
	}
	handles[0].Release()

	// The reset waits for the block to reach the disk, where it stays.
	if err := m.Reset(ctx, config.G2); err != nil {
		return err
	}
	found, err := pool.Match(ctx, session, []blockmgr.Block{block})
	if err != nil {
		return err
	}
	for _, h := range found {
		fmt.Printf("found %q\n", h.Data()[:24])
		h.Release()
	}
	return nil
}
