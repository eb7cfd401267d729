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
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// stagingSlots is the least number of host slots for blocks on their way to or from the disk,
// where the host tier is bypassed.
const stagingSlots = 64

// errNoRoom says that the namespace would fit if an unused pool were retired.
var errNoRoom = errors.New("idle namespaces have the room")

// share is the part of the node's tiers that one namespace takes.
type share struct {
	slotBytes uint64
	// host and disk are the namespace's own bytes. They are 0 where all namespaces share the
	// tier.
	host, disk uint64
}

// admit lets a namespace have a pool. Every tier must hold at least one block of the
// namespace, and the node must have the memory and the disk space that the namespace adds (its
// share). unused lists the namespaces whose pools could be retired. a.checking makes calls that
// measure the node wait for one another.
//
// A refusal is for the engine and is logged once for each namespace. errNoRoom says that the
// namespace fits once the unused pools are gone; it is not logged.
func (a *admission) admit(ns *kv.Namespace, unused func() []kv.NamespaceID) error {
	id := ns.ID()
	if a.knows(id) {
		return nil
	}
	a.checking.Lock()
	defer a.checking.Unlock()
	if a.knows(id) { // another call has admitted it meanwhile
		return nil
	}
	a.mu.Lock()
	all := maps.Clone(a.admitted)
	a.mu.Unlock()
	err := a.addIfFits(ns, all, unused)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.admitted[id] = all[id]
		delete(a.refused, id)
		return nil
	}
	if errors.Is(err, errNoRoom) {
		return err
	}
	if _, logged := a.refused[id]; !logged {
		a.log.Error("namespace refused", zap.Stringer("namespace", id), zap.String("model", ns.Model), zap.Error(err))
		if len(a.refused) >= MaxPools { // bounds the map; later refusals are logged again
			clear(a.refused)
		}
		a.refused[id] = struct{}{}
	}
	return err
}

// addIfFits adds the share of the namespace, the bytes of its pool, to all, the shares of the
// admitted namespaces, if the node has room for both. It then limits the Go heap to what they
// leave. unused lists the namespaces whose pools could be retired. Errors are those of admit.
func (a *admission) addIfFits(ns *kv.Namespace, all map[kv.NamespaceID]share, unused func() []kv.NamespaceID) error {
	s, err := a.shareOf(ns)
	if err != nil {
		return err
	}
	all[ns.ID()] = s
	want := a.want(all)
	// The start has checked the tiers that all namespaces share. To measure them again would
	// make engines wait for a disk that does not answer. Only a namespace that adds bytes of its
	// own needs a new measurement.
	n := a.atStart
	if s.host != 0 || s.disk != 0 {
		if n, err = a.tiers.Load().Measure(a.log); err != nil {
			return err
		}
		if err := n.Check(want, a.log); err != nil {
			err = fmt.Errorf("HELLO namespace: no room for its blocks: %w", err)
			if a.fitsWithout(ns.ID(), all, unused(), &n) {
				err = fmt.Errorf("%w: %w", err, errNoRoom)
			}
			return &refusal.Error{Code: proto.CodeLimit, Retryable: true, Err: err}
		}
	}
	a.tiers.Load().LimitHeapBeside(&n, want, a.log)
	return nil
}

// fitsWithout reports whether the namespaces in all would fit the node without those in gone.
// id, the namespace that asks for room, stays. Without any that could go the answer is false.
func (a *admission) fitsWithout(id kv.NamespaceID, all map[kv.NamespaceID]share, gone []kv.NamespaceID, n *node.Space) bool {
	left := maps.Clone(all)
	for _, other := range gone {
		if other != id {
			delete(left, other)
		}
	}
	return len(left) < len(all) && n.Check(a.want(left), a.log) == nil
}

func (a *admission) knows(id kv.NamespaceID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.admitted[id]
	return ok
}

// release releases the admission of a namespace without a pool.
func (a *admission) release(id kv.NamespaceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.admitted, id)
}

// shareOf returns how many bytes a pool of the namespace takes. A shared tier that is too small
// for one block of the namespace is a refusal.
func (a *admission) shareOf(ns *kv.Namespace) (share, error) {
	slot := blockmgr.SlotBytes(ns)
	s := share{slotBytes: slot, host: mulSaturating(a.tiers.Load().HostBlocks, slot), disk: mulSaturating(a.tiers.Load().DiskBlocks, slot)}
	if a.tiers.Load().BypassesHost() { // a staging extent for blocks on their way to and from disk
		extent := cmp.Or(a.tiers.Load().ExtentBytes, blockmgr.ExtentBytesFor(0))
		s.host = min(max(extent, stagingSlots*slot), blockmgr.MaxExtentBytes)
	}
	for _, t := range a.tiers.Load().Sizes() {
		if t.Blocks == 0 && t.Bytes != 0 && t.Bytes < slot {
			return s, refusal.New(proto.CodeNamespace, "HELLO namespace: %s size %d%s: holds none of its blocks, want 0 or at least %d bytes",
				t.Name, t.Bytes, t.Setting, slot)
		}
	}
	return s, nil
}

// want returns wantOf for the current tiers.
func (a *admission) want(all map[kv.NamespaceID]share) resource.Want {
	return wantOf(a.tiers.Load(), all)
}

// wantOf returns the memory and disk space that tiers need with the namespaces of all, and the
// slots in them. A tier has its size in bytes, which all namespaces share, or in blocks, which
// each namespace gets for itself.
func wantOf(tiers *node.Tiers, all map[kv.NamespaceID]share) resource.Want {
	w := tiers.Want()
	var host, disk uint64
	smallest := uint64(math.MaxUint64)
	for _, s := range all {
		host, disk = addSaturating(host, s.host), addSaturating(disk, s.disk)
		smallest = min(smallest, s.slotBytes)
	}
	if tiers.HostBlocks != 0 {
		w.HostBytes = host
	} else if tiers.BypassesHost() {
		w.HostBytes, w.HostSetting = host, "the extent size" // the setting that errors name
	}
	if tiers.DiskBlocks != 0 {
		w.DiskBytes = disk
	}
	w.HostSlots, w.DiskSlots = w.HostBytes/smallest, w.DiskBytes/smallest // 0 without namespaces
	return w
}

// mulSaturating returns a*b, at most math.MaxUint64.
func mulSaturating(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}

// addSaturating returns a+b, at most math.MaxUint64.
func addSaturating(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
