package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// sealLocked queues the checksum of a filled slot, which is held for it.
func (p *Pool) sealLocked(ref registry.Ref) {
	p.seals.queue.Push(ref)
	p.pending.operations++
	p.seals.work.Signal()
}

// sealLoop computes the checksums of committed blocks, and compares those of
// recovered ones, until the pool stops. What is not sealed then is lost, as it
// would be in a restart.
func (p *Pool) sealLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.seals.queue.Len() == 0 && !p.stopped() {
			p.seals.work.Wait()
		}
		if p.stopped() {
			return
		}
		ref := p.seals.queue.Pop()
		if f := p.reads.flights[ref]; f != nil {
			p.verifyOneLocked(ref, f)
		} else {
			p.sealOneLocked(ref)
		}
	}
}

// sealOneLocked seals one filled slot, which is held for it; it lets go of the
// mutex for the checksum.
func (p *Pool) sealOneLocked(ref registry.Ref) {
	t := p.slots.Host
	r := t.Record(ref)
	part, i := t.At(ref)
	host := part.Host
	p.mu.Unlock()

	sum, err := host.ContentSum(i, r.Key, p.blockBytes)

	p.mu.Lock()
	defer p.doneLocked(1)
	s := t.Slot(ref)
	s.Holds--
	if err != nil {
		part, _ := t.At(ref)
		p.slots.MemoryError(part, err)
		p.slots.Drop(t, ref, storage.StateQuarantined)
		return
	}
	r.Checksum = storage.Bind(sum, r.Key, s.Generation)
	t.SetState(s, storage.StateSealed)
	t.PutRecord(ref, r)
	p.offerLocked(ref, s)
	p.slots.Settle(t, ref, s)
}
