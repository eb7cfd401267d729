package pools

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// stagingSlots is how many blocks on their way to or from the disk have room in
// host memory at least, when the host is bypassed.
const stagingSlots = 64

// errNoRoom: there would be room for the namespace if pools that nobody uses went.
var errNoRoom = errors.New("idle namespaces have the room")

// share is what one namespace takes.
type share struct {
	slotBytes uint64
	// host and disk are the bytes that are the namespace's own, where tiers have a
	// number of blocks for each namespace or the host is bypassed; else 0.
	host, disk uint64
}

// admit lets a namespace have a pool when the tiers can hold one of its blocks
// and the node has the memory and the disk space that the namespace adds. The
// error is for the client; the log is told once. errNoRoom, of which the log is not
// told, says that there would be room without those that unused lists.
func (r *room) admit(ns *kv.Namespace, unused func() []kv.NamespaceID) error {
	id := ns.ID()
	if r.knows(id) {
		return nil
	}
	r.checking.Lock()
	defer r.checking.Unlock()
	if r.knows(id) {
		return nil
	}
	r.mu.Lock()
	all := maps.Clone(r.admitted)
	r.mu.Unlock()
	err := r.tryAdmit(ns, all, unused)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.admitted[id] = all[id]
		delete(r.refused, id)
		return nil
	}
	if errors.Is(err, errNoRoom) {
		return err
	}
	if _, told := r.refused[id]; !told {
		r.log.Error("namespace refused", zap.Stringer("namespace", id), zap.String("model", ns.Model), zap.Error(err))
		if len(r.refused) >= MaxPools {
			clear(r.refused)
		}
		r.refused[id] = struct{}{}
	}
	return err
}

// tryAdmit adds the namespace to all, if there is room for it beside them.
func (r *room) tryAdmit(ns *kv.Namespace, all map[kv.NamespaceID]share, unused func() []kv.NamespaceID) error {
	s, err := r.shareOf(ns)
	if err != nil {
		return err
	}
	all[ns.ID()] = s
	want := r.want(all)
	// What every namespace shares was checked at the start. Looking again would make
	// engines wait for a disk that does not answer.
	n := r.atStart
	if s.host != 0 || s.disk != 0 {
		if n, err = r.lookAtNode(); err != nil {
			return err
		}
		if err := r.check(&n, want); err != nil {
			err = fmt.Errorf("HELLO namespace: no room for its blocks: %w", err)
			if r.fitsWithout(ns.ID(), all, unused(), &n) {
				err = fmt.Errorf("%w: %w", err, errNoRoom)
			}
			return &refusal.Error{Code: proto.CodeLimit, Retryable: true, Err: err}
		}
	}
	r.limitHeap(&n, want)
	return nil
}

// fitsWithout reports whether there would be room for a namespace of all if those of
// gone had none.
func (r *room) fitsWithout(id kv.NamespaceID, all map[kv.NamespaceID]share, gone []kv.NamespaceID, n *node) bool {
	left := maps.Clone(all)
	for _, other := range gone {
		if other != id {
			delete(left, other)
		}
	}
	return len(left) < len(all) && r.check(n, r.want(left)) == nil
}

func (r *room) knows(id kv.NamespaceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.admitted[id]
	return ok
}

// forget takes back the admission of a namespace that has no pool any more, or got
// none after all.
func (r *room) forget(id kv.NamespaceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.admitted, id)
}

// shareOf is what a namespace takes; a refusal when a tier that is shared holds
// none of its blocks.
func (r *room) shareOf(ns *kv.Namespace) (share, error) {
	c := r.cfg
	slot := (ns.BlockBytes() + storage.PageSize - 1) / storage.PageSize * storage.PageSize
	s := share{slotBytes: slot, host: saturate(c.Tiers.HostBlocks, slot), disk: saturate(c.Tiers.DiskBlocks, slot)}
	if c.Tiers.BypassesHost() {
		extent := cmp.Or(c.Tiers.ExtentBytes, blockmgr.ExtentBytesFor(0))
		s.host = min(max(extent, stagingSlots*slot), blockmgr.MaxExtentBytes)
	}
	for _, t := range c.tiers() {
		if t.blocks == 0 && t.bytes != 0 && t.bytes < slot {
			return s, refusal.New(proto.CodeNamespace, "HELLO namespace: %s size %d%s: holds none of its blocks, want 0 or at least %d bytes",
				t.name, t.bytes, inBrackets(t.setting), slot)
		}
	}
	return s, nil
}

// want is what the tiers ask for with these namespaces.
func (r *room) want(all map[kv.NamespaceID]share) resource.Want {
	c := r.cfg
	w := resource.Want{
		HostDir: c.Tiers.HostDir, HostBytes: c.Tiers.HostBytes, HostSetting: c.HostSetting,
		DiskDir: c.Tiers.DiskDir, DiskBytes: c.Tiers.DiskBytes, DiskSetting: c.DiskSetting,
	}
	var host, disk uint64
	smallest := uint64(math.MaxUint64)
	for _, s := range all {
		host, disk = add(host, s.host), add(disk, s.disk)
		smallest = min(smallest, s.slotBytes)
	}
	if c.Tiers.HostBlocks != 0 {
		w.HostBytes = host
	} else if c.Tiers.BypassesHost() {
		w.HostBytes, w.HostSetting = host, "the extent size"
	}
	if c.Tiers.DiskBlocks != 0 {
		w.DiskBytes = disk
	}
	w.HostSlots, w.DiskSlots = w.HostBytes/smallest, w.DiskBytes/smallest
	return w
}

// saturate is the product, add the sum, or the largest number when they are too
// large.
func saturate(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}

func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
