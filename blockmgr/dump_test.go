package blockmgr

import (
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestDumpInChunksListsWhatDumpLists(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64)})
	const n = 40
	p.store(chain(1, n))
	want := map[kv.StoredKey]BlockInfo{}
	for _, info := range p.Dump() {
		want[info.Block.Key] = info
	}
	for _, limit := range []int{1, 7, n, dumpChunk} {
		got := map[kv.StoredKey]BlockInfo{}
		for next, more := registry.ID(0), true; more; {
			var chunk []BlockInfo
			if chunk, next, more = p.dumpChunk(nil, next, limit); len(chunk) > limit {
				t.Fatalf("a chunk of %d, want at most %d", len(chunk), limit)
			}
			for _, info := range chunk {
				if _, twice := got[info.Block.Key]; twice || info != want[info.Block.Key] {
					t.Errorf("limit %d: %+v, twice %v, want %+v", limit, info, twice, want[info.Block.Key])
				}
				got[info.Block.Key] = info
			}
		}
		if len(got) != n || len(want) != n {
			t.Errorf("limit %d: %d blocks, Dump has %d, want %d", limit, len(got), len(want), n)
		}
	}
	for range p.DumpChunks {
		p.Stats() // the pool is not locked meanwhile
		break
	}
}
