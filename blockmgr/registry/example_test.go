package registry_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A block has a slot in host memory and another one on disk, until it loses both.
func Example() {
	r := registry.New()
	parent, child := kv.BlockKey{1}.InGroup(0), kv.BlockKey{2}.InGroup(0)
	r.Occupy(parent, false, kv.StoredKey{}, registry.Host, registry.MakeRef(0, 3))
	id, _ := r.Occupy(child, true, parent, registry.Host, registry.MakeRef(0, 4))
	r.Occupy(child, true, parent, registry.Disk, registry.MakeRef(0, 9))

	e := r.At(r.Find(&child))
	fmt.Println("child: host slot", e.Slots[registry.Host].Slot(), "disk slot", e.Slots[registry.Disk].Slot())
	fmt.Println("parent has", r.At(e.Parent).Children[registry.Host], "child in host memory")

	r.Vacate(id, registry.Host)
	r.Vacate(id, registry.Disk)
	fmt.Println("child is gone:", r.Find(&child) == registry.None, "blocks:", r.Blocks())
	// Output:
	// child: host slot 4 disk slot 9
	// parent has 1 child in host memory
	// child is gone: true blocks: 1
}
