package pools

import (
	"context"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/smart"
)

// SpaceStats are the sizes of the tiers' file systems and the limit of the heap, in bytes.
type SpaceStats struct {
	// A tier that is off has size 0. The host tier's file system has a size if any tier is on,
	// because blocks pass through it on their way to disk.
	HostFree  uint64 `json:"host_free"`
	HostTotal uint64 `json:"host_total"`
	DiskFree  uint64 `json:"disk_free"`
	DiskTotal uint64 `json:"disk_total"`
	// HeapLimit is the limit of the Go heap, 0 for none.
	HeapLimit int64 `json:"heap_limit"`
	// Devices are those under the directory of the disk tier, with what they say of their wear.
	Devices []smart.Device `json:"devices,omitempty"`
}

const (
	// spaceInterval is the time between two measurements. A scrape never measures: a hanging
	// file system must not block the metrics.
	spaceInterval = 10 * time.Second
	// spaceEndTimeout bounds how long run waits at its end for a hanging file system.
	spaceEndTimeout = time.Second
	// wearInterval is the time between two questions to devices about their wear.
	wearInterval = 10 * time.Minute
)

// admission checks the share of each namespace in the tiers against the node's memory and disk
// space. node.Open has checked the sizes that do not depend on a block size.
// Lock order: checking, then mu. checking is held while file systems are measured, which
// delays only the first sessions of other namespaces.
type admission struct {
	// Set.Resize replaces tiers.
	tiers atomic.Pointer[node.Tiers]
	// atStart is what node.Open measured. It does not change.
	atStart node.Space
	log     *zap.Logger
	// stats are those of the last measurement.
	stats atomic.Pointer[SpaceStats]
	// wearAt is when devices were asked last. The goroutine of run has it.
	wearAt time.Time

	// checking is held by the call of admit that measures the node.
	checking sync.Mutex

	mu sync.Mutex
	// admitted are the namespaces that may have a pool. refused are those whose refusal was
	// logged. MaxPools bounds both.
	admitted map[kv.NamespaceID]share
	refused  map[kv.NamespaceID]struct{}
}

func newAdmission(tiers *node.Tiers, atStart node.Space, log *zap.Logger) *admission {
	a := &admission{atStart: atStart, log: log, admitted: map[kv.NamespaceID]share{}, refused: map[kv.NamespaceID]struct{}{}}
	a.tiers.Store(tiers)
	a.stats.Store(&SpaceStats{})
	return a
}

// measureSpaces measures SpaceStats. A size that cannot be read is 0.
func (a *admission) measureSpaces() {
	n, _ := a.tiers.Load().FileSystems()
	s := SpaceStats{HostFree: n.Host.Free, HostTotal: n.Host.Total, DiskFree: n.Disk.Free, DiskTotal: n.Disk.Total}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 { // -1 changes nothing
		s.HeapLimit = limit
	}
	s.Devices = a.stats.Load().Devices
	a.stats.Store(&s)
}

// measureWear asks the devices of the disk tier now and then. One call at a time.
func (a *admission) measureWear() {
	if !a.tiers.Load().Sizes()[1].On() || !a.wearAt.IsZero() && time.Since(a.wearAt) < wearInterval {
		return
	}
	a.wearAt = time.Now()
	s := *a.stats.Load()
	s.Devices = smart.Reader{}.Under(context.Background(), a.tiers.Load().DiskDir)
	a.stats.Store(&s)
}

// run measures the free space of the tiers' file systems every spaceInterval until ctx ends. A
// measurement that hangs delays the next one, and the end by spaceEndTimeout at most.
func (a *admission) run(ctx context.Context) {
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	var measuring chan struct{} // nil while nothing is measured
	for {
		var due <-chan time.Time // nil is never ready: one measurement at a time
		if measuring == nil {
			due = tick.C
		}
		select {
		case <-due:
			measuring = make(chan struct{})
			go func(done chan<- struct{}) { // the loop waits for it, unless it hangs
				defer close(done)
				a.measureSpaces()
				a.measureWear()
			}(measuring)
		case <-measuring:
			measuring = nil
		case <-ctx.Done():
			if measuring != nil {
				select {
				case <-measuring:
				case <-time.After(spaceEndTimeout):
				}
			}
			return
		}
	}
}
