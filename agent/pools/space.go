package pools

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/resource"
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
}

const (
	// spaceInterval is the time between two measurements. A scrape never measures: a hanging
	// file system must not block the metrics.
	spaceInterval = 10 * time.Second
	// spaceEndTimeout bounds how long run waits at its end for a hanging file system.
	spaceEndTimeout = time.Second
)

// admission checks the tiers against the node's memory and disk space: at the start the sizes
// that do not depend on a block size, later the share of each namespace.
// Lock order: checking, then mu. checking is held while file systems are measured, which
// delays only the first sessions of other namespaces.
type admission struct {
	// atStart is what checkStart measured. It does not change.
	atStart node
	cfg     *Config
	log     *zap.Logger
	// stats are those of the last measurement.
	stats atomic.Pointer[SpaceStats]

	// checking is held by the call of admit that measures the node.
	checking sync.Mutex

	mu sync.Mutex
	// admitted are the namespaces that may have a pool. refused are those whose refusal was
	// logged. MaxPools bounds both.
	admitted map[kv.NamespaceID]share
	refused  map[kv.NamespaceID]struct{}
}

func newAdmission(cfg *Config, log *zap.Logger) *admission {
	a := &admission{cfg: cfg, log: log, admitted: map[kv.NamespaceID]share{}, refused: map[kv.NamespaceID]struct{}{}}
	a.stats.Store(&SpaceStats{})
	return a
}

// checkStart checks the sizes that are known without a block size. The error has the size
// asked for, the size available and the setting to change.
func (a *admission) checkStart() error {
	n, err := a.measureNode()
	if err != nil {
		return err
	}
	want := a.want(nil)
	if err := a.check(&n, want); err != nil {
		return err
	}
	a.limitHeap(&n, want)
	a.measureSpaces()
	a.atStart = n
	return nil
}

// node is a measurement of the node: limits, file systems, and the bytes that this or a
// previous agent holds there.
type node struct {
	limits             resource.Limits
	host, disk         resource.Space
	hostHeld, diskHeld uint64
}

// measureNode measures the node now: the file systems of the tiers, the bytes that the tiers hold
// of them already, and the memory limits. Without readable limits it logs a warning, and limits
// are not checked.
func (a *admission) measureNode() (n node, err error) {
	if n.host, n.disk, err = tierSpaces(a.cfg); err != nil {
		return n, err
	}
	if n.hostHeld, err = storage.HeldBytes(a.cfg.Tiers.HostDir); err != nil {
		return n, fmt.Errorf("host directory: %w", err)
	}
	if n.diskHeld, err = storage.HeldBytes(a.cfg.Tiers.DiskDir); err != nil {
		return n, fmt.Errorf("disk directory: %w", err)
	}
	if n.limits, err = resource.Read("/"); err != nil {
		a.log.Warn("the node's limits cannot be read: sizes and the heap are not checked against them", zap.Error(err))
	}
	return n, nil
}

// check checks the needs of the tiers against the node. It logs warnings only when it returns
// no error.
func (a *admission) check(n *node, want resource.Want) error {
	want.HostHeld, want.DiskHeld = n.hostHeld, n.diskHeld
	warnings, err := resource.Check(n.limits, n.host, n.disk, want)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		a.log.Warn("resources", zap.String("warning", w))
	}
	return nil
}

// limitHeap limits the Go heap to what control groups leave beside the tiers' memory.
func (a *admission) limitHeap(n *node, want resource.Want) {
	if !a.cfg.LimitHeap {
		return
	}
	memory := want.Memory(n.host, n.disk)
	if limit, ok := resource.MemoryLimit(n.limits, memory, os.Getenv("GOMEMLIMIT")); ok {
		debug.SetMemoryLimit(limit)
		a.log.Info("heap limit", zap.Int64("bytes", limit), zap.Uint64("tier_memory", memory))
	}
}

// tierSpaces measures the file systems of the tiers that are on.
func tierSpaces(cfg *Config) (host, disk resource.Space, err error) {
	if cfg.hostOn() || cfg.diskOn() {
		if host, err = resource.SpaceOf(cfg.Tiers.HostDir); err != nil {
			return host, disk, fmt.Errorf("host directory: %w", err)
		}
	}
	if cfg.diskOn() {
		if disk, err = resource.SpaceOf(cfg.Tiers.DiskDir); err != nil {
			return host, disk, fmt.Errorf("disk directory: %w", err)
		}
	}
	return host, disk, nil
}

// measureSpaces measures SpaceStats. A size that cannot be read is 0.
func (a *admission) measureSpaces() {
	host, disk, _ := tierSpaces(a.cfg)
	s := SpaceStats{HostFree: host.Free, HostTotal: host.Total, DiskFree: disk.Free, DiskTotal: disk.Total}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 { // -1 changes nothing
		s.HeapLimit = limit
	}
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
