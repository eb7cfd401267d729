package diskio

import (
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

func TestFaultsOfAnExtentThatGoesAreForgotten(t *testing.T) {
	f := faults{writes: map[registry.Ref]*writeFault{}, reads: map[registry.Ref]*readFault{}}
	for extent := range uint32(4) {
		f.writes[registry.MakeRef(extent, 15)] = &writeFault{failed: 1, suspect: true}
		f.reads[registry.MakeRef(extent, 3)] = &readFault{failed: 1}
	}
	f.forget(2)
	if f.suspects() != 3 || len(f.reads) != 3 || f.writes[registry.MakeRef(2, 15)] != nil {
		t.Errorf("%d suspect slots and %d blocks in doubt, want those of the extents that are left", f.suspects(), len(f.reads))
	}
}
