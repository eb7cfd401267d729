package consolidator

import (
	"encoding/binary"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
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

func (r *savedReader) sequence(st *sequence.State) {
	st.Next, st.LastLive = r.uint64(), r.uint64()
	st.HasLive = r.uint8()&flagHasLive != 0
	for range r.length(16) {
		st.Remembered = append(st.Remembered, sequence.Applied{After: r.uint64(), Sum: r.uint64()})
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
			engineBlock: engineBlock{slot: r.uint32(), identity: r.uint32(), refs: residency.Refs(r.uint32())},
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
	c.stream.Update(func(tx *residency.Tx) {
		c.settle(tx)
		c.storePlaced(tx, c.placedBlocks(ck, blocks))
	})
	if len(ck.unlisted) > 0 {
		c.unlisted = make(map[kv.EngineHash]struct{}, len(ck.unlisted))
		for _, h := range ck.unlisted {
			c.unlisted[h] = struct{}{}
		}
	}
	var dec engineevent.Decoder
	var parked engineevent.Batch
	if len(ck.parked) > 0 && dec.Decode(ck.parked, &parked) == nil {
		c.stream.Update(func(tx *residency.Tx) {
			for i := range parked.Events {
				c.applyEvent(tx, &parked.Events[i])
			}
		})
	}
	c.stream.Update(func(tx *residency.Tx) {
		c.settle(tx)
		tx.Flush()
	})
	return len(blocks)
}

// placedBlock is an engine block whose place in a sequence is known. Its references
// are the engine's.
type placedBlock struct {
	hash     kv.EngineHash
	seq      kv.SequenceHash
	at       residency.Block
	identity uint32
}

// placedBlocks are the engine's blocks in ck.
func (c *converter) placedBlocks(ck *checkpoint, blocks []savedBlock) []placedBlock {
	placed := make([]placedBlock, 0, len(blocks))
	for _, b := range blocks {
		i, _ := ck.Block(b.slot)
		r, name := ck.residents[i], ck.identities[b.identity]
		identity, ok := c.identities.number(identityName{kv.BoundedName(name.lora), kv.BoundedName(name.salt)})
		if !ok {
			c.drop(dropNamesFull, 1)
			continue
		}
		placed = append(placed, placedBlock{
			hash: b.hash, seq: r.hash, at: residency.Block{Parent: r.parent, Local: r.local, Packed: r.place, Refs: b.refs},
			identity: identity,
		})
	}
	return placed
}

// storePlaced stores blocks that are not known: in the stream once in each tier in
// which the engine has them, parents before children. The first of those with the
// same content has the reference that the stream counted; the others add theirs.
func (c *converter) storePlaced(tx *residency.Tx, blocks []placedBlock) {
	tx.StoreAll(func(yield func(kv.SequenceHash, residency.Block) bool) {
		for i := range blocks {
			if !yield(blocks[i].seq, blocks[i].at) {
				return
			}
		}
	})
	var counted [kv.NumTiers]map[uint32]bool
	for t := range counted {
		counted[t] = make(map[uint32]bool)
	}
	for i := range blocks {
		b := &blocks[i]
		slot, ok := tx.Find(b.seq)
		if _, twice := c.known.Find(uint64(b.hash)); !ok || twice {
			c.identities.settle(b.identity)
			continue
		}
		for _, t := range kv.Tiers {
			switch {
			case b.at.Refs.Of(t) == 0:
			case counted[t][slot]:
				tx.AddRef(t, slot)
			default:
				counted[t][slot] = true
			}
		}
		c.learn(b.hash, engineBlock{slot: slot, identity: b.identity, refs: b.at.Refs})
	}
}
