package consolidator

import (
	"encoding/binary"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// savedReader reads a checkpoint. After something that cannot be, bad is set and
// everything is zero.
type savedReader struct {
	buf []byte
	bad bool
}

func (r *savedReader) take(n int) []byte {
	if r.bad || n > len(r.buf) {
		r.bad = true
		return nil
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b
}

func (r *savedReader) uint8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *savedReader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *savedReader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// length reads the length of a list whose elements have at least size bytes.
func (r *savedReader) length(size int) int {
	n := int(r.uint32())
	if n > len(r.buf)/size {
		r.bad = true
		return 0
	}
	return n
}

func (r *savedReader) text() string { return string(r.take(r.length(1))) }

func (r *savedReader) sequence(st *sequencerState) {
	st.next, st.lastLive = r.uint64(), r.uint64()
	st.hasLive = r.uint8()&flagHasLive != 0
	for range r.length(16) {
		st.recent = append(st.recent, applied{after: r.uint64(), sum: r.uint64()})
	}
}

func (r *savedReader) rank(ck *checkpoint) {
	f := r.uint8()
	ck.degraded, ck.lowerTiers = f&flagDegraded != 0, f&flagLowerTiers != 0
	ck.groups = make(map[int32]bool)
	for range r.length(5) {
		group := int32(r.uint32())
		ck.groups[group] = r.uint8() != 0
	}
	for range r.length(8) {
		ck.identities = append(ck.identities, identityName{lora: r.text(), salt: r.text()})
	}
}

func (r *savedReader) tables(ck *checkpoint) {
	n := r.length(residentBytes)
	ck.residents = make([]savedResident, 0, n)
	for range n {
		ck.residents = append(ck.residents, savedResident{
			slot: r.uint32(), hash: kv.SequenceHash(r.uint64()), parent: kv.SequenceHash(r.uint64()),
			local: kv.LocalHash(r.uint64()), place: r.uint32(),
		})
	}
	n = r.length(engineRowBytes)
	ck.blocks = make([]savedBlock, 0, n)
	for range n {
		ck.blocks = append(ck.blocks, savedBlock{
			hash:        kv.EngineHash(r.uint64()),
			engineBlock: engineBlock{slot: r.uint32(), identity: r.uint32(), refs: refCounts(r.uint32())},
		})
	}
	for range r.length(8) {
		ck.unlisted = append(ck.unlisted, kv.EngineHash(r.uint64()))
	}
	ck.parked = r.take(r.length(1))
}

// restore takes over the state in ck; the converter and its stream must be
// empty. The stream stores everything, and is degraded until the engine has shown
// that it is still the same. The number of engine blocks is returned.
func (c *converter) restore(ck *checkpoint) int {
	c.degraded, c.lowerTiers = ck.degraded, ck.lowerTiers
	for group, main := range ck.groups {
		c.groups.learn(group, main)
	}
	blocks := ck.blocks[:min(len(ck.blocks), c.maxBlocks)]
	if len(blocks) < len(ck.blocks) {
		c.drop(dropTableFull, len(ck.blocks)-len(blocks))
	}
	c.unproven = true
	c.settle()
	c.restoreStream(ck, blocks)
	c.restoreBlocks(ck, blocks)
	if len(ck.unlisted) > 0 {
		c.unlisted = make(map[kv.EngineHash]struct{}, len(ck.unlisted))
		for _, h := range ck.unlisted {
			c.unlisted[h] = struct{}{}
		}
	}
	var dec kvevent.Decoder
	var parked kvevent.EngineBatch
	if len(ck.parked) > 0 && dec.Decode(ck.parked, &parked) == nil {
		for i := range parked.Events {
			c.applyEvent(&parked.Events[i])
		}
	}
	c.settle()
	c.stream.Flush()
	return len(blocks)
}

// restoreStream stores every block once in each tier in which the engine has it,
// parents before children.
func (c *converter) restoreStream(ck *checkpoint, blocks []savedBlock) {
	var table dense[resident]
	for _, b := range blocks {
		i, _ := ck.resident(b.slot)
		r := ck.residents[i]
		slot, found := table.find(uint64(r.hash))
		if !found {
			slot, _ = table.insert(uint64(r.hash))
			*table.at(slot) = resident{parent: r.parent, local: r.local, place: r.place}
		}
		table.at(slot).refs |= b.refs
	}
	for i, e := range snapshotEvents(c.stream.owner, &table) {
		c.stream.Store(e.Tier, e.Parent, e.HasParent, e.StartPosition, e.Blocks)
		if i%(maxPendingBlocks/maxEventBlocks) == 0 {
			c.stream.Flush()
		}
	}
}

// restoreBlocks makes the engine's blocks known. The first of those with the same
// content has the reference that restoreStream counted; the others add theirs.
func (c *converter) restoreBlocks(ck *checkpoint, blocks []savedBlock) {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	var counted [kv.NumTiers]map[uint32]bool
	for t := range counted {
		counted[t] = make(map[uint32]bool)
	}
	for _, b := range blocks {
		i, _ := ck.resident(b.slot)
		slot, ok := c.stream.table.find(uint64(ck.residents[i].hash))
		if _, twice := c.known.find(uint64(b.hash)); !ok || twice {
			continue
		}
		for _, t := range kv.Tiers {
			switch {
			case b.refs.of(t) == 0:
			case counted[t][slot]:
				c.stream.addRefLocked(t, slot)
			default:
				counted[t][slot] = true
			}
		}
		name := ck.identities[b.identity]
		c.learn(b.hash, engineBlock{slot: slot, identity: c.identities.number(name.lora, name.salt), refs: b.refs})
	}
}
