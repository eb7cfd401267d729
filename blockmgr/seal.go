package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// sealLoop computes the checksums of committed blocks until the pool stops.
// What is not sealed then is lost, as it would be in a restart.
func (p *Pool) sealLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.sealing.len() == 0 && !p.stopped() {
			p.sealWork.Wait()
		}
		if p.stopped() {
			return
		}
		p.sealOneLocked(p.sealing.pop())
	}
}

// sealOneLocked seals one filled slot, which is held for it; it lets go of the
// mutex for the checksum.
func (p *Pool) sealOneLocked(ref uint32) {
	t := p.host
	r := t.record(ref)
	part, i := t.at(ref)
	host := part.host
	p.mu.Unlock()

	sum, err := host.ContentSum(i, r.Key, p.blockBytes)

	p.mu.Lock()
	defer p.doneLocked(1)
	t.slots[ref].holds--
	if err != nil {
		part, _ := t.at(ref)
		p.memoryErrorLocked(part, err)
		p.dropLocked(t, ref, storage.StateQuarantined)
		return
	}
	r.Checksum = storage.Bind(sum, r.Key, t.slots[ref].generation)
	t.setState(ref, storage.StateSealed)
	t.put(ref, r)
	p.offerLocked(ref)
	p.settleLocked(t, ref)
}
