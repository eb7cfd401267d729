package routertest

import (
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
)

// OwnerDump is everything that one owner holds.
type OwnerDump struct {
	Owner kv.Owner
	// Pool is the pool of a worker, 0 for none and for a pool.
	Pool   uint64
	Blocks []BlockDump
}

// BlockDump is one block of an OwnerDump.
type BlockDump struct {
	Hash  kv.SequenceHash
	Tiers kv.TierMask
}

// Dump returns what every owner holds, ordered by owner and hash. Owners without blocks are
// included. Without events it has the remembered decisions.
func Dump(r *router.Router) []OwnerDump {
	var out []OwnerDump
	at := make(map[kv.Owner]int)
	for _, f := range r.Feeds() {
		at[f.Owner] = len(out)
		out = append(out, OwnerDump{Owner: f.Owner, Pool: f.Pool})
	}
	held := make([]map[kv.SequenceHash]kv.TierMask, len(out))
	for _, m := range r.Models("") {
		m.Decide().DumpEvents(func(e *kvevent.RouterEvent) bool {
			i, ok := at[e.Owner]
			if !ok {
				return true // It came after the list was made.
			}
			if held[i] == nil {
				held[i] = make(map[kv.SequenceHash]kv.TierMask)
			}
			for _, b := range e.Blocks {
				held[i][b.Hash] = held[i][b.Hash].With(e.Tier)
			}
			return true
		})
	}
	for i := range out {
		for _, h := range slices.Sorted(maps.Keys(held[i])) {
			out[i].Blocks = append(out[i].Blocks, BlockDump{h, held[i][h]})
		}
	}
	return out
}
