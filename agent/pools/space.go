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

// SpaceStats are what there is for the agent, in bytes.
type SpaceStats struct {
	// The sizes of the file systems that the tiers lie on; zero for a tier that is
	// off. Blocks on their way to disk pass through the host's, so that it is on
	// with any tier.
	HostFree  uint64 `json:"host_free"`
	HostTotal uint64 `json:"host_total"`
	DiskFree  uint64 `json:"disk_free"`
	DiskTotal uint64 `json:"disk_total"`
	// HeapLimit is what the Go heap is kept below; zero for no limit.
	HeapLimit int64 `json:"heap_limit"`
}

const (
	// spaceInterval is how often SpaceStats are taken. A scrape never takes them: a
	// file system that hangs must not hang the metrics too.
	spaceInterval = 10 * time.Second
	// spaceEndTimeout bounds the wait, at the end, for a file system that hangs.
	spaceEndTimeout = time.Second
)

// room compares what the tiers take with what the node lets this process
// have: their sizes before anything is allocated, and what a namespace adds to
// them when it first comes.
type room struct {
	// atStart is what checkStart found; nobody changes it afterwards.
	atStart node
	cfg     *Config
	log     *zap.Logger
	// stats are those of the last look.
	stats atomic.Pointer[SpaceStats]

	// checking is held by the one call of admit that looks at the node.
	checking sync.Mutex

	mu sync.Mutex
	// admitted are the namespaces that may have a pool, refused those that may not
	// and of which the log has been told. MaxPools bounds either.
	admitted map[kv.NamespaceID]share
	refused  map[kv.NamespaceID]struct{}
}

func newRoom(cfg *Config, log *zap.Logger) *room {
	r := &room{cfg: cfg, log: log, admitted: map[kv.NamespaceID]share{}, refused: map[kv.NamespaceID]struct{}{}}
	r.stats.Store(&SpaceStats{})
	return r
}

// checkStart compares the tiers as far as their sizes are known without a block
// size. The error says what was asked for, what there is and which setting to
// change.
func (r *room) checkStart() error {
	n, err := r.lookAtNode()
	if err != nil {
		return err
	}
	want := r.want(nil)
	if err := r.check(&n, want); err != nil {
		return err
	}
	r.limitHeap(&n, want)
	r.look()
	r.atStart = n
	return nil
}

// node is what there is, and what an earlier agent or this one has taken of it
// for the tiers.
type node struct {
	limits             resource.Limits
	host, disk         resource.Space
	hostHeld, diskHeld uint64
}

func (r *room) lookAtNode() (n node, err error) {
	if n.host, n.disk, err = tierSpaces(r.cfg); err != nil {
		return n, err
	}
	if n.hostHeld, err = storage.HeldBytes(r.cfg.Tiers.HostDir); err != nil {
		return n, fmt.Errorf("host directory: %w", err)
	}
	if n.diskHeld, err = storage.HeldBytes(r.cfg.Tiers.DiskDir); err != nil {
		return n, fmt.Errorf("disk directory: %w", err)
	}
	if n.limits, err = resource.Read("/"); err != nil {
		r.log.Warn("the node's limits cannot be read: neither sizes nor the heap are checked against them", zap.Error(err))
	}
	return n, nil
}

// check compares what the tiers ask for with what there is. It warns only when it
// finds no error, which is to be dealt with first.
func (r *room) check(n *node, want resource.Want) error {
	want.HostHeld, want.DiskHeld = n.hostHeld, n.diskHeld
	warnings, err := resource.Check(n.limits, n.host, n.disk, want)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		r.log.Warn("resources", zap.String("warning", w))
	}
	return nil
}

// limitHeap has the Go heap collected before the control groups' memory is used
// up, of which the tiers take their part.
func (r *room) limitHeap(n *node, want resource.Want) {
	if !r.cfg.LimitHeap {
		return
	}
	memory := want.Memory(n.host, n.disk)
	if limit, ok := resource.MemoryLimit(n.limits, memory, os.Getenv("GOMEMLIMIT")); ok {
		debug.SetMemoryLimit(limit)
		r.log.Info("heap limit", zap.Int64("bytes", limit), zap.Uint64("tier_memory", memory))
	}
}

// tierSpaces looks at the file systems of the tiers that are on.
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

// look takes SpaceStats. A size that cannot be read is zero.
func (r *room) look() {
	host, disk, _ := tierSpaces(r.cfg)
	s := SpaceStats{HostFree: host.Free, HostTotal: host.Total, DiskFree: disk.Free, DiskTotal: disk.Total}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 { // which only asks
		s.HeapLimit = limit
	}
	r.stats.Store(&s)
}

// run looks every spaceInterval until ctx ends. While one look hangs there is no
// other, and the end does not wait for it for long.
func (r *room) run(ctx context.Context) {
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	var looking chan struct{} // nil when no look is under way
	for {
		var due <-chan time.Time
		if looking == nil {
			due = tick.C
		}
		select {
		case <-due:
			looking = make(chan struct{})
			go func(done chan<- struct{}) { // waited for above and below, unless it hangs
				defer close(done)
				r.look()
			}(looking)
		case <-looking:
			looking = nil
		case <-ctx.Done():
			if looking != nil {
				select {
				case <-looking:
				case <-time.After(spaceEndTimeout):
				}
			}
			return
		}
	}
}
