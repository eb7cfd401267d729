package index

import (
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// DumpAll dumps the owners of x one after the other.
func DumpAll(x *Index, visit func(e *kvevent.RouterEvent) bool) {
	for _, who := range slices.SortedFunc(maps.Keys(x.ids), kv.Owner.Compare) {
		x.DumpOwner(who, visit)
	}
}
