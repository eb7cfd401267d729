package resource

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	trimEvery = 15 * time.Second
	// trimGrowth is how many bytes the process may keep above what it had after the last trim.
	trimGrowth = 16 << 20
	// quietBytes is how many bytes a quiet process allocates in trimEvery.
	quietBytes = 16 << 20
)

// Trim returns freed memory to the system while the process is quiet, until ctx ends. A burst
// leaves garbage behind, which the runtime collects only when the heap has doubled or after two
// minutes.
func Trim(ctx context.Context) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	var t trimmer // decides when a quiet process has enough garbage
	t.trimmed(usage())
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if t.due(usage()) {
			release()
			t.trimmed(usage())
		}
	}
}

// release returns garbage to the system. A sync.Pool keeps its objects, such as the buffers of
// closed connections, through one collection, so release collects twice.
func release() {
	runtime.GC()
	debug.FreeOSMemory()
}

// trimmer decides when a trim is due.
type trimmer struct {
	// base is what the process held after the last trim, allocated what it had allocated in all
	// at the last look. Unit: bytes.
	base, allocated uint64
}

// due reports whether the process is quiet and holds much more than after the last trim.
func (t *trimmer) due(held, allocated uint64) bool {
	quiet := allocated-t.allocated < quietBytes
	t.allocated = allocated
	return quiet && held > t.base+trimGrowth
}

// trimmed notes what the process holds after a trim.
func (t *trimmer) trimmed(held, allocated uint64) { t.base, t.allocated = held, allocated }

// usage returns the bytes that the Go runtime holds and those that it has allocated in all.
func usage() (held, allocated uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64(), samples[2].Value.Uint64()
}
