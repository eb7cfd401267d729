package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

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
	t := p.host
	r := t.record(ref)
	part, i := t.at(ref)
	host := part.host
	p.mu.Unlock()

	sum, err := host.ContentSum(i, r.Key, p.blockBytes)

	p.mu.Lock()
	defer p.doneLocked(1)
	s := t.slot(ref)
	s.holds--
	if err != nil {
		part, _ := t.at(ref)
		p.memoryErrorLocked(part, err)
		p.dropLocked(t, ref, storage.StateQuarantined)
		return
	}
	r.Checksum = storage.Bind(sum, r.Key, s.generation)
	t.setState(s, storage.StateSealed)
	t.put(ref, r)
	p.offerLocked(ref, s)
	p.settleLocked(t, ref, s)
}
