package consolidator

import (
	"runtime"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// heap is the number of bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// mix spreads the bits of n.
func mix(n uint64) uint64 {
	h := n * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

var testOwner = kv.WorkerOwner(kv.Worker{ID: 7})
