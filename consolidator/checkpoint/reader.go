package checkpoint

import (
	"encoding/binary"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// reader reads the numbers and lists of a file. After an impossible length bad is set and all
// results are zero.
type reader struct {
	buf []byte
	bad bool
}

// take returns the next n bytes, and nil when the file is shorter.
func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.buf) {
		r.bad = true
		return nil
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// length reads the length of a list whose elements have at least size bytes each. A list that
// cannot fit into the rest of the file has length 0 and sets bad.
func (r *reader) length(size int) int {
	n := int(r.uint32())
	if n > len(r.buf)/size {
		r.bad = true
		return 0
	}
	return n
}

func (r *reader) text() string { return string(r.take(r.length(1))) }

// sequence reads the rank's position in the engine's sequence, and the batches that it
// remembers by number and checksum.
func (r *reader) sequence(st *sequence.State) {
	st.Next, st.LastLive = r.uint64(), r.uint64()
	st.HasLive = r.uint8()&flagHasLive != 0
	for range r.length(8 + 8) { // bytes of an element
		st.Remembered = append(st.Remembered, sequence.Applied{After: r.uint64(), Sum: r.uint64()})
	}
}

// rank reads the flags, groups and names of a rank: see the format above magic.
func (r *reader) rank(s *State) {
	f := r.uint8()
	s.Degraded, s.LowerTiers = f&flagDegraded != 0, f&flagLowerTiers != 0
	s.Groups = make(map[int32]bool)
	for range r.length(4 + 1) { // bytes of an element
		group := int32(r.uint32())
		s.Groups[group] = r.uint8() != 0
	}
	for range r.length(4 + 4) { // the lengths of two empty texts
		s.Names = append(s.Names, Name{LoRA: r.text(), Salt: r.text()})
	}
}

// tables reads the rest of the file into s: the blocks, the engine's names for them, the hashes
// that only the engine's list has named, and the parked events (an encoded engine batch). After
// damage r.bad is set, and what s has is useless.
func (r *reader) tables(s *Saved) {
	n := r.length(BlockBytes)
	s.Blocks = make([]Block, 0, n)
	for range n {
		s.Blocks = append(s.Blocks, Block{
			Slot: r.uint32(), Hash: kv.SequenceHash(r.uint64()), Block: residency.Block{
				Parent: kv.SequenceHash(r.uint64()), Local: kv.LocalHash(r.uint64()), Packed: r.uint32(),
			},
		})
	}
	n = r.length(EngineBlockBytes)
	s.EngineBlocks = make([]EngineBlock, 0, n)
	for range n {
		s.EngineBlocks = append(s.EngineBlocks, EngineBlock{
			Hash: kv.EngineHash(r.uint64()), Slot: r.uint32(), Name: r.uint32(), Refs: residency.Refs(r.uint32()),
		})
	}
	for range r.length(8) { // bytes of a hash
		s.Unlisted = append(s.Unlisted, kv.EngineHash(r.uint64()))
	}
	s.Parked = r.take(r.length(1))
}

// sparse reads the table of blocks of other KV groups than the primary one.
func (r *reader) sparse(s *Saved) {
	for range r.length(sparseBlockBytes) {
		s.Sparse = append(s.Sparse, SparseBlock{
			Key: r.uint64(), Hash: kv.SequenceHash(r.uint64()), Group: r.uint32(), Refs: residency.Refs(r.uint32()),
		})
	}
}
